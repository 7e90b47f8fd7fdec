"""Microseconds a step of the tuner's own work, on vLLM's own objects. Runs inside vLLM; prints JSON.

The engine core's part is what the wrappers do around one step: the lease and budget check before it, the step
meter after it. The API server's part is one `record` of the stat logger. Every figure is the best of several
repetitions: what the work costs when nothing else is in the way.
"""

from __future__ import annotations

import json
import time
import timeit
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from llamaserver_tuner.engine import EngineTuner
from llamaserver_tuner.scheduler import SchedulerPort
from llamaserver_tuner.stats import TunerStatLogger

BATCHES = (1, 32, 256)
LOOPS = 2000
REPEATS = 7


def scheduler(batch: int) -> Any:
    """Return a scheduler as far as the tuner looks at one. Making a real one needs a model; reading it
    does not."""
    stock = object.__new__(Scheduler)
    stock.__dict__.update(
        running=[SimpleNamespace(is_prefill_chunk=False) for _ in range(batch)],
        requests={},
        max_num_running_reqs=512,
        max_num_active_reqs=512,
        max_num_scheduled_tokens=2048,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048, enable_chunked_prefill=True),
    )
    return stock


def step(batch: int, prefill: int = 0) -> SchedulerOutput:
    """Return a step of `batch` decodes, and with `prefill` tokens of a new prompt when there are any."""
    names = [f"cmpl-{i:032x}-0" for i in range(batch)]
    output = SchedulerOutput.make_empty()
    output.num_scheduled_tokens = dict.fromkeys(names, 1)
    output.scheduled_cached_reqs = CachedRequestData(
        req_ids=names,
        resumed_req_ids=set(),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[None] * batch,
        num_computed_tokens=[500 + i for i in range(batch)],
        num_output_tokens=[1 + i for i in range(batch)],
    )
    if prefill:
        new = object.__new__(NewRequestData)
        new.req_id, new.num_computed_tokens = "new", 0
        output.scheduled_new_reqs = [new]
        output.num_scheduled_tokens["new"] = prefill
    output.total_num_scheduled_tokens = batch + prefill
    return output


def best(work: Any) -> float:
    """Return the microseconds of one call of `work`, at its best."""
    return 1e6 * min(timeit.repeat(work, number=LOOPS, repeat=REPEATS)) / LOOPS


def engine_core(batch: int, prefill: int, leased: bool = True) -> float:
    """Return the cost of one step in the engine core, with a lease and a budget in force."""
    tuner = EngineTuner(SchedulerPort(scheduler(batch)), 0)
    if leased:
        tuner.setpoints.budget, tuner.setpoints.lease_until = 600, time.monotonic() + 3600
    output = step(batch, prefill)

    def work() -> None:
        tuner._guard(tuner.before_step)
        tuner._guard(tuner._after_schedule, output)
        tuner._guard(tuner._after_step, output)

    return best(work)


def api_server(batch: int) -> float:
    """Return the cost of one step in the API server. Half of the sequences share one latency, half have
    their own."""
    logger = TunerStatLogger(None, [0])
    iteration, scheduling = IterationStats(), SchedulerStats()
    iteration.inter_token_latencies_iter = [0.02 if i % 2 else 0.0201 + 1e-7 * i for i in range(batch)]
    iteration.num_generation_tokens = batch
    return best(lambda: logger.record(scheduling, iteration, mm_cache_stats=None, engine_idx=0))


def main() -> None:
    """Measure and print."""
    result = {
        "engine_core_decode": {str(batch): round(engine_core(batch, 0), 2) for batch in BATCHES},
        "engine_core_mixed": {str(batch): round(engine_core(batch, 256), 2) for batch in BATCHES},
        "api_server": {str(batch): round(api_server(batch), 2) for batch in BATCHES},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
