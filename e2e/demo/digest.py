"""The tuner's log-spaced digest, read independently of the operator: differences and quantiles.

Index i of a digest counts durations in [lo * growth^i, lo * growth^(i+1)); -1 counts those below `lo`. With
growth 1.04 a quantile is known to 2 %. Counts are cumulative, so the difference of two readings is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STATISTICS: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Digest:
    """A distribution of durations in seconds."""

    lo: float
    growth: float
    count: int
    total_s: float
    counts: Mapping[int, int]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Digest:
        """Read the form {"lo", "growth", "count", "sum", "counts": {"<index>": n}}."""
        counts = {int(index): int(n) for index, n in raw["counts"].items()}
        return cls(float(raw["lo"]), float(raw["growth"]), int(raw["count"]), float(raw["sum"]), counts)

    def __sub__(self, earlier: Digest) -> Digest:
        """What was added since `earlier`. Raises ValueError when a count fell: another incarnation."""
        if (self.lo, self.growth) != (earlier.lo, earlier.growth):
            raise ValueError("digests of different scales cannot be subtracted")
        counts = {
            i: self.counts.get(i, 0) - earlier.counts.get(i, 0) for i in {*self.counts, *earlier.counts}
        }
        if any(n < 0 for n in counts.values()):
            raise ValueError("a cumulative count fell: the engine restarted in between")
        kept = {index: n for index, n in counts.items() if n}
        return Digest(self.lo, self.growth, sum(kept.values()), self.total_s - earlier.total_s, kept)

    def quantile(self, q: float) -> float | None:
        """The q-quantile in seconds: the geometric middle of the bucket that holds it. None for no values."""
        if not self.count:
            return None
        rank, seen = q * self.count, 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= rank:
                return self.lo * math.pow(self.growth, index + 0.5)
        raise AssertionError("the counts of a digest add up to its count")

    def statistic(self, name: str) -> float | None:
        """`mean` or one of `STATISTICS`, in seconds."""
        if name == "mean":
            return self.total_s / self.count if self.count else None
        return self.quantile(STATISTICS[name])

    def percentiles_ms(self) -> dict[str, float]:
        """p50, p95 and p99 in milliseconds; empty for no values."""
        found = {name: self.statistic(name) for name in ("p50", "p95", "p99")}
        return {name: round(1e3 * value, 2) for name, value in found.items() if value is not None}
