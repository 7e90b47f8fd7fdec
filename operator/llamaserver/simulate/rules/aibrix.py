"""The pod autoscalers of AIBrix, on the use of the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

from llamaserver.simulate.rules.seen import FleetSeen

EVERY_S = 10.0
"""Seconds between two looks of its controller."""


@dataclass(frozen=True, slots=True)
class Cooled:
    """AIBrix's cooldown windows at their defaults: none on the way up; down only to the highest proposal of
    the last `down_s`.
    """

    down_s: float = 300.0
    proposals: tuple[tuple[float, int], ...] = ()

    def step(self, fleet: FleetSeen, proposal: int) -> tuple[Cooled, int]:
        recent = (*(p for p in self.proposals if p[0] > fleet.now - self.down_s), (fleet.now, proposal))
        wanted = max(proposal, min(fleet.replicas, max(n for _, n in recent)))
        return replace(self, proposals=recent), wanted


@dataclass(frozen=True, slots=True)
class ApaKvUsage:
    """AIBrix's APA (application-specific pod autoscaling) with the defaults of its scaling context.

    The metric is the mean use of the KV cache and its target `kv_usage`, as in AIBrix's examples. Beyond
    `up_tolerance` or `down_tolerance` of the target the replicas are multiplied by metric over target: up at
    most `up_rate` times, down at most to one `down_rate`-th. A replica that starts counts as one of them,
    although nothing is known of its cache.
    """

    kv_usage: float = 0.5
    up_tolerance: float = 0.1
    down_tolerance: float = 0.1
    up_rate: float = 2.0
    down_rate: float = 2.0
    cooled: Cooled = Cooled()
    asked_at: float = -math.inf

    def step(self, fleet: FleetSeen) -> tuple[ApaKvUsage, int | None]:
        if fleet.now - self.asked_at < EVERY_S or not fleet.kv_usage:
            return self, None
        cooled, wanted = self.cooled.step(fleet, max(1, self._proposal(fleet)))
        return replace(self, asked_at=fleet.now, cooled=cooled), wanted

    def _proposal(self, fleet: FleetSeen) -> int:
        n, load = fleet.replicas, fmean(fleet.kv_usage) / self.kv_usage
        proportional = math.ceil(n * load - 1e-9)
        if load > 1.0 + self.up_tolerance:
            return min(proportional, math.ceil(self.up_rate * n))
        if load < 1.0 - self.down_tolerance:
            return max(proportional, math.floor(n / self.down_rate))
        return n


@dataclass(frozen=True, slots=True)
class KpaKvUsage:
    """AIBrix's KPA, after Knative's pod autoscaler, with its defaults.

    The metric is the use of the KV cache summed over the replicas, averaged over `stable_s` and over
    `panic_s`; each average over `kv_usage` is a number of replicas, within one `down_rate`-th and `up_rate`
    times of today's. When the short average asks for `panic` times today's replicas, or did so within the
    last `stable_s`, it panics: the larger number counts, and no replica goes.
    """

    kv_usage: float = 0.5
    stable_s: float = 60.0
    panic_s: float = 10.0
    panic: float = 2.0
    up_rate: float = 2.0
    down_rate: float = 2.0
    cooled: Cooled = Cooled()
    asked_at: float = -math.inf
    seen: tuple[tuple[float, float], ...] = ()
    """(time, summed use of the KV cache) of the last `stable_s`."""
    panicked_at: float | None = None
    most: int = 0
    """The most replicas asked for in this panic."""

    def step(self, fleet: FleetSeen) -> tuple[KpaKvUsage, int | None]:
        if not fleet.kv_usage:
            return self, None
        kept = tuple(s for s in self.seen if s[0] > fleet.now - self.stable_s)
        after = replace(self, seen=(*kept, (fleet.now, sum(fleet.kv_usage))))
        if fleet.now - self.asked_at < EVERY_S:
            return after, None
        return replace(after, asked_at=fleet.now)._asked(fleet)

    def _asked(self, fleet: FleetSeen) -> tuple[KpaKvUsage, int]:
        stable, short = self._replicas(fleet, self.stable_s), self._replicas(fleet, self.panic_s)
        panicked_at, most = self.panicked_at, self.most
        if short / fleet.replicas >= self.panic:
            panicked_at = fleet.now
        elif panicked_at is not None and panicked_at + self.stable_s < fleet.now:
            panicked_at, most = None, 0
        proposal = self._within(fleet, stable)
        if panicked_at is not None:
            proposal = most = max(most, proposal, self._within(fleet, short))
        cooled, wanted = self.cooled.step(fleet, proposal)
        return replace(self, panicked_at=panicked_at, most=most, cooled=cooled), wanted

    def _replicas(self, fleet: FleetSeen, seconds: float) -> int:
        usage = fmean(u for t, u in self.seen if t > fleet.now - seconds)
        return math.ceil(usage / self.kv_usage - 1e-9)

    def _within(self, fleet: FleetSeen, replicas: int) -> int:
        low, high = math.floor(fleet.replicas / self.down_rate), math.ceil(self.up_rate * fleet.replicas)
        return max(1, min(max(replicas, low), high))
