"""What the recorder wrote, as typed readings, and the windows between them. Pure.

Times are seconds of the recorder's monotonic clock. A reading that failed is simply not there; a window whose
ends have no reading close by is unknown, and unknown is never counted as good.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from demo.digest import Digest

WINDOW_S = 10.0
NEAR_S = 2.0
"""How far a reading may lie from the moment it stands for, seconds."""
HOLDING_WINDOWS = 3
"""Consecutive windows within the objective that make it held."""


@dataclass(frozen=True)
class Reading:
    """One engine at one moment: gauges, and cumulative counts since its start."""

    at: float
    wall: float
    boot: str
    """Pod uid and boot id: changes when the engine restarts."""
    cap: int
    ceiling: int
    budget: int
    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    arrived: int
    finished: int
    """Requests that came to their end, be it their length or a stop."""
    tokens: int
    itl: Digest
    ttft: Digest
    queue: Digest
    retunes: dict[str, int]
    versions: dict[str, str]


@dataclass(frozen=True)
class Window:
    """What happened between two readings of one incarnation. `start` and `end` on the recorder's clock."""

    start: float
    end: float
    itl: Digest
    tokens: int
    preemptions: int
    cap: int
    """The cap in force at the window's end."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def meets(self, statistic: str, target_s: float) -> bool | None:
        """Whether the objective held; None when no token came, so there is nothing to judge."""
        value = self.itl.statistic(statistic)
        return None if value is None else value <= target_s


@dataclass(frozen=True)
class Span:
    """From the first request of a load to the last moment at which one was still waiting."""

    start: float
    end: float


def parse(lines: Iterable[str]) -> list[Reading]:
    """The readings in the recorder's output, in order of time; lines that are none are skipped."""
    found = []
    for line in lines:
        if line.startswith("{"):
            try:
                raw = json.loads(line)
            except ValueError:
                continue  # The last line of a log that is still being written.
            if "snapshot" in raw:
                found.append(_reading(raw))
    return sorted(found, key=lambda reading: reading.at)


def _reading(raw: dict[str, Any]) -> Reading:
    snapshot = raw["snapshot"]
    engine, requests = snapshot["engine"], snapshot["requests"]
    finished = sum(int(requests["finished"].get(reason, 0)) for reason in ("length", "stop"))
    return Reading(
        at=float(raw["at"]),
        wall=float(raw["wall"]),
        boot=f"{snapshot['pod_uid']}/{snapshot['boot_id']}",
        cap=int(engine["max_num_active_seqs"]),
        ceiling=int(engine["max_num_seqs"]),
        budget=int(engine["max_num_scheduled_tokens"]),
        running=int(engine["running"]),
        waiting=int(engine["waiting"]),
        kv_usage=engine["kv"]["used_blocks"] / max(1, engine["kv"]["num_blocks"]),
        preemptions=int(engine["preemptions"]),
        arrived=int(requests["arrived"]),
        finished=finished,
        tokens=int(requests["generation_tokens"]),
        itl=Digest.parse(requests["itl"]),
        ttft=Digest.parse(requests["ttft"]),
        queue=Digest.parse(requests["queue"]),
        retunes=dict(engine["retunes"]),
        versions={"vllm": snapshot["vllm"], "tuner": snapshot["tuner"]},
    )


def near(readings: Sequence[Reading], at: float) -> Reading | None:
    """The reading closest to a moment, or None when none lies within NEAR_S."""
    if not readings:
        return None
    i = bisect.bisect_left(readings, at, key=lambda reading: reading.at)
    best = min(readings[max(0, i - 1) : i + 1], key=lambda reading: abs(reading.at - at))
    return best if abs(best.at - at) <= NEAR_S else None


def between(readings: Sequence[Reading], start: float, end: float) -> list[Reading]:
    """The readings from `start` to `end`, both included."""
    return [reading for reading in readings if start <= reading.at <= end]


def difference(earlier: Reading, later: Reading) -> Window | None:
    """What happened between two readings; None when the engine restarted in between."""
    if earlier.boot != later.boot:
        return None
    return Window(
        start=earlier.at,
        end=later.at,
        itl=later.itl - earlier.itl,
        tokens=later.tokens - earlier.tokens,
        preemptions=later.preemptions - earlier.preemptions,
        cap=later.cap,
    )


def window(readings: Sequence[Reading], start: float, end: float) -> Window | None:
    """The window between two moments, or None when it is not known."""
    first, last = near(readings, start), near(readings, end)
    return None if first is None or last is None else difference(first, last)


def windows(
    readings: Sequence[Reading], start: float, end: float, width: float = WINDOW_S
) -> list[Window | None]:
    """All whole windows of `width` seconds that fit between two moments, side by side."""
    count = int((end - start) / width)
    return [window(readings, start + i * width, start + (i + 1) * width) for i in range(count)]


def load_span(readings: Sequence[Reading], after: float) -> Span | None:
    """Where a load that began after a moment lies, judged by the engine's own counts; None when there was
    none.

    The start is the last reading before a request arrived, so it is never later than the truth.
    """
    later = [reading for reading in readings if reading.at >= after]
    if not later:
        return None
    quiet = [reading for reading in later if reading.arrived == later[0].arrived]
    queued = [reading for reading in later if reading.waiting > 0]
    if not queued or queued[-1].at <= quiet[-1].at:
        return None
    return Span(quiet[-1].at, queued[-1].at)


def seconds_to_hold(readings: Sequence[Reading], span: Span, statistic: str, target_s: float) -> float | None:
    """Seconds from the load's start until `HOLDING_WINDOWS` windows in a row hold; None when they never do.

    Asked for once a second; the answer is the start of the first of those windows.
    """
    held_s = HOLDING_WINDOWS * WINDOW_S
    for second in range(int(span.end - span.start - held_s) + 1):
        start = span.start + second
        found = windows(readings, start, start + held_s)
        if len(found) == HOLDING_WINDOWS and all(
            w is not None and w.meets(statistic, target_s) for w in found
        ):
            return float(second)
    return None


def changes(values: Iterable[int]) -> int:
    """How often a value differed from the one before."""
    return sum(before != after for before, after in pairwise(values))
