"""The two modes of NVIDIA Dynamo's planner, for engines that prefill and decode in the same steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from llamaserver.simulate.rules.regression import Fit, Steps
from llamaserver.simulate.rules.seen import FleetSeen, ReplicaSeen, Traffic

TTFT_S = 0.5
"""Its default target for the time to the first token."""


@dataclass(frozen=True, slots=True)
class DynamoLoad:
    """Dynamo's load mode with its defaults: one replica more or less, by what a regression predicts.

    Every `every_s`, and not while a replica starts: one more when every replica is predicted to miss the ITL,
    or every one the TTFT; one less when each, with the load of N replicas on N - 1, would have a cache that
    holds it and an ITL below `sensitivity` of its target, and would wait for no more than `sensitivity` of
    what the TTFT leaves beside the request's own prefill. The ITL target is the declared one, whatever its
    statistic: what is predicted is the duration of the next step.
    """

    every_s: float = 5.0
    sensitivity: float = 0.8
    ttft_s: float = TTFT_S
    steps: Steps = field(default_factory=Steps)
    asked_at: float = 0.0

    def step(self, fleet: FleetSeen) -> tuple[DynamoLoad, int | None]:
        if fleet.now - self.asked_at < self.every_s:
            return self, None
        steps = self.steps
        for pod in fleet.pods:
            steps = steps.add(pod)
        after = replace(self, steps=steps, asked_at=fleet.now)
        fit = steps.fit()
        if fit is None or fleet.pending > 0 or len(fleet.pods) != fleet.replicas:
            return after, None
        return after, self._wanted(fleet, fit)

    def _wanted(self, fleet: FleetSeen, fit: Fit) -> int:
        n, pods = fleet.replicas, fleet.pods
        itls = [fit.itl_s(p.resident) for p in pods]
        firsts = [fit.ttft_s(_queued(p), p.resident, p.budget or 1) for p in pods]
        if all(t > self.ttft_s for t in firsts) or all(t > fleet.target_s for t in itls):
            return n + 1
        if n > 1 and all(self._spares(p, n / (n - 1), fleet.target_s, fit) for p in pods):
            return n - 1
        return n

    def _spares(self, pod: ReplicaSeen, share: float, target_s: float, fit: Fit) -> bool:
        """Whether this replica could take `share` times its load."""
        queued, resident, budget = share * _queued(pod), share * pod.resident, pod.budget or 1
        own = fit.ttft_s(0.0, resident, budget)
        left = (self.ttft_s - own) * self.sensitivity
        if left <= 0.0 or fit.ttft_s(queued, resident, budget) - own >= left:
            return False
        combined = resident + queued
        if pod.kv_tokens is not None and combined >= pod.kv_tokens:
            return False
        return fit.itl_s(combined) < self.sensitivity * target_s


def _queued(pod: ReplicaSeen) -> float:
    """Prompt tokens that wait, by the mean prompt of this tick."""
    return pod.waiting * (pod.traffic.mean_prompt if pod.traffic.finished else 0.0)


@dataclass(frozen=True, slots=True)
class Trend:
    """Dynamo's Kalman predictor, a level with a trend, with its defaults; the last of fewer than `least`.

    Dynamo's default is ARIMA, which also repeats the last point until it has enough of them; with a point
    every three minutes that is most of what a run here sees.
    """

    level_wander: float = 1.0
    trend_wander: float = 0.1
    noise: float = 10.0
    least: int = 5
    points: tuple[float, ...] = ()

    def add(self, value: float) -> Trend:
        return replace(self, points=(*self.points, value))

    def next(self) -> float:
        if len(self.points) < self.least:
            return self.points[-1]
        level, trend = self.points[0], 0.0
        a, b, d = 1.0, 0.0, 1.0  # covariance of (level, trend): [[a, b], [b, d]]
        for value in self.points[1:]:
            level += trend
            a, b, d = a + 2.0 * b + d + self.level_wander, b + d, d + self.trend_wander
            off, whole = value - level, a + self.noise
            level, trend = level + a / whole * off, trend + b / whole * off
            a, b, d = a - a * a / whole, b - a * b / whole, d - b * b / whole
        return max(0.0, level + trend)


@dataclass(frozen=True, slots=True)
class DynamoThroughput:
    """Dynamo's throughput mode with its defaults: the predicted demand over what an engine can take.

    Every `every_s` the requests, prompts and outputs of the next interval are predicted; an engine takes what
    the same regression, fed every `observe_s`, gives for the largest batch that holds both targets.
    """

    every_s: float = 180.0
    observe_s: float = 5.0
    ttft_s: float = TTFT_S
    steps: Steps = field(default_factory=Steps)
    interval: Traffic = field(default_factory=Traffic)
    requests: Trend = Trend()
    prompts: Trend = Trend()
    outputs: Trend = Trend()
    observed_at: float = 0.0
    asked_at: float = 0.0

    def step(self, fleet: FleetSeen) -> tuple[DynamoThroughput, int | None]:
        seen = sum((p.traffic for p in fleet.pods), Traffic())
        after = replace(self, interval=self.interval + seen)
        if fleet.now - self.observed_at >= self.observe_s:
            steps = self.steps
            for pod in fleet.pods:
                steps = steps.add(pod)
            after = replace(after, steps=steps, observed_at=fleet.now)
        if fleet.now - self.asked_at < self.every_s:
            return after, None
        return replace(after, asked_at=fleet.now, interval=Traffic())._asked(fleet, after.interval)

    def _asked(self, fleet: FleetSeen, interval: Traffic) -> tuple[DynamoThroughput, int | None]:
        if not interval.told:
            return self, None
        after = replace(
            self,
            requests=self.requests.add(interval.arrived),
            prompts=self.prompts.add(interval.mean_prompt),
            outputs=self.outputs.add(interval.mean_output),
        )
        fit = self.steps.fit()
        if fit is None or not fleet.pods:
            return after, None
        rate = fit.rate(
            after.prompts.next(), after.outputs.next(), fleet.pods[0], self.ttft_s, fleet.target_s
        )
        if rate <= 0.0:
            return after, None
        return after, max(1, math.ceil(after.requests.next() / self.every_s / rate))
