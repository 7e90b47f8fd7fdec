"""A fading line of latency over streams, and what a load is like: figures remembered between ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY_S = 3600.0
INDEPENDENT_S = 10.0
"""Windows so far apart are taken for independent: batches last for a while."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the requests are like; None where the engines do not tell."""

    context: float | None = None
    """Resident tokens of a running sequence."""
    prefill: float | None = None
    """Prompt tokens computed for each generated token."""


@dataclass(frozen=True, slots=True)
class Line:
    """Fading sums over windows, weighed by their seconds: x streams per engine, y the mean latency (s)."""

    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0
    windows: float = 0.0

    def after(self, seconds: float, x: float, y: float) -> Line:
        """The sums with one more window."""
        k = math.exp(-seconds / MEMORY_S)
        return Line(
            k * self.n + seconds,
            k * self.x + seconds * x,
            k * self.y + seconds * y,
            k * self.xx + seconds * x * x,
            k * self.xy + seconds * x * y,
            k * self.yy + seconds * y * y,
            k * self.windows + 1.0,
        )

    def reaches(self, allowed_s: float) -> tuple[float, float] | None:
        """The streams at which the mean latency is `allowed_s`, and the standard error of the latency there;
        None where no slope is known.
        """
        if self.n <= 0.0:
            return None
        x, y = self.x / self.n, self.y / self.n
        spread, shared = self.xx / self.n - x * x, self.xy / self.n - x * y
        if x <= 0.0 or spread <= 1e-4 * x * x or shared <= 0.0:
            return None
        # No latency is negative without streams: where noise says so, the line goes through the origin.
        slope = min(shared / spread, y / x)
        rest = y - slope * x
        left = max(0.0, self.yy / self.n - y * y - slope * (2.0 * shared - slope * spread))
        found = (allowed_s - rest) / slope
        worth = max(1.0, min(self.windows, self.n / INDEPENDENT_S))
        return found, math.sqrt(left / worth * (1.0 + (found - x) ** 2 / spread))
