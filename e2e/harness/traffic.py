"""Streams in a process of their own, whose load can be changed, and read, while it runs.

Each stream sends its next request when the last one ended or, in a group with a `share`, at random moments
whatever became of the last one. What a request looks like is said by the group that the stream belongs to; a
mix is a list of groups, and `Traffic.switch` takes another mix for all requests to come and for those that
wait: these are withdrawn and asked anew. So a load changes at one moment, however long a server lets requests
wait. Every token's arrival is written down with its time, so that any window can be judged afterwards.

Times are seconds of the machine's monotonic clock, which is one for all processes.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.streams import Tally, stream

FLUSH_S = 0.25
"""How long an event may be on its way to the reader."""
LONGEST_STREAM_S = 600.0
STOP_S = 30.0
AFTER_A_FAILURE_S = 0.2
"""A dead server must not turn the loop into a flood."""
FIRST_TOKEN, LAST_TOKEN = 3, 250
"""Token ids that prompts are made of: past the special ones, and in any vocabulary."""


@dataclass(frozen=True)
class Group:
    """So many of the streams, and what their requests look like, in tokens."""

    streams: int
    prompt: tuple[int, int]
    """Fewest and most, uniform; without the prefix."""
    output: tuple[int, int]
    prefix: int = 0
    """Tokens that every prompt of all groups begins with; 0 for prompts that share nothing."""
    every_s: float = 0.0
    """Above 0 the streams do not send at once but at the next multiple of this, all of them together."""
    prefix_per_s: float = 0.0
    """Tokens by which the prefix grows every second from the switch to this mix on."""
    prefix_most: int = 0
    """What it grows to; of a prefix that does not grow, nothing."""
    share: float = 0.0
    """Above 0 the streams' requests come at random (Poisson), all streams together with this share of the
    rate that `Traffic.full_rate` was told.
    """

    def prefix_at(self, seconds: float) -> int:
        """Tokens of the prefix so long after the switch."""
        if self.prefix_per_s <= 0:
            return self.prefix
        return min(self.prefix_most, self.prefix + int(self.prefix_per_s * seconds))

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its answer among them."""
        return max(self.prefix, self.prefix_most) + self.prompt[1] + self.output[1]


Mix = Sequence[Group]
Event = tuple[float, float, int]
"""When it came, seconds since the one before it in its stream (the first: since the request), tokens that it
brought."""


@dataclass
class Tape:
    """What the streams saw so far, in order of time."""

    itl: list[Event] = field(default_factory=list)
    """Every event but the first of each stream."""
    ttft: list[Event] = field(default_factory=list)
    """The first ones."""
    done: int = 0
    cut: int = 0
    """Of those done: streams that ended before all their tokens came."""
    causes: dict[str, int] = field(default_factory=dict)

    def between(self, start: float, end: float) -> tuple[list[Event], list[Event]]:
        """The events from `start` up to `end`: (all but the first of each stream, first ones)."""
        return _slice(self.itl, start, end), _slice(self.ttft, start, end)


def _slice(events: list[Event], start: float, end: float) -> list[Event]:
    low = bisect.bisect_left(events, start, key=lambda event: event[0])
    return events[low : bisect.bisect_left(events, end, lo=low, key=lambda event: event[0])]


class Traffic:
    """The caller's end. All mixes have the same number of streams."""

    def __init__(
        self, url: str, model: str, mixes: Sequence[Mix], folder: Path, key: str = "", seed: int = 0
    ) -> None:
        if len({sum(group.streams for group in mix) for mix in mixes}) != 1:
            raise ValueError("all mixes of a load need the same number of streams")
        self._file = folder / "traffic.jsonl"
        self._file.write_bytes(b"")
        self._offset = 0
        self._tape = Tape()
        said = {
            "url": url,
            "model": model,
            "mixes": [[asdict(group) for group in mix] for mix in mixes],
            "file": str(self._file),
            "key": key,
            "seed": seed,
        }
        # A session of its own: Ctrl-C is for the caller, who ends the load in order.
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(said)], stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def session(self) -> int:
        """The session that the client's process leads."""
        return self._process.pid

    def switch(self, mix: int) -> None:
        """Take another mix for all requests that have no token yet; the others are left alone."""
        self._say(f"mix {mix}")

    def full_rate(self, per_s: float) -> None:
        """Say how many requests a second the server carries: groups with a share send theirs of these."""
        self._say(f"rate {per_s}")

    def read(self) -> Tape:
        """Everything up to about FLUSH_S ago. Raises RuntimeError when the load has ended by itself."""
        if self._process.poll() is not None:
            raise RuntimeError("the client process has ended; its output is above")
        self._take()
        return self._tape

    def stop(self) -> Tape:
        """End the load; streams that are still open are dropped, and do not count as cut."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._take()
        return self._tape

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError("the client process has ended; its output is above") from error

    def _take(self) -> None:
        with self._file.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            found = json.loads(line)
            self._tape.itl += [tuple(event) for event in found["itl"]]
            self._tape.ttft += [tuple(event) for event in found["ttft"]]
            self._tape.done, self._tape.cut = found["done"], found["cut"]
            self._tape.causes = found["causes"]


class _Events(Tally):
    """A tally that also keeps when each event came, until it is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[Event] = []
        self.first: list[Event] = []

    def event(self, at: float, seconds: float, tokens: int, first: bool) -> None:
        (self.first if first else self.later).append((round(at, 5), round(seconds, 6), tokens))

    def line(self) -> str:
        """What was seen since the last line."""
        said = {
            "itl": self.later,
            "ttft": self.first,
            "done": self.done,
            "cut": self.cut,
            "causes": dict(self.causes),
        }
        self.later, self.first = [], []
        return json.dumps(said, separators=(",", ":")) + "\n"


@dataclass
class _Steering:
    """Which mix counts now and since when, and which requests wait for their first token."""

    mixes: list[list[Group]]
    now: int = 0
    since: float = field(default_factory=time.perf_counter)
    full_rate: float = 0.0
    waiting: dict[int, asyncio.Task[str]] = field(default_factory=dict)
    """By the number of the request."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by another one, whenever the caller has said something."""

    def obey(self, line: str) -> bool:
        """Do what the caller says; whether it was understood."""
        word, _, value = line.partition(" ")
        if word == "mix":
            self.switch(int(value))
        elif word == "rate":
            self.full_rate = float(value)
        else:
            return False
        self.heard.set()
        self.heard = asyncio.Event()
        return True

    def switch(self, mix: int) -> None:
        """Take another mix, and withdraw what waits."""
        if mix != self.now:
            for task in self.waiting.values():
                task.cancel()
        self.now, self.since = mix, time.perf_counter()

    async def sleep(self, seconds: float) -> bool:
        """Wait so long; return early, and False, when the caller says something else meanwhile."""
        try:
            await asyncio.wait_for(self.heard.wait(), seconds)
        except TimeoutError:
            return True
        return False

    def group(self, number: int) -> Group:
        """The group of a stream in the present mix."""
        for group in self.mixes[self.now]:
            if number < group.streams:
                return group
            number -= group.streams
        raise IndexError("a stream that no group has")


class _OneStream(Tally):
    """Passes a request's events on, and notes that it does not wait any more."""

    def __init__(self, events: _Events, steering: _Steering, number: int) -> None:
        super().__init__()
        self._events, self._steering, self._number = events, steering, number

    def event(self, at: float, seconds: float, tokens: int, first: bool) -> None:
        self._steering.waiting.pop(self._number, None)
        self._events.event(at, seconds, tokens, first)


def request(
    group: Group, prefix: Sequence[int], draw: random.Random, model: str, since_s: float = 0.0
) -> dict[str, Any]:
    """The body of one request, so many seconds after the switch to its mix."""
    prompt = [draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(draw.randint(*group.prompt))]
    return {
        "model": model,
        "prompt": [*prefix[: group.prefix_at(since_s)], *prompt],
        "max_tokens": draw.randint(*group.output),
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


class _Client:
    """What the streams share."""

    def __init__(
        self, session: aiohttp.ClientSession, said: Mapping[str, Any], steering: _Steering, events: _Events
    ) -> None:
        self._session, self._said, self._steering, self._events = session, said, steering, events
        shared = random.Random(said["seed"])
        longest = max(max(g.prefix, g.prefix_most) for mix in steering.mixes for g in mix)
        self._prefix = [shared.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(longest)]
        self._apart: set[asyncio.Task[None]] = set()
        """Requests that no stream waits for."""

    async def stream(self, number: int) -> None:
        """One stream, without end."""
        draw = random.Random(f"{self._said['seed']} {number}")
        steering = self._steering
        while True:
            group = steering.group(number)
            if group.share > 0:
                rate = group.share * steering.full_rate / group.streams
                if await steering.sleep(draw.expovariate(rate) if rate > 0 else LONGEST_STREAM_S):
                    self._set_off(group, draw)
                continue
            if group.every_s > 0:
                await asyncio.sleep(group.every_s - time.perf_counter() % group.every_s)
                group = steering.group(number)
            await self._ask(group, draw)

    def _set_off(self, group: Group, draw: random.Random) -> None:
        task = asyncio.create_task(self._ask(group, draw))
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)

    async def _ask(self, group: Group, draw: random.Random) -> None:
        """One request to its end; one that is withdrawn does not count."""
        steering, events = self._steering, self._events
        since_s = time.perf_counter() - steering.since
        body = request(group, self._prefix, draw, self._said["model"], since_s)
        number = next(steering.numbers)
        one = _OneStream(events, steering, number)
        asked = asyncio.create_task(stream(self._session, f"{self._said['url']}/v1/completions", body, one))
        steering.waiting[number] = asked
        try:
            await asyncio.wait([asked])
        finally:
            steering.waiting.pop(number, None)
            asked.cancel()
        if asked.cancelled():
            return
        try:
            cause = asked.result()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            cause = type(error).__name__
        events.done += 1
        if cause:
            events.causes[cause] += 1
            await asyncio.sleep(AFTER_A_FAILURE_S)

    async def close(self) -> None:
        """Drop what no stream waits for."""
        for task in self._apart:
            task.cancel()
        await asyncio.gather(*self._apart, return_exceptions=True)


def _append(file: str, line: str) -> None:
    with Path(file).open("a") as out:
        out.write(line)


async def _listen(steering: _Steering) -> None:
    """Follow what the caller says; return when it hangs up, or is gone."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while True:
        line = (await lines.readline()).decode().strip()
        if not steering.obey(line):
            return


async def _run(said: Mapping[str, Any]) -> None:
    mixes = [[Group(**group) for group in mix] for mix in said["mixes"]]
    steering, events = _Steering(mixes), _Events()
    headers = {"Authorization": f"Bearer {said['key']}"} if said["key"] else {}
    async with aiohttp.ClientSession(
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=LONGEST_STREAM_S),
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
    ) as session:
        count = sum(group.streams for group in mixes[0])
        client = _Client(session, said, steering, events)
        streams = [asyncio.create_task(client.stream(number)) for number in range(count)]
        ear = asyncio.create_task(_listen(steering))
        # A stream's task never ends by itself: one that does has failed, and the load is no longer whole.
        while not ear.done() and not any(task.done() for task in streams):
            await asyncio.wait([ear], timeout=FLUSH_S)
            _append(said["file"], events.line())
        failed = [task for task in streams if task.done()]
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await client.close()
        for task in failed:
            task.result()


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.argv[1])))
