"""Rules for the cap of one pod."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llamaserver.control import Setpoint
from llamaserver.simulate.rules.seen import PodSeen


@dataclass(frozen=True, slots=True)
class Static:
    """A cap and a budget that stay; None is the engine's start value: what everybody has today."""

    cap: int | None = None
    budget: int | None = None

    def step(self, pod: PodSeen) -> tuple[Static, Setpoint]:
        return self, Setpoint(pod.ceiling if self.cap is None else self.cap, self.budget)


@dataclass(frozen=True, slots=True)
class AIMD:
    """Additive increase, multiplicative decrease, by the rule and the defaults of `AIMDLimit` in Netflix's
    concurrency-limits, with the latency objective as its timeout.

    Above the target the limit is multiplied by `backoff`; else it grows by one, if at least half of it is in
    use.
    """

    limit: int = 20
    backoff: float = 0.9

    def step(self, pod: PodSeen) -> tuple[AIMD, Setpoint]:
        limit = self.limit
        if pod.itl_s is not None and pod.itl_s > pod.target_s:
            limit = int(limit * self.backoff)
        elif 2 * pod.running >= limit:
            limit += 1
        limit = min(max(1, limit), pod.ceiling)
        return replace(self, limit=limit), Setpoint(limit)


@dataclass(frozen=True, slots=True)
class Gradient2:
    """`Gradient2Limit` of Netflix's concurrency-limits, its defaults for `queue` and `smoothing`.

    There the gradient is the long-term over the present latency, which seeks the least latency there is; here
    the target stands for the long term, since an objective is declared. The limit moves to gradient x limit +
    queue, and is held while less than half of it is in use. `rttTolerance` (1.5) and the minimum limit (20)
    are left out: the first would ask for half as much again as the target, the second would keep a batch that
    is too large.

    So used it misses the target by construction: it rests where gradient x limit + queue = limit, which is a
    latency of target x limit / (limit - queue). At a limit of 40 that is a ninth above the target.
    """

    limit: float = 20.0
    queue: float = 4.0
    smoothing: float = 0.2

    def step(self, pod: PodSeen) -> tuple[Gradient2, Setpoint]:
        limit = self.limit
        if pod.itl_s is not None and pod.running >= limit / 2:
            gradient = min(1.0, max(0.5, pod.target_s / pod.itl_s))
            wanted = limit * gradient + self.queue
            limit = (1.0 - self.smoothing) * limit + self.smoothing * wanted
        limit = min(max(1.0, limit), float(pod.ceiling))
        return replace(self, limit=limit), Setpoint(int(limit))


@dataclass(frozen=True, slots=True)
class Bisection:
    """Algorithm 2 of "Optimizing LLM Inference Throughput via Memory-aware and SLA-constrained Dynamic
    Batching" (arXiv 2503.05248): a search between two bounds that follow the measured batch.

    With D the target, b the mean batch and [low, high] the bounds: latency above D + `tolerance` D makes b
    the new upper bound and lowers the lower one by `widen`; below D - `tolerance` D the other way round;
    between, both close in around b. The bounds stay at least `gap` apart, and the cap is their middle. The
    memory rule (Algorithm 1) is not part of it.
    """

    low: float = 1.0
    high: float | None = None
    gap: float = 16.0
    widen: float = 4.0
    tolerance: float = 0.05

    def step(self, pod: PodSeen) -> tuple[Bisection, Setpoint]:
        least, most = 1.0, float(pod.ceiling)
        low, high, b = self.low, most if self.high is None else self.high, pod.batch
        if pod.itl_s is not None:
            if pod.itl_s > (1.0 + self.tolerance) * pod.target_s:
                low, high = max(low - self.widen, least), max(b, low + self.gap)
            elif pod.itl_s < (1.0 - self.tolerance) * pod.target_s:
                low, high = min(b, high - self.gap), min(high + self.widen, most)
            else:
                low, high = max(b - self.gap / 2, least), min(b + self.gap / 2, most)
            low, high = min(max(low, least), most), min(max(high, least), most)
        return replace(self, low=low, high=high), Setpoint(max(1, int((low + high) / 2)))


@dataclass(frozen=True, slots=True)
class SlewedBisection:
    """The dynamic batch size of MindIE-LLM, from its description: the same search with small steps.

    The latency may be `band_s` off the target; bounds move by `widen` and stay `gap` apart; the cap moves by
    at most `slew` a round and is never below `least`. After a round above the target it alternates with
    rounds that admit nobody: the cap is what runs.
    """

    bounds: Bisection = Bisection(gap=3.0, widen=2.0)
    cap: int | None = None
    frozen: bool = False
    band_s: float = 0.005
    slew: int = 2
    least: int = 3

    def step(self, pod: PodSeen) -> tuple[SlewedBisection, Setpoint]:
        tolerance = min(0.5, self.band_s / pod.target_s)
        bounds, middle = replace(self.bounds, tolerance=tolerance).step(pod)
        wanted, before = middle.max_num_active_seqs or 1, pod.cap if self.cap is None else self.cap
        cap = min(max(before + min(max(wanted - before, -self.slew), self.slew), self.least), pod.ceiling)
        missed = pod.itl_s is not None and pod.itl_s > pod.target_s + self.band_s
        frozen = missed and not self.frozen
        applied = min(cap, max(1, pod.running)) if frozen else cap
        return replace(self, bounds=bounds, cap=cap, frozen=frozen), Setpoint(applied)
