"""One replica's figures over time: gauges, counters and histograms, summed over its engines."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llamaserver.observe import names
from llamaserver.observe.distribution import MismatchError, subtract, without_zeros
from llamaserver.observe.series import Recorded, Series
from llamaserver.observe.types import Distribution
from llamaserver.simulate.replay.history import Interval

Values = Mapping[float, float]
"""By the time that was asked for."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """When somebody asked, and when what he got was scraped; seconds since the epoch."""

    asked: float
    at: float


def first_of(recorded: Recorded, candidates: Sequence[str], suffix: str = "") -> Sequence[Series]:
    """The series of the first candidate that has any."""
    return next((found for name in candidates if (found := recorded.get(name + suffix))), ())


def summed(some: Sequence[Series]) -> Values:
    """The sum over series at each time. What is no number, or below zero, is left out."""
    sums: dict[float, float] = defaultdict(float)
    for series in some:
        for t, value in series.points:
            if math.isfinite(value) and value >= 0.0:
                sums[t] += value
    return dict(sums)


def _buckets(recorded: Recorded, candidates: Sequence[str]) -> Histogram | None:
    """The first candidate that has buckets, summed over engines."""
    for name in candidates:
        if some := recorded.get(f"{name}_bucket"):
            edges: dict[float, list[Series]] = defaultdict(list)
            for series in some:
                edges[_edge(series)].append(series)
            cumulative = {edge: summed(of) for edge, of in edges.items() if not math.isnan(edge)}
            return Histogram(cumulative, summed(recorded.get(f"{name}_sum", ())))
    return None


def _edge(series: Series) -> float:
    try:
        return float(series.labels.get("le", ""))
    except ValueError:
        return math.nan


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative buckets by upper edge, and sums; each by time."""

    cumulative: Mapping[float, Values]
    sums: Values

    def at(self, t: float) -> Distribution | None:
        """What was observed until `t`; None where it was not recorded whole, or contradicts itself."""
        edges = tuple(sorted(edge for edge, values in self.cumulative.items() if t in values))
        total = self.sums.get(t)
        if total is None or not edges or not math.isinf(edges[-1]):
            return None
        counts = [round(self.cumulative[edge][t]) for edge in edges]
        single = tuple(b - a for a, b in zip([0, *counts], counts, strict=False))
        return None if min(single) < 0 else Distribution(counts[-1], total, edges, single, exact=False)

    def between(self, old: float, new: float, *, restarted: bool) -> Distribution | None:
        later, earlier = self.at(new), self.at(old)
        if restarted or later is None:
            return later
        try:
            return None if earlier is None else subtract(later, earlier)
        except MismatchError:
            return None


@dataclass(frozen=True, slots=True)
class Figures:
    """One replica's figures over time."""

    gauges: Mapping[str, Values]
    counters: Mapping[str, Values]
    histograms: Mapping[str, Histogram | None]

    @classmethod
    def of(cls, recorded: Recorded) -> Figures:
        def plain(candidates: Sequence[str], suffix: str = "") -> Values:
            return summed(first_of(recorded, candidates, suffix))

        return cls(
            {"running": plain(names.RUNNING), "waiting": plain(names.WAITING), "kv": _worst(recorded)},
            {
                "finished": plain(names.FINISHED),
                "generated": plain(names.GENERATION_TOKENS),
                "prompt_tokens": plain(names.PROMPT_TOKENS),
                "cached_tokens": plain(names.CACHED_PROMPT_TOKENS),
                "preemptions": plain(names.PREEMPTIONS),
                "rejected": plain(names.REJECTED),
                "steps": plain(names.STEPS, "_count"),
                "itl": plain(names.ITL, "_count"),
            },
            {
                "itl": _buckets(recorded, names.ITL),
                "tpot": _buckets(recorded, names.TPOT),
                "ttft": _buckets(recorded, names.TTFT),
                "prompts": _buckets(recorded, names.PROMPT_LENGTHS),
                "outputs": _buckets(recorded, names.OUTPUT_LENGTHS),
            },
        )

    def whole(self, asked: float) -> bool:
        """Whether all that is needed was recorded then."""
        needed = (self.gauges["running"], self.gauges["waiting"])
        return all(asked in v for v in (*needed, self.counters["finished"], self.counters["generated"]))

    def between(self, old: Scrape, new: Scrape, began: float, step_s: float, *, first: bool) -> Interval:
        """What was added from one scrape to the next; both have to be `whole`."""
        restarted = any(
            values[new.asked] < values[old.asked]
            for values in self.counters.values()
            if new.asked in values and old.asked in values
        )

        def gauge(name: str) -> tuple[float, float]:
            values = self.gauges[name]
            return (0.0 if restarted else values[old.asked]), values[new.asked]

        def added(name: str) -> float | None:
            before, after = self.counters[name].get(old.asked), self.counters[name].get(new.asked)
            if restarted:
                return after
            return None if before is None or after is None else after - before

        def spread(name: str) -> Distribution | None:
            histogram = self.histograms[name]
            return None if histogram is None else histogram.between(old.asked, new.asked, restarted=restarted)

        # When the new life began is not known: at most a step ago.
        start = max(old.at, new.at - step_s) if restarted else old.at
        return Interval(
            step=round((new.asked - began) / step_s),
            start=max(0.0, start - began),
            end=new.at - began,
            first=first,
            restarted=restarted,
            running=gauge("running"),
            waiting=gauge("waiting"),
            finished=added("finished") or 0.0,
            generated=added("generated") or 0.0,
            prompt_tokens=added("prompt_tokens"),
            cached_tokens=added("cached_tokens"),
            preemptions=added("preemptions"),
            rejected=added("rejected"),
            steps=added("steps"),
            kv_usage=self.gauges["kv"].get(new.asked),
            itl=spread("itl"),
            tpot=_paced(spread("tpot"), spread("outputs")),
            ttft=spread("ttft"),
            prompts=spread("prompts"),
            outputs=spread("outputs"),
        )


def _paced(tpot: Distribution | None, outputs: Distribution | None) -> Distribution | None:
    """Without the requests of a single token, which are in there as 0 s, where it is known how many."""
    if tpot is None or outputs is None or outputs.edges[0] != 1.0:
        return tpot
    return without_zeros(tpot, outputs.counts[0])


def _worst(recorded: Recorded) -> Values:
    """The fullest KV cache of a replica's engines."""
    worst: dict[float, float] = {}
    for series in first_of(recorded, names.KV_USAGE):
        for t, value in series.points:
            if 0.0 <= value <= 1.0:
                worst[t] = max(worst.get(t, 0.0), value)
    return worst
