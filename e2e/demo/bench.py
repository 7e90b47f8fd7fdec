"""Runs in the cluster: `vllm bench serve`, begun on order and ended by the clock.

    bench.py ORDER RESULT

Waits for the file ORDER, {"seconds": s, "flags": [flags of `vllm bench serve`]}, and writes the benchmark's
detailed result to the file RESULT, gzipped, in base64; then waits for the next. vLLM is imported before the
first order: that takes longer than a window.

vLLM's benchmark ends with its last request, and when that is depends on how much the engine gets done. Here
no request is sent any more once the seconds are over, counted from the first one, and those that are open are
hung up on. Their error in the result is ENDED.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import importlib
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ENDED = "the time of this run was over"
BACKEND = "vllm"
KEPT = ("start_times", "ttfts", "itls", "output_lens", "errors", "output_throughput", "duration")
LOOK_EVERY_S = 0.2


def bounded(
    send: Callable[..., Awaitable[Any]], ended: Callable[[float], Any], seconds: float
) -> Callable[..., Awaitable[Any]]:
    """A way to send requests that ends `seconds` after the first one; `ended` makes the output of those that
    were not to end, from the moment they were sent.
    """
    until: float | None = None

    async def request(*args: Any, **kwargs: Any) -> Any:
        nonlocal until
        now = time.perf_counter()
        until = now + seconds if until is None else until
        if now >= until:
            return ended(now)
        try:
            return await asyncio.wait_for(send(*args, **kwargs), until - now)
        except TimeoutError:
            return ended(now)

    return request


def packed(found: Any) -> bytes:
    """As the demo reads it."""
    return base64.b64encode(gzip.compress(json.dumps(found).encode()))


def main() -> None:
    order, result = Path(sys.argv[1]), Path(sys.argv[2])
    serve = importlib.import_module("vllm.benchmarks.serve")
    endpoint = importlib.import_module("vllm.benchmarks.lib.endpoint_request_func")
    parsers = importlib.import_module("vllm.utils.argparse_utils")
    send = endpoint.ASYNC_REQUEST_FUNCS[BACKEND]

    def ended(at: float) -> Any:
        return endpoint.RequestFuncOutput(error=ENDED, start_time=at)

    def run(asked: dict[str, Any]) -> dict[str, Any]:
        parser = parsers.FlexibleArgumentParser()
        serve.add_cli_args(parser)
        endpoint.ASYNC_REQUEST_FUNCS[BACKEND] = bounded(send, ended, asked["seconds"])
        whole = serve.main(parser.parse_args(asked["flags"]))
        return {name: whole[name] for name in KEPT}

    print("ready", flush=True)
    while True:
        if not order.exists():
            time.sleep(LOOK_EVERY_S)
            continue
        try:
            found = run(json.loads(order.read_text()))
        except (Exception, SystemExit):
            traceback.print_exc()
            found = {"error": traceback.format_exc()}
        order.unlink()
        part = result.with_suffix(".part")
        part.write_bytes(packed(found))
        part.rename(result)


if __name__ == "__main__":
    main()
