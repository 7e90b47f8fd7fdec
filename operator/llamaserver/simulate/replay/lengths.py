"""Lengths of requests, drawn from what histograms tell of those that finished about then.

Of a finished request Prometheus knows in which bucket its prompt and its output were, each for itself. A
length is drawn from the buckets by their counts, inside of a bucket evenly over its logarithm, and all of
them are multiplied by what makes their mean that of the histogram, which is exact.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from llamaserver.observe.distribution import MismatchError, add
from llamaserver.observe.types import Distribution
from llamaserver.simulate.replay.history import History, Interval

ENOUGH = 200
"""Finished requests whose lengths are taken together."""
OPEN = 2.0
"""The last bucket is taken to end at so many times its lower edge."""


@dataclass(frozen=True)
class Lengths:
    """Draws one length, in tokens."""

    edges: Sequence[tuple[float, float]]
    cumulative: Sequence[int]
    factor: float

    def draw(self, rng: random.Random) -> int:
        low, high = self.edges[bisect_left(self.cumulative, rng.random() * self.cumulative[-1])]
        return max(1, round(self.factor * low * math.exp(rng.random() * math.log(high / low))))


@dataclass(frozen=True)
class Around:
    """Where only a mean is known, in tokens: exponential around it."""

    mean: float

    def draw(self, rng: random.Random) -> int:
        return max(1, round(self.mean * rng.expovariate(1.0)))


Drawn = Lengths | Around


@dataclass(frozen=True)
class Pool:
    """What requests are like until some time, in seconds from the start."""

    until: float
    prompts: Drawn
    outputs: Drawn


def lengths(d: Distribution) -> Lengths | None:
    """None where nothing was observed."""
    filled = [(i, n) for i, n in enumerate(d.counts) if n > 0]
    if not filled or d.sum_s <= 0.0:
        return None
    edges = [_edges(d, i) for i, _ in filled]
    expected = sum(n * _mean(*pair) for (_, n), pair in zip(filled, edges, strict=True))
    return Lengths(edges, list(accumulate(n for _, n in filled)), d.sum_s / expected)


def _edges(d: Distribution, i: int) -> tuple[float, float]:
    low = max(0.5, d.edges[i - 1]) if i > 0 else 0.5
    return low, d.edges[i] if math.isfinite(d.edges[i]) else OPEN * low


def _mean(low: float, high: float) -> float:
    """Of a variable whose logarithm is even between the two."""
    return (high - low) / math.log(high / low) if high > low else low


def pools(history: History) -> list[Pool]:
    """Lengths over time, in the order of their ends; the last one goes on for ever.

    Empty where nothing finished all along.
    """
    parts: list[list[Interval]] = [[]]
    for interval in history.intervals:
        if sum(i.finished for i in parts[-1]) >= ENOUGH:
            parts.append([])
        parts[-1].append(interval)
    if len(parts) > 1 and sum(i.finished for i in parts[-1]) < ENOUGH:
        rest = parts.pop()
        parts[-1] += rest
    found = [pool for part in parts if (pool := _pool(part)) is not None]
    return [*found[:-1], replace(found[-1], until=math.inf)] if found else []


def _pool(part: Sequence[Interval]) -> Pool | None:
    finished = sum(i.finished for i in part)
    if finished <= 0:
        return None
    prompts = _drawn([i.prompts for i in part], _sum([i.prompt_tokens for i in part]) / finished)
    outputs = _drawn([i.outputs for i in part], sum(i.generated for i in part) / finished)
    return Pool(part[-1].end, prompts, outputs)


def _sum(values: Sequence[float | None]) -> float:
    return sum(v for v in values if v is not None)


def _drawn(distributions: Sequence[Distribution | None], mean: float) -> Drawn:
    merged = together(distributions)
    found = lengths(merged) if merged is not None else None
    return found or Around(max(1.0, mean))


def together(distributions: Sequence[Distribution | None]) -> Distribution | None:
    """The sum of those that are known and have the buckets of the first of them."""
    merged: Distribution | None = None
    for one in distributions:
        if one is None:
            continue
        try:
            merged = one if merged is None else add(merged, one)
        except MismatchError:
            continue
    return merged
