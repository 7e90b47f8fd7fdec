"""How a history did: exact where counters tell it, between two edges where only buckets do."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from llamaserver.control import Objective
from llamaserver.control.answers import enough
from llamaserver.control.objective import QUANTILES
from llamaserver.observe.distribution import Estimate, estimate, mean
from llamaserver.observe.types import Distribution
from llamaserver.simulate.replay.history import History, Interval
from llamaserver.simulate.replay.lengths import together

Range = tuple[float, float]
"""At least, and at most. NaN where nothing is known."""
UNKNOWN = (math.nan, math.nan)


@dataclass(frozen=True)
class Judged:
    """One step of the history; latencies in seconds."""

    at: float
    statistic: Range
    """The declared statistic of all tokens of the step, or of the requests that finished in it."""
    missed: bool | None
    """Whether the objective was; None where the target lies inside the bucket that decides it."""


@dataclass(frozen=True)
class Was:
    """The figures of the history, as Outcome has them of a run."""

    steps: Sequence[Judged]
    missed: Range
    """Share of steps with tokens (with enough requests) that missed the objective."""
    itl_mean_s: float
    itl: Sequence[Range]
    """p50, p95 and p99."""
    ttft: Sequence[Estimate | None]
    """p50 and p95."""
    tokens_per_s: float
    replica_hours: float
    preemptions: float | None
    arrivals: float
    waiting_most: float
    running_mean: float
    """Over all replicas."""


def was(history: History, objective: Objective) -> Was:
    """What the history says of itself."""
    steps = _by_step(history, objective)
    known = [s.missed for s in steps]
    itl = together([i.itl for i in history.intervals])
    ttft = together([i.ttft for i in history.intervals])
    average = mean(itl) if itl is not None else None
    preemptions = [i.preemptions for i in history.intervals if i.preemptions is not None]
    return Was(
        steps=steps,
        missed=_share(known) if objective.itl_s is not None else UNKNOWN,
        itl_mean_s=math.nan if average is None else average,
        itl=[UNKNOWN if itl is None else bounds(itl, q) for q in (0.5, 0.95, 0.99)],
        ttft=[None if ttft is None else estimate(ttft, q) for q in (0.5, 0.95)],
        tokens_per_s=sum(i.generated for i in history.intervals) / history.span_s,
        replica_hours=history.replica_s / 3600,
        preemptions=sum(preemptions) if preemptions else None,
        arrivals=sum(max(0.0, i.came) for i in history.intervals),
        waiting_most=max(sum(i.waiting[1] for i in some) for some in _grouped(history).values()),
        running_mean=sum(i.seconds * sum(i.running) / 2 for i in history.intervals) / history.span_s,
    )


def bounds(d: Distribution, q: float) -> Range:
    """Between which bucket edges the q-quantile lies."""
    if d.count <= 0:
        return UNKNOWN
    i = bisect_left(list(accumulate(d.counts)), q * d.count)
    return (d.edges[i - 1] if i > 0 else 0.0), d.edges[i]


def beyond(d: Distribution, target: float) -> Range:
    """Which share is above the target, at least and at most; the same where the target is an edge."""
    if d.count <= 0:
        return UNKNOWN
    low = sum(n for lower, n in zip((0.0, *d.edges), d.counts, strict=False) if lower >= target * (1 - 1e-9))
    high = sum(n for edge, n in zip(d.edges, d.counts, strict=True) if edge > target * (1 + 1e-9))
    return low / d.count, high / d.count


def _by_step(history: History, objective: Objective) -> list[Judged]:
    found, waiting = [], list[Distribution | None]()
    least = enough(objective.itl_statistic) if objective.of_requests else 1
    for step, some in sorted(_grouped(history).items()):
        waiting += [i.tpot if objective.of_requests else i.itl for i in some]
        d = together(waiting)
        if d is not None and d.count >= least and d.sum_s > 0.0:
            found.append(_judged(step * history.step_s, d, objective))
        if d is None or d.count == 0 or d.count >= least:
            waiting = []
    return found


def _judged(at: float, d: Distribution, objective: Objective) -> Judged:
    q, target = QUANTILES.get(objective.itl_statistic), objective.itl_s
    if q is None:
        average = d.sum_s / d.count
        return Judged(at, (average, average), None if target is None else average > target)
    if target is None:
        return Judged(at, bounds(d, q), None)
    least, most = beyond(d, target)
    missed = True if least > 1.0 - q else False if most <= 1.0 - q else None
    return Judged(at, bounds(d, q), missed)


def _grouped(history: History) -> dict[int, list[Interval]]:
    groups: dict[int, list[Interval]] = defaultdict(list)
    for interval in history.intervals:
        groups[interval.step].append(interval)
    return groups


def _share(known: Sequence[bool | None]) -> Range:
    if not known:
        return UNKNOWN
    surely, unsure = sum(m is True for m in known), sum(m is None for m in known)
    return surely / len(known), (surely + unsure) / len(known)
