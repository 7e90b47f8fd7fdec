"""How many requests come, and how many will have come to be when a replica that is asked for now is ready.

Arrivals are counted, so their scatter is known: at a steady rate their number is about Poisson's. The last
MEMORY_S are explained in three ways, as one rate, as a jump from one rate to another, and as a straight line;
a jump or a line has to explain so much more than one rate that chance does not. After a jump only what came
since counts, and a trend is sought in that. So a step is not taken for a ramp that goes on.

The slope of a line is used less SURE standard errors of itself, and the forecast is at most GROWTH_MAX times
the present rate: noise neither makes a forecast nor lets it run away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import sub
from typing import NamedTuple

MEMORY_S = 120.0
LEAST_S = 4.0
"""A rate is told by no less than this."""
TREND_S = 30.0
"""A trend is told by no less than this."""
JUMP, LINE = 16.0, 12.0
"""How much better than one rate, in squared standard errors: a jump can be anywhere, so chance finds one more
easily than a line.
"""
SURE = 1.0
GROWTH_MAX = 1.5


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that came before `at`, and the seconds of the whole fleet in which they did."""

    at: float
    requests: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Trend:
    """The rate of arrivals now and how it changes, per second."""

    rate: float
    error: float
    """Standard error of `rate`."""
    slope: float = 0.0
    """What can be relied on of its growth, or of its fall."""
    jumped: float = 0.0
    """By how much it last jumped within MEMORY_S; 0 when it did not."""

    @property
    def rising(self) -> bool:
        return self.slope > 0.0 or self.jumped > 0.0

    def ahead(self, seconds: float) -> float:
        """The rate to be expected in so many seconds, never below the present one."""
        return min(GROWTH_MAX * self.rate, self.rate + max(0.0, self.slope) * seconds)


class _Sums(NamedTuple):
    """Weighted sums of a straight line over t: weights are seconds, values requests per second."""

    w: float = 0.0
    t: float = 0.0
    tt: float = 0.0
    y: float = 0.0
    ty: float = 0.0
    yy: float = 0.0

    def plus(self, a: Arrivals, origin: float) -> _Sums:
        w, y, t = a.seconds, a.requests, a.at - a.seconds / 2.0 - origin
        return _Sums(
            self.w + w, self.t + w * t, self.tt + w * t * t, self.y + y, self.ty + t * y, self.yy + y * y / w
        )

    def since(self, before: _Sums) -> _Sums:
        return _Sums(*map(sub, self, before))

    @property
    def rate(self) -> float:
        return self.y / self.w

    @property
    def spread(self) -> float:
        return max(1e-12, self.tt - self.t * self.t / self.w)

    @property
    def slope(self) -> float:
        return (self.ty - self.t * self.y / self.w) / self.spread

    def rest(self) -> float:
        """Squared distance from one rate."""
        return max(0.0, self.yy - self.y * self.y / self.w)

    def rest_of_line(self) -> float:
        return max(0.0, self.rest() - self.slope**2 * self.spread)


def trend(seen: Sequence[Arrivals], now: float) -> Trend | None:
    """The rate and its trend; None while too little was seen."""
    told = [a for a in seen if a.seconds > 0.0 and a.at > now - MEMORY_S]
    if sum(a.seconds for a in told) < LEAST_S:
        return None
    sums = list(accumulate(told, lambda so_far, a: so_far.plus(a, now), initial=_Sums()))
    jumped = 0.0
    while (split := _jump(sums)) is not None:
        before, after = sums[split], sums[-1].since(sums[split])
        jumped = after.rate - before.rate
        sums = [part.since(before) for part in sums[split:]]
    return replace(_line(sums[-1], len(sums) - 1), jumped=jumped)


def _jump(sums: Sequence[_Sums]) -> int | None:
    """Where the rate jumped; None where one rate, or a line, explains as much."""
    whole, split = sums[-1], _split(sums)
    if split is None:
        return None
    parts = sums[split].rest() + whole.since(sums[split]).rest()
    line = whole.rest_of_line()
    scatter = _scatter(min(parts, line), whole.rate, len(sums) - 3)
    return split if parts < line and whole.rest() - parts >= JUMP * scatter else None


def _split(sums: Sequence[_Sums]) -> int | None:
    """Where one jump explains most, with LEAST_S on both sides."""
    w, y = sums[-1].w, sums[-1].y
    best, most = None, -math.inf
    for i, part in enumerate(sums):
        if part.w < LEAST_S or w - part.w < LEAST_S:
            continue
        # The squares that are the same for every place are left out.
        explained = part.y * part.y / part.w + (y - part.y) ** 2 / (w - part.w)
        if explained > most:
            best, most = i, explained
    return best


def _scatter(rest: float, rate: float, freedom: int) -> float:
    """Variance of a second's arrivals: at least Poisson's, more where they come in bursts."""
    return max(rate, rest / max(1, freedom), 1e-9)


def _line(sums: _Sums, count: int) -> Trend:
    """One rate, or a straight line where that explains enough, at its end: times are before now."""
    scatter = _scatter(sums.rest_of_line(), sums.rate, count - 2)
    error = math.sqrt(scatter / sums.w)
    if sums.w < TREND_S or sums.slope**2 * sums.spread < LINE * scatter:
        return Trend(sums.rate, error)
    doubt = math.sqrt(scatter / sums.spread)
    slope = math.copysign(max(0.0, abs(sums.slope) - SURE * doubt), sums.slope)
    age = -sums.t / sums.w
    return Trend(max(0.0, sums.rate + slope * age), math.hypot(error, age * doubt), slope)


def busiest(seen: Sequence[Arrivals], seconds: float) -> float:
    """The highest rate of any stretch of so many seconds; that of all when they are fewer; 0 for nothing."""
    told = [a for a in seen if a.seconds > 0.0]
    best, first = 0.0, 0
    requests = lasted = 0.0
    for a in told:
        requests, lasted = requests + a.requests, lasted + a.seconds
        while lasted - told[first].seconds >= seconds:
            requests, lasted, first = requests - told[first].requests, lasted - told[first].seconds, first + 1
        if lasted >= seconds:
            best = max(best, requests / lasted)
    return best if best > 0.0 or not told else sum(a.requests for a in told) / sum(a.seconds for a in told)
