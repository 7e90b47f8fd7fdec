"""A plugin of the benchmark alone: switches the tuner off and on inside a running server and times its steps.

It watches from outside the tuner: its own wrapper goes around the tuner's, and takes the time from the end of
one step's processing to the end of the next, with the tuner at work or not. Only undisturbed steps of the
full batch count: decode only, `batch` sequences, a few steps after a switch.
"""

from __future__ import annotations

import asyncio
import json
import time
from argparse import Namespace
from typing import Any

from fastapi import Request, Response  # type: ignore[import-not-found]

from llamaserver_tuner import totals

SETTLE_STEPS = 3
PATH = "/probe"


class Probe:
    """Step durations of one engine core, by whether the tuner worked: [count, sum of microseconds] a
    block."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.batch = 0
        self.settling = 0
        self.last: int | None = None
        self.block: list[int] = []
        scheduler = core.scheduler
        inner = scheduler.update_from_output

        def timed(output: Any, *args: Any, **kwargs: Any) -> Any:
            result = inner(output, *args, **kwargs)
            now = time.perf_counter_ns()
            if self.last is not None and self.settling <= 0 and self.counts(output):
                self.block.append(now - self.last)
            self.settling -= 1
            self.last = now
            return result

        scheduler.update_from_output = timed

    def counts(self, output: Any) -> bool:
        """Whether this step is the full batch decoding and nothing else."""
        full = output.total_num_scheduled_tokens == len(output.num_scheduled_tokens) == self.batch
        return full and not output.scheduled_new_reqs

    def switch(self, active: bool, batch: int) -> list[int]:
        """Begin a block with the tuner on or off; return the durations (nanoseconds) of the one that ends."""
        ended, self.block = self.block, []
        self.batch, self.settling = batch, SETTLE_STEPS
        self.core._llamaserver_tuner.active = active
        return ended


def _switch(core: Any, active: bool, batch: int) -> str:
    probe = core.__dict__.get("_probe")
    if probe is None:
        probe = core._probe = Probe(core)
    return json.dumps(probe.switch(active, batch))


def register() -> None:
    """Entry point of vllm.general_plugins."""
    from vllm.v1.engine.core import EngineCore  # type: ignore[import-not-found]

    EngineCore.probe_switch = _switch


class Endpoint:
    """Entry point of vllm.endpoint_plugins: POST /probe?active=0|1&batch=N."""

    name = "probe_http"
    required_tasks = None

    def attach_router(self, app: Any) -> None:
        """Add the route."""
        app.add_api_route(PATH, _post, methods=["POST"], include_in_schema=False)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Keep the client."""
        del args
        state.probe_client = engine_client


async def _post(request: Request) -> Response:
    active, batch = request.query_params["active"] == "1", int(request.query_params["batch"])
    totals.COLLECTED.reason = "" if active else "ProbeOff"
    client = request.app.state.probe_client
    answer = await asyncio.wait_for(client.engine_core.call_utility_async("probe_switch", active, batch), 10)
    return Response(answer, media_type="application/json")
