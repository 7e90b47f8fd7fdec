"""A log-spaced digest of durations: constant memory, 2 % relative error, exact under subtraction.

Bucket `i` holds the values in `[LO * GROWTH**i, LO * GROWTH**(i + 1))`; values below `LO` are in bucket -1.
Counts only grow, so the difference of two digests of the same incarnation is the digest of what happened in
between, and digests of several engines add. A value is known to within a factor of sqrt(GROWTH) of its
bucket's geometric middle: 2 %. (The scheme of DDSketch: Masson, Rim, Lee, "DDSketch: a fast and
fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

LO = 1e-4
"""Seconds. Nothing an engine does to a client is faster."""
GROWTH = 1.04

_SCALE = 1.0 / math.log(GROWTH)
_FEW = 8


def bucket_of(value: float) -> int:
    """Return the bucket of a duration in seconds."""
    return -1 if value < LO else int(math.log(value / LO) * _SCALE)


class Digest:
    """Cumulative counts of durations in seconds. Never reset; not thread-safe: one thread writes and
    reads."""

    __slots__ = ("_counts", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._counts: dict[int, int] = {}

    def add(self, value: float, times: int = 1) -> None:
        """Count `value` (seconds) `times` times. A value that is not finite says nothing and is left out."""
        if not math.isfinite(value):
            return
        bucket = bucket_of(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + times
        self.count += times
        self.total += value * times

    def add_all(self, values: Sequence[float]) -> None:
        """Count all `values`.

        The sequences of one step mostly share one latency to the bit, because they share the time stamps of
        the step and of the one before, so equal values are grouped first: a batch of 256 costs a few
        microseconds then, and some twenty when half of its latencies differ.
        """
        total = sum(values)
        if len(values) < _FEW or not math.isfinite(total):
            for value in values:
                self.add(value)
            return
        counts, logarithm = self._counts, math.log
        for value, times in Counter(values).items():
            bucket = -1 if value < LO else int(logarithm(value / LO) * _SCALE)
            counts[bucket] = counts.get(bucket, 0) + times
        self.count += len(values)
        self.total += total

    def to_json(self) -> dict[str, Any]:
        """Return the form of the snapshot. A copy: later additions do not show in it."""
        counts = {str(bucket): self._counts[bucket] for bucket in sorted(self._counts)}
        return {"lo": LO, "growth": GROWTH, "count": self.count, "sum": self.total, "counts": counts}
