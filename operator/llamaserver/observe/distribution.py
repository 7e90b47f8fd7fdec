"""Cumulative distributions: subtract, add, and ask for quantiles.

A digest of the tuner and a Prometheus histogram take the same form (`Distribution`), so that everything after
parsing treats them alike. What differs is how much a quantile may be trusted, and `estimate` says that.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

from llamaserver.observe.types import Distribution


class MismatchError(ValueError):
    """Two distributions whose buckets cannot be compared, or a count that went down."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantile in seconds and how it is to be read: "=" (interpolated), "<=" (at most), ">=" (at least)."""

    value_s: float
    relation: str = "="


EMPTY = Distribution(count=0, sum_s=0.0, edges=(math.inf,), counts=(0,), exact=True)
"""Nothing observed. Adds to anything exact."""


@lru_cache(maxsize=1024)
def digest_edges(lo: float, growth: float, size: int) -> tuple[float, ...]:
    """Upper edges in seconds of a log-spaced digest's first `size` buckets, the first holding all below `lo`.

    One more edge, +inf, closes the tuple: its bucket is always empty.
    """
    return (*(lo * growth**i for i in range(size)), math.inf)


def _padded(d: Distribution, edges: tuple[float, ...]) -> tuple[int, ...]:
    """The counts of `d` on `edges`, of which its own finite edges must be the beginning."""
    own = d.edges[:-1]
    if d.edges == edges:
        return d.counts
    if own != edges[: len(own)] or d.counts[-1] != 0:
        raise MismatchError("the buckets of two distributions differ")
    return (*d.counts[:-1], *(0 for _ in range(len(edges) - len(own))))


def _common(a: Distribution, b: Distribution) -> tuple[float, ...]:
    return a.edges if len(a.edges) >= len(b.edges) else b.edges


def add(a: Distribution, b: Distribution) -> Distribution:
    """The distribution of both sets of observations. Raises MismatchError when the buckets differ."""
    edges = _common(a, b)
    counts = tuple(x + y for x, y in zip(_padded(a, edges), _padded(b, edges), strict=True))
    return Distribution(a.count + b.count, a.sum_s + b.sum_s, edges, counts, a.exact and b.exact)


def subtract(later: Distribution, earlier: Distribution) -> Distribution:
    """What was observed between two cumulative states. Raises MismatchError when any count went down."""
    edges = _common(later, earlier)
    pairs = zip(_padded(later, edges), _padded(earlier, edges), strict=True)
    counts = tuple(x - y for x, y in pairs)
    sum_s = later.sum_s - earlier.sum_s
    if any(c < 0 for c in counts) or sum_s < -1e-9 * max(1.0, abs(earlier.sum_s)):
        raise MismatchError("a cumulative count went down")
    return Distribution(later.count - earlier.count, max(0.0, sum_s), edges, counts, later.exact)


def without_zeros(d: Distribution, zeros: int) -> Distribution:
    """`d` without so many observations of 0 s, which lie in its first bucket; those that are not there stay
    away.
    """
    gone = min(max(0, zeros), d.counts[0])
    return replace(d, count=d.count - gone, counts=(d.counts[0] - gone, *d.counts[1:])) if gone else d


def mean(d: Distribution) -> float | None:
    """Exact mean in seconds, None without observations."""
    return d.sum_s / d.count if d.count > 0 else None


def estimate(d: Distribution, q: float) -> Estimate | None:
    """The q-quantile, 0 < q < 1; None when nothing was observed or the figures cannot be trusted.

    Inside a bucket the value is interpolated linearly. The first bucket of a coarse histogram only says "at
    most its edge", since its lower end is not zero but unknown; the open last bucket only says "at least the
    edge before it". A positive count with a sum of zero is a known fault of some engines (every observation 0
    s) and gives None.
    """
    if d.count <= 0 or d.sum_s <= 0.0 or not 0.0 < q < 1.0:
        return None
    cumulative = list(accumulate(d.counts))
    rank = q * cumulative[-1]
    i = bisect_left(cumulative, rank)
    if math.isinf(d.edges[i]):
        return Estimate(d.edges[i - 1], ">=") if i > 0 else None
    if i == 0:
        return Estimate(d.edges[0], "<=")
    below = cumulative[i - 1]
    low, high = d.edges[i - 1], d.edges[i]
    return Estimate(low + (high - low) * (rank - below) / d.counts[i])


def quantile(d: Distribution, q: float) -> float | None:
    """The q-quantile in seconds, or None when it is not known. See `estimate` for what a bound means."""
    found = estimate(d, q)
    return None if found is None else found.value_s
