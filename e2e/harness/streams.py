"""A small closed-loop client of OpenAI-style streamed completions that counts cut streams.

    streams.py --url http://HOST:PORT --model NAME --concurrency N (--seconds S | --requests K) ...

Every stream asks for an exact number of tokens (`ignore_eos`), so a stream that ends with fewer, by the
server's own count, was cut. (Events are not tokens: vLLM joins tokens into one event when a client lags.)
Runs on the standard library and aiohttp alone: as a process in a node's network namespace, or as a pod.
Prints one JSON object:

    {"streams": n, "cut": n, "causes": {..}, "cut_at_s": [..], "tokens": n, "seconds": s,
     "silent_s": s, "itl_ms": {"p50":..}, "ttft_ms": {..}}

`cut_at_s` are the seconds after the start of the first CUTS_TOLD that were cut, `silent_s` is the longest
time in which no stream at all heard anything.

SIGTERM ends the load early: no stream is started any more, those that are open run to their end.
With `--follow`, also a line a second: {"at": s, "active": n, "done": n, "cut": n, "tokens": n}.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp

Work = tuple[list[int], int]
"""Prompt token ids, and tokens to generate."""
PERCENTILES = (0.5, 0.95, 0.99)
MAX_CONCURRENCY = 512
LOOK_S = 0.1
CUTS_TOLD = 20


@dataclass
class Tally:
    """What the clients saw so far. Times in seconds."""

    active: int = 0
    done: int = 0
    tokens: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    cut_at: list[float] = field(default_factory=list)
    """Moments on the monotonic clock."""
    itl: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    silent_s: float = 0.0
    """The longest time between two events, of whatever streams."""
    heard_at: float | None = None

    @property
    def cut(self) -> int:
        return sum(self.causes.values())

    def event(self, at: float, seconds: float, tokens: int, first: bool) -> None:
        """An event of a stream came at `at` (the monotonic clock), so long after its request (`first`) or
        after the event before. `tokens` is what it brought, 0 where the server does not count as it goes.
        """
        del tokens
        if self.heard_at is not None:
            self.silent_s = max(self.silent_s, at - self.heard_at)
        self.heard_at = at
        (self.ttft if first else self.itl).append(seconds)


def percentiles_ms(values: Sequence[float]) -> dict[str, float]:
    """Nearest-rank percentiles of durations in seconds, as milliseconds; empty for no values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    last = len(ordered) - 1
    return {
        f"p{round(q * 100)}": round(1e3 * ordered[min(last, int(q * len(ordered)))], 2) for q in PERCENTILES
    }


def requests(prompt: tuple[int, int], output: tuple[int, int], seed: int) -> Iterator[Work]:
    """Endless (prompt token ids, tokens to generate), lengths uniform within bounds, no shared prefix."""
    rng = random.Random(seed)
    while True:
        length = rng.randint(*prompt)
        yield [rng.randint(3, 250) for _ in range(length)], rng.randint(*output)


async def stream(session: aiohttp.ClientSession, url: str, body: dict[str, object], tally: Tally) -> str:
    """Read one stream to its end; the empty string when all tokens came, else why it counts as cut."""
    tokens, ending, events = 0, None, 0
    last = time.perf_counter()
    async with session.post(url, json=body) as response:
        if response.status != 200:
            return f"HTTP {response.status}"
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return "error event"
            before, tokens = tokens, (event.get("usage") or {}).get("completion_tokens", tokens)
            if not event.get("choices"):
                continue
            now = time.perf_counter()
            tally.event(now, now - last, tokens - before, not events)
            last, events = now, events + 1
            ending = event["choices"][0].get("finish_reason") or ending
    tally.tokens += tokens
    return "" if tokens == body["max_tokens"] and ending == "length" else f"ended by {ending}"


def _say(error: Exception) -> str:
    """An error's kind, and for one of the system its name: a refused connection is not a lost route."""
    number = getattr(error, "errno", None)
    return type(error).__name__ + (f" {errno.errorcode.get(number, number)}" if number else "")


async def worker(
    session: aiohttp.ClientSession,
    args: argparse.Namespace,
    work: Iterator[Work],
    tally: Tally,
    times: tuple[float, float],
    told: asyncio.Event,
) -> None:
    """Send one stream after another until the time is up, the work is out, or somebody wants an end. `times`
    are start and end by this process's clock.
    """
    started, until = times
    while (now := time.perf_counter()) < until and not told.is_set():
        if args.wave is not None and ebbs(now - started, args.wave):
            await asyncio.sleep(LOOK_S)
            continue
        try:
            prompt, tokens = next(work)
        except StopIteration:
            return
        body = {
            "model": args.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        tally.active += 1
        try:
            cause = await stream(session, f"{args.url}/v1/completions", body, tally)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            cause = _say(error)
        tally.active -= 1
        tally.done += 1
        if cause:
            tally.causes[cause] += 1
            tally.cut_at.append(time.perf_counter())
            await asyncio.sleep(0.2)  # A dead server must not turn the loop into a flood.


async def follow(tally: Tally, started: float) -> None:
    """Print the tally once a second until cancelled."""
    while True:
        await asyncio.sleep(1)
        line = {
            "at": round(time.perf_counter() - started, 1),
            "active": tally.active,
            "done": tally.done,
            "cut": tally.cut,
            "tokens": tally.tokens,
        }
        print(json.dumps(line), flush=True)


def ebbs(seconds: float, wave: float) -> bool:
    """Whether no stream is started now, so long after the start: every other time of `wave` seconds."""
    return int(seconds // wave) % 2 == 1


async def run(args: argparse.Namespace) -> dict[str, object]:
    """Run the whole load; the summary described at the top of this file."""
    tally, started, told = Tally(), time.perf_counter(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    endless = requests((args.prompt_min, args.prompt_max), (args.output_min, args.output_max), args.seed)
    work = itertools.islice(endless, args.requests)
    until = started + (args.seconds if args.seconds is not None else args.timeout)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=args.timeout)
    ) as s:
        clock = asyncio.create_task(follow(tally, started)) if args.follow else None
        workers = [
            asyncio.create_task(worker(s, args, work, tally, (started, until), told))
            for _ in range(args.concurrency)
        ]
        _, open_still = await asyncio.wait(workers, timeout=args.seconds if args.drop else None)
        for task in open_still:
            task.cancel()
        await asyncio.gather(*(task for task in workers if task not in open_still))
        if clock is not None:
            clock.cancel()
    seconds = time.perf_counter() - started
    return {
        "streams": tally.done,
        "cut": tally.cut,
        "causes": dict(tally.causes),
        "cut_at_s": [round(at - started, 2) for at in tally.cut_at[:CUTS_TOLD]],
        "tokens": tally.tokens,
        "seconds": round(seconds, 2),
        "silent_s": round(tally.silent_s, 2),
        "itl_ms": percentiles_ms(tally.itl),
        "ttft_ms": percentiles_ms(tally.ttft),
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", required=True, help="http://HOST:PORT of the engine or its Service")
    p.add_argument("--model", required=True, help="served model name")
    p.add_argument("--concurrency", type=int, required=True, help=f"streams at once, 1 to {MAX_CONCURRENCY}")
    p.add_argument(
        "--seconds", type=float, help="start no stream after this time; those open run to their end"
    )
    p.add_argument("--requests", type=int, help="number of streams in all")
    p.add_argument("--prompt-min", type=int, default=32, help="fewest prompt tokens (default 32)")
    p.add_argument("--prompt-max", type=int, default=32, help="most prompt tokens (default 32)")
    p.add_argument("--output-min", type=int, default=100, help="fewest tokens to generate (default 100)")
    p.add_argument("--output-max", type=int, default=300, help="most tokens to generate (default 300)")
    p.add_argument(
        "--wave",
        type=float,
        metavar="S",
        help="start streams for so many seconds, none for as long, and so on",
    )
    p.add_argument("--timeout", type=float, default=300, help="limit of one stream, seconds (default 300)")
    p.add_argument("--seed", type=int, default=0, help="seed of lengths and prompts (default 0)")
    p.add_argument(
        "--drop",
        action="store_true",
        help="hang up on streams still open after --seconds; those do not count",
    )
    p.add_argument("--follow", action="store_true", help="print the tally once a second")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    args = parser().parse_args(argv)
    if (args.seconds is None) == (args.requests is None):
        sys.exit("streams.py: give exactly one of --seconds and --requests")
    if args.drop and args.seconds is None:
        sys.exit("streams.py: --drop needs --seconds")
    if args.wave is not None and args.wave <= 0:
        sys.exit("streams.py: --wave must be more than 0")
    if not 1 <= args.concurrency <= MAX_CONCURRENCY:
        sys.exit(f"streams.py: --concurrency must be 1 to {MAX_CONCURRENCY}")
    print(json.dumps(asyncio.run(run(args))), flush=True)


if __name__ == "__main__":
    main()
