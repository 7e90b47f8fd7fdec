"""The queueing model of llm-d's Workload Variant Autoscaler: a model of a replica, fitted as it serves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llamaserver.control.linalg import Matrix, Vector, combine, diagonal, dot, inverse, quadratic, times
from llamaserver.simulate.rules.seen import FleetSeen, Traffic

Parameters = tuple[float, float, float]
"""alpha, beta, gamma: seconds of an iteration at rest, per token computed, per token read from the cache."""
Pair = tuple[float, float]
"""Of TTFT and ITL."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Its model of a replica under Poisson arrivals of requests of one size, with
    rho = rate (beta (i + o) + gamma (o + 1) (i + o/2)) and an iteration of alpha / (1 - rho):

        TTFT = iteration + (beta + gamma) i        ITL = iteration + beta + gamma (i + (o + 1) / 2)

    This is the closed form that its documentation gives; its code also has a chain of states behind it.
    """

    prompt: float
    output: float
    parameters: Parameters

    def busy(self, rate: float) -> float:
        """rho."""
        _, beta, gamma = self.parameters
        i, o = self.prompt, self.output
        return rate * (beta * (i + o) + gamma * (o + 1.0) * (i + o / 2.0))

    def times(self, rate: float) -> Pair | None:
        """(TTFT, ITL) in seconds; None where the replica cannot keep up."""
        alpha, beta, gamma = self.parameters
        rho = self.busy(rate)
        if rho >= 1.0:
            return None
        iteration = alpha / (1.0 - rho)
        return (
            iteration + (beta + gamma) * self.prompt,
            iteration + beta + gamma * (self.prompt + (self.output + 1.0) / 2.0),
        )

    def largest(self, ttft_s: float, itl_s: float, places: int) -> float:
        """The highest rate that holds both targets with at most `places` requests at once; by bisection."""

        def holds(rate: float) -> bool:
            got = self.times(rate)
            if got is None or got[0] > ttft_s or got[1] > itl_s:
                return False
            return rate * self.output * got[1] <= places

        low, high = 0.0, 1.0 / max(1e-12, self.busy(1.0))
        for _ in range(40):
            middle = (low + high) / 2.0
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low


@dataclass(frozen=True, slots=True)
class Filter:
    """Its extended Kalman filter over (alpha, beta, gamma), seen through (TTFT, ITL), with its defaults.

    Measurements are good to `error` of themselves at `percentile` deviations, parameters wander by `change`
    of themselves an update, an update whose normalised innovation is above `gate` is not believed, and
    parameters stay within a tenth and ten times of what the first measurement suggested: alpha is
    `base` of the ITL, and beta and gamma solve the two equations above.
    """

    error: float = 0.05
    percentile: float = 1.96
    change: float = 0.05
    gate: float = 7.378
    base: float = 0.9
    span: float = 10.0
    first: Parameters | None = None
    now: Parameters | None = None
    covariance: Matrix = ()

    def update(self, seen: Traffic) -> Filter:
        """After one replica's traffic over a while; unchanged where that says nothing."""
        if not seen.told or seen.rate <= 0.0:
            return self
        if self.now is None:
            guess = self._guess(seen)
            if guess is None:
                return self
            return replace(self, first=guess, now=guess, covariance=self._drift(guess))
        predicted = Queue(seen.mean_prompt, seen.mean_output, self.now).times(seen.rate)
        slopes = None if predicted is None else self._slopes(seen, self.now, predicted)
        if predicted is None or slopes is None:
            return self
        return self._corrected(self.now, (seen.mean_ttft_s, seen.mean_itl_s), predicted, slopes)

    def _corrected(self, x: Parameters, z: Pair, predicted: Pair, slopes: Sequence[Vector]) -> Filter:
        """One step of the filter: measured `z` against `predicted`, whose derivatives are `slopes`."""
        p = combine(self.covariance, 1.0, self._drift(x), 1.0)
        spread = [times(p, row) for row in slopes]
        noise = [(self.error * value / self.percentile) ** 2 for value in z]
        s11, s22 = dot(slopes[0], spread[0]) + noise[0], dot(slopes[1], spread[1]) + noise[1]
        s12 = dot(slopes[0], spread[1])
        back = inverse(((s11, s12), (s12, s22)))
        off = [seen - expected for seen, expected in zip(z, predicted, strict=True)]
        if back is None or quadratic(back, off) > self.gate:
            return self
        weights = times(back, off)
        columns = [(spread[0][i], spread[1][i]) for i in range(3)]
        moved = [v + dot(column, weights) for v, column in zip(x, columns, strict=True)]
        taken = tuple(tuple(dot(one, times(back, other)) for other in columns) for one in columns)
        return replace(self, now=self._bounded(moved), covariance=combine(p, 1.0, taken, -1.0))

    def _guess(self, seen: Traffic) -> Parameters | None:
        i, o, itl = seen.mean_prompt, seen.mean_output, seen.mean_itl_s
        alpha = self.base * itl
        both = (seen.mean_ttft_s - alpha) / i
        gamma = (itl - alpha - both) / max(1e-9, i + (o + 1.0) / 2.0 - 1.0)
        beta = both - gamma
        return (alpha, beta, gamma) if min(alpha, beta, gamma) > 0.0 else None

    def _drift(self, x: Parameters) -> Matrix:
        return diagonal([(self.change * value) ** 2 for value in x])

    def _slopes(self, seen: Traffic, x: Parameters, at: Pair) -> Sequence[Vector] | None:
        """The derivatives of (TTFT, ITL) by the parameters, by differences."""
        rows: tuple[list[float], list[float]] = ([], [])
        for k in range(3):
            step = 1e-4 * x[k]
            there = (x[0] + step * (k == 0), x[1] + step * (k == 1), x[2] + step * (k == 2))
            got = Queue(seen.mean_prompt, seen.mean_output, there).times(seen.rate)
            if got is None:
                return None
            for row, value, before in zip(rows, got, at, strict=True):
                row.append((value - before) / step)
        return [tuple(row) for row in rows]

    def _bounded(self, x: Sequence[float]) -> Parameters:
        assert self.first is not None
        a, b, g = (min(max(v, f / self.span), f * self.span) for v, f in zip(x, self.first, strict=True))
        return a, b, g


@dataclass(frozen=True, slots=True)
class QueueingWVA:
    """The queueing-model analysis of llm-d's Workload Variant Autoscaler, with its defaults.

    Each minute the filter is fed with each replica's minute, except within `transient_s` of a change of
    replicas; the replicas are the whole rate of arrivals over what one of them may take. Its target for the
    ITL is the declared one, whatever the statistic; that for the TTFT is the one it infers: what `slack`
    times the iteration at rest leaves. Until there are parameters it has no opinion, and a first measurement
    that suggests a parameter below zero is passed over.
    """

    slack: float = 3.0
    every_s: float = 60.0
    transient_s: float = 120.0
    places: int = 256
    """Taken where an engine does not tell its max-num-seqs."""
    filter: Filter = field(default_factory=Filter)
    minute: Mapping[str, Traffic] = field(default_factory=dict)
    asked_at: float = 0.0
    replicas: int = 0
    changed_at: float = -math.inf

    def step(self, fleet: FleetSeen) -> tuple[QueueingWVA, int | None]:
        minute = {p.name: self.minute.get(p.name, Traffic()) + p.traffic for p in fleet.pods}
        changed = fleet.now if self.replicas not in (0, fleet.replicas) else self.changed_at
        after = replace(self, minute=minute, replicas=fleet.replicas, changed_at=changed)
        if fleet.now - self.asked_at < self.every_s:
            return after, None
        if fleet.pending > 0:
            after = replace(after, changed_at=fleet.now)
        return replace(after, asked_at=fleet.now, minute={})._asked(fleet, list(minute.values()))

    def _asked(self, fleet: FleetSeen, minutes: Sequence[Traffic]) -> tuple[QueueingWVA, int | None]:
        filtered = self.filter
        if fleet.now - self.changed_at >= self.transient_s or filtered.now is None:
            for seen in minutes:
                filtered = filtered.update(seen)
        after = replace(self, filter=filtered)
        whole = sum(minutes, Traffic())
        if filtered.now is None or not whole.told:
            return after, None
        queue = Queue(whole.mean_prompt, whole.mean_output, filtered.now)
        alpha, beta, gamma = filtered.now
        ttft_s = self.slack * alpha + (beta + gamma) * queue.prompt
        places = next((p.max_num_seqs for p in fleet.pods if p.max_num_seqs), self.places)
        most = queue.largest(ttft_s, fleet.target_s, places)
        if most <= 0.0:
            return after, None
        return after, max(1, math.ceil(sum(t.rate for t in minutes) / most))
