"""The laws of a cap and a budget that move together, on a real scheduler and for any order of changes.

Every decode gets its tokens in every step, drafts among them, and the first prompt in line some; no step
exceeds its budget and no admission the cap; every step is metered as it was; every stream gets what it asked
for; and at the end of the lease the start values are back. A step in which somebody is preempted for want of
KV cache is vLLM's own affair.
"""

from __future__ import annotations

import random
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from harness import Clock, Loop, put, tuned
from llamaserver_tuner.engine import EngineTuner
from llamaserver_tuner.scheduler import shape_of

CHUNK = 8
"""The least that the operator leaves prefill beside the cap's decodes."""
Look = Callable[[EngineTuner, Any], None]


class Walk(unittest.TestCase):
    """What the tests of the laws share."""

    prompts_get_on = True
    """False where something else than tokens can hold the first prompt in line."""
    throttled = 0.0
    """Share of the steps that are told to leave prompts alone, as ranks of data parallelism are."""

    def walk(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        requests: Sequence[Request],
        loop: Loop | None = None,
        look: Look | None = None,
    ) -> EngineTuner:
        """Run the requests while both knobs move at random; `look` sees every step before its output is
        processed."""
        start = scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens
        clock = Clock()
        tuner, loop = tuned(scheduler, clock), loop or Loop(scheduler)
        self.assertEqual(set(tuner.read()["live"].values()), {""})
        for request in requests:
            scheduler.add_request(request)
        for number in range(5000):
            if not scheduler.has_requests():
                break
            if number % 7 == 0:
                self.assertNotIn("error", put(tuner, *pair(tuner, rng), lease=30))
            clock.now += 31 if number % 50 == 20 else 0
            output = self.step(scheduler, rng.random() < self.throttled)
            if number % 50 == 20:
                self.assertEqual((scheduler.max_num_active_reqs, scheduler.max_num_scheduled_tokens), start)
            if look:
                look(tuner, output)
            loop.submit(output)
        self.assertEqual(loop.tokens, {r.request_id: r.max_tokens for r in requests})
        self.assertEqual(tuner.failed, "")
        return tuner

    def step(self, scheduler: Scheduler, throttle: bool = False) -> Any:
        """Schedule one step and see that the laws hold in it."""
        running = list(scheduler.running)
        due = {r.request_id: tokens_due(scheduler, r) for r in running if not r.is_prefill_chunk}
        prompt = next((r.request_id for r in running if r.is_prefill_chunk), None)
        output = scheduler.schedule(throttle)
        given, cap = output.num_scheduled_tokens, scheduler.max_num_active_reqs
        self.assertLessEqual(output.total_num_scheduled_tokens, scheduler.max_num_scheduled_tokens)
        self.assertLessEqual(len(scheduler.running), max(len(running), cap))
        if not output.preempted_req_ids:
            self.assertEqual({name: given.get(name, 0) for name in due}, due)
            if prompt is not None and len(running) <= cap and self.prompts_get_on and not throttle:
                self.assertGreater(given.get(prompt, 0), 0)
        self.metered(scheduler, output, due)
        return output

    def metered(self, scheduler: Scheduler, output: Any, due: Mapping[str, int]) -> None:
        """A prompt's last chunk costs what a decode costs if it is one token, and counts as one."""
        shape, given = shape_of(output), output.num_scheduled_tokens
        if shape is None:
            self.assertEqual(output.total_num_scheduled_tokens, 0)
            return
        chunks = {name: tokens for name, tokens in given.items() if not due.get(name)}
        new = {request.req_id for request in output.scheduled_new_reqs}
        single = sum(tokens == 1 and name not in new for name, tokens in chunks.items())
        self.assertEqual(shape.decoding, len(given) - len(chunks) + single)
        self.assertEqual(shape.prefill_tokens, sum(chunks.values()) - single)
        self.assertEqual(shape.kv_tokens, sum(scheduler.requests[n].num_computed_tokens for n in given))


def pair(tuner: EngineTuner, rng: random.Random) -> tuple[int, int | None]:
    """A cap and a budget as the contract allows them, mostly small."""
    limits = tuner.port.limits
    cap = rng.randint(1, limits.max_num_seqs)
    low = limits.min_budget(cap)
    budget = rng.choice([None, low, low + CHUNK, low + rng.randint(CHUNK, 400)])
    return cap, budget if budget is None else min(limits.start_budget, budget)


def tokens_due(scheduler: Scheduler, request: Any) -> int:
    """The tokens of a decoding sequence: its drafts and one more; none where its last ones are under way
    already, as under asynchronous scheduling."""
    ahead, computed = request.num_output_placeholders, request.num_computed_tokens
    if ahead and computed + 2 - ahead >= request.num_prompt_tokens + request.max_tokens:
        return 0
    room = scheduler.max_model_len - 1 - computed
    return min(room, request.num_tokens_with_spec + ahead - computed)
