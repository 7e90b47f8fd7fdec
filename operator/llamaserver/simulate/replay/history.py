"""What is known of a fleet over some time: what each replica did from one scrape to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llamaserver.observe.types import Distribution

GAP_STEPS = 2.5
"""An interval of more steps than this is a gap in the history."""


@dataclass(frozen=True, slots=True)
class Interval:
    """One replica between two scrapes; times in seconds from the start of the history.

    Figures are what was added in between; None where they were not recorded.
    """

    step: int
    """In which step of the history it ended."""
    start: float
    end: float
    first: bool
    """Whether the replica was not seen before it."""
    restarted: bool
    running: tuple[float, float]
    """At the start and at the end; the former zero after a restart. Likewise `waiting`."""
    waiting: tuple[float, float]
    finished: float
    generated: float
    prompt_tokens: float | None
    cached_tokens: float | None
    preemptions: float | None
    rejected: float | None
    steps: float | None
    kv_usage: float | None
    """Share of the KV cache in use at the end, 0 to 1."""
    itl: Distribution | None
    tpot: Distribution | None
    """Times per output token of the requests that finished with more than one."""
    ttft: Distribution | None
    prompts: Distribution | None
    """Lengths in tokens of the requests that finished; likewise `outputs`."""
    outputs: Distribution | None

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def in_hand_before(self) -> float:
        """Requests that were there when it began."""
        return self.running[0] + self.waiting[0]

    @property
    def came(self) -> float:
        """Requests that came: those that finished, and what there is more of. Below zero where gauges and
        counters are of slightly different moments.
        """
        return self.finished + self.running[1] + self.waiting[1] - self.in_hand_before


@dataclass(frozen=True, slots=True)
class Replica:
    """One scraped engine pod."""

    name: str
    intervals: Sequence[Interval]
    kv_tokens: int | None
    cap: float | None
    """The median of the caps that the tuner told; None without a tuner. Likewise the two below."""
    ceiling: float | None
    budget: float | None
    cap_moved: bool


@dataclass(frozen=True, slots=True)
class History:
    """What is known of a fleet, and what of it is missing."""

    began: float
    """Seconds since the epoch."""
    span_s: float
    step_s: float
    replicas: Sequence[Replica]
    absent: Sequence[str]
    """Metrics that are good to have and were not recorded."""

    @property
    def intervals(self) -> list[Interval]:
        """Of all replicas, in the order of their ends."""
        return sorted((i for r in self.replicas for i in r.intervals), key=lambda i: i.end)

    @property
    def gaps(self) -> list[Interval]:
        return [i for i in self.intervals if i.seconds > GAP_STEPS * self.step_s]

    @property
    def restarts(self) -> int:
        return sum(i.restarted for i in self.intervals)

    @property
    def steps(self) -> int:
        return max(1, math.ceil(self.span_s / self.step_s - 1e-9))

    def serving(self) -> list[int]:
        """How many replicas were there in the middle of each step, the first step first."""
        counts = [0] * self.steps
        for i in self.intervals:
            low = max(0, math.ceil(i.start / self.step_s - 0.5))
            high = min(self.steps, math.ceil(i.end / self.step_s - 0.5))
            for k in range(low, high):
                counts[k] += 1
        return counts

    @property
    def replica_s(self) -> float:
        return sum(i.seconds for i in self.intervals)
