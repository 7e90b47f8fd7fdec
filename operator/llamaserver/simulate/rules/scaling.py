"""Rules for the number of replicas."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from llamaserver.simulate.rules.seen import FleetSeen


@dataclass(frozen=True, slots=True)
class Stabilised:
    """How a HorizontalPodAutoscaler turns proposals into replicas, with its defaults.

    Asked every `every_s`. A metric within `tolerance` of its target changes nothing; up at most to twice the
    number or by four, the larger; down only to the highest proposal of the last `down_s`.
    """

    every_s: float = 15.0
    tolerance: float = 0.1
    down_s: float = 300.0
    asked_at: float = -math.inf
    proposals: tuple[tuple[float, int], ...] = ()

    def step(self, fleet: FleetSeen, load: float) -> tuple[Stabilised, int | None]:
        """`load` is the metric over its target: what the present replicas should be multiplied by."""
        if fleet.now - self.asked_at < self.every_s or not fleet.waiting:
            return self, None
        near = abs(load - 1.0) <= self.tolerance
        proposal = fleet.replicas if near else max(1, math.ceil(fleet.replicas * load - 1e-9))
        proposal = min(proposal, max(2 * fleet.replicas, fleet.replicas + 4))
        recent = (*(p for p in self.proposals if p[0] > fleet.now - self.down_s), (fleet.now, proposal))
        wanted = max(proposal, min(fleet.replicas, max(n for _, n in recent)))
        return replace(self, asked_at=fleet.now, proposals=recent), wanted


@dataclass(frozen=True, slots=True)
class QueueHPA:
    """A HorizontalPodAutoscaler on vLLM's `num_requests_waiting`, as an average value per pod.

    `waiting` is the target: the 5 that common examples of vLLM with a HorizontalPodAutoscaler take.
    """

    waiting: float = 5.0
    hpa: Stabilised = field(default_factory=Stabilised)

    def step(self, fleet: FleetSeen) -> tuple[QueueHPA, int | None]:
        load = sum(fleet.waiting) / (self.waiting * fleet.replicas)
        hpa, wanted = self.hpa.step(fleet, load)
        return replace(self, hpa=hpa), wanted


@dataclass(frozen=True, slots=True)
class KedaKvQueue:
    """A KEDA ScaledObject with two triggers, the larger of which counts: waiting requests per pod and the
    mean use of the KV cache. KEDA hands both to a HorizontalPodAutoscaler.
    """

    waiting: float = 5.0
    kv_usage: float = 0.8
    hpa: Stabilised = field(default_factory=Stabilised)

    def step(self, fleet: FleetSeen) -> tuple[KedaKvQueue, int | None]:
        pods = max(1, len(fleet.kv_usage))
        load = max(
            sum(fleet.waiting) / (self.waiting * fleet.replicas),
            sum(fleet.kv_usage) / (pods * self.kv_usage),
        )
        hpa, wanted = self.hpa.step(fleet, load)
        return replace(self, hpa=hpa), wanted


@dataclass(frozen=True, slots=True)
class SaturationWVA:
    """The saturation analysis of llm-d's Workload Variant Autoscaler (V1), with its defaults.

    A replica is saturated at `kv` of its cache or `queue` waiting requests. Each minute, from the peaks of
    that minute: one more when the replicas that are not saturated have on average less than `spare_kv` or
    `spare_queue` left to that; one less when the load, spread over one replica less, would leave both.
    Nothing while a replica is pending.
    """

    kv: float = 0.80
    queue: float = 5.0
    spare_kv: float = 0.10
    spare_queue: float = 3.0
    every_s: float = 60.0
    asked_at: float = 0.0
    peaks: tuple[tuple[float, float], ...] = ()
    """(KV use, waiting) of each replica: the highest since the last look."""

    def step(self, fleet: FleetSeen) -> tuple[SaturationWVA, int | None]:
        now = tuple(zip(fleet.kv_usage, map(float, fleet.waiting), strict=True))
        peaks = now
        if len(now) == len(self.peaks):
            peaks = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(now, self.peaks, strict=True))
        if fleet.now - self.asked_at < self.every_s:
            return replace(self, peaks=peaks), None
        after = replace(self, asked_at=fleet.now, peaks=())
        if fleet.pending or not peaks:
            return after, None
        return after, fleet.replicas + self._change(peaks)

    def _change(self, peaks: tuple[tuple[float, float], ...]) -> int:
        free = [(k, q) for k, q in peaks if k < self.kv and q < self.queue]
        if not free or not self._spare(free, len(free)):
            return 1
        return -1 if len(peaks) > 1 and len(free) > 1 and self._spare(free, len(free) - 1) else 0

    def _spare(self, loads: list[tuple[float, float]], replicas: int) -> bool:
        """Whether `replicas` would have enough to spare under these loads together."""
        kv, queue = sum(k for k, _ in loads) / replicas, sum(q for _, q in loads) / replicas
        return self.kv - kv >= self.spare_kv and self.queue - queue >= self.spare_queue
