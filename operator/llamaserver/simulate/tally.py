"""Cumulative figures as an engine keeps them: distributions of latencies, and sums over its steps."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

ITL_EDGES = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 80.0),
)
"""Upper bucket edges in seconds of vLLM's histograms of latencies."""
QUEUE_EDGES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 60.0, 240.0, 960.0)
LO, GROWTH = 1e-4, 1.04
LOG_GROWTH = math.log(GROWTH)
BELOW = -1
"""The digest's index of everything below LO."""


def length_edges(longest: int) -> tuple[int, ...]:
    """Upper bucket edges of vLLM's histograms of lengths: 1, 2, 5, 10, ... up to the model's in tokens."""
    series = (digit * 10**power for power in range(len(str(longest))) for digit in (1, 2, 5))
    return tuple(edge for edge in series if edge <= longest)


class Histogram:
    """A cumulative histogram, as `/metrics` has it."""

    __slots__ = ("buckets", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges` are the upper ones of all buckets but the last, which has none."""
        self.edges = edges
        self.buckets = [0] * (len(edges) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, value: float, times: int = 1) -> None:
        self.buckets[bisect_left(self.edges, value)] += times
        self.total += value * times

    def text(self, name: str) -> list[str]:
        """Its lines in `/metrics`."""
        own = 'engine="0",model_name="m"'
        bounds = (*(repr(float(edge)) for edge in self.edges), "+Inf")
        lines = [
            f'vllm:{name}_bucket{{engine="0",le="{le}",model_name="m"}} {float(n)}'
            for le, n in zip(bounds, accumulate(self.buckets), strict=True)
        ]
        return [
            *lines,
            f"vllm:{name}_sum{{{own}}} {self.total}",
            f"vllm:{name}_count{{{own}}} {float(self.count)}",
        ]


class Tally(Histogram):
    """A histogram of seconds with a cumulative digest of the same, as the tuner's snapshot has it."""

    __slots__ = ("digest",)

    def __init__(self, edges: Sequence[float]) -> None:
        super().__init__(edges)
        self.digest: defaultdict[int, int] = defaultdict(int)

    def add(self, value: float, times: int = 1) -> None:
        # Not by way of the histogram's own: nothing else is done as often.
        self.buckets[bisect_left(self.edges, value)] += times
        self.total += value * times
        self.digest[int(math.log(value / LO) / LOG_GROWTH) if value >= LO else BELOW] += times

    def json(self) -> dict[str, object]:
        """Its part of the snapshot."""
        counts = {str(i): n for i, n in sorted(self.digest.items())}
        return {"lo": LO, "growth": GROWTH, "count": self.count, "sum": self.total, "counts": counts}


class Moments:
    """Exact sums over steps of B, K, P, y and of their products; y in microseconds."""

    __slots__ = ("sums",)
    KEYS = ("n", "B", "K", "P", "y", "BB", "BK", "BP", "By", "KK", "KP", "Ky", "PP", "Py", "yy")

    def __init__(self) -> None:
        self.sums: tuple[int, ...] = (0,) * len(self.KEYS)

    def add(self, b: int, k: int, p: int, y: int) -> None:
        n, sb, sk, sp, sy, bb, bk, bp, by, kk, kp, ky, pp, py, yy = self.sums
        # Written out, since it is done at every step.
        self.sums = (
            n + 1, sb + b, sk + k, sp + p, sy + y,
            bb + b * b, bk + b * k, bp + b * p, by + b * y, kk + k * k,
            kp + k * p, ky + k * y, pp + p * p, py + p * y, yy + y * y,
        )  # fmt: skip

    @property
    def steps(self) -> int:
        return self.sums[0]

    def json(self) -> dict[str, int]:
        return dict(zip(self.KEYS, self.sums, strict=True))
