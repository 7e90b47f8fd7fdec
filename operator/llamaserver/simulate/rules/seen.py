"""What the rules are shown of a pod and of the fleet, and what a rule is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol, Self

from llamaserver.control import Fleet, Objective, Setpoint
from llamaserver.control.objective import QUANTILES
from llamaserver.observe import Window, Windows
from llamaserver.observe.distribution import mean, quantile
from llamaserver.observe.fleet import usable


@dataclass(frozen=True, slots=True)
class PodSeen:
    """One pod over the last tick."""

    target_s: float
    itl_s: float | None
    """The declared statistic; None where no token was made, or no request ended whose it would be."""
    batch: float
    """Decoding sequences in a step, on average."""
    running: int
    waiting: int
    cap: int
    """In force now."""
    ceiling: int
    """What the engine started with."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went through a replica over some time: sums, so that spans add up. Seconds and tokens."""

    seconds: float = 0.0
    arrived: float = 0.0
    finished: float = 0.0
    prompt: float = 0.0
    """Prompt tokens of the finished requests; likewise `output`."""
    output: float = 0.0
    itl_s: float = 0.0
    """Sum of all times between two tokens, `itls` of them; likewise `ttft_s` to first tokens."""
    itls: float = 0.0
    ttft_s: float = 0.0
    ttfts: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def told(self) -> bool:
        """Whether all the means below exist."""
        return min(self.seconds, self.finished, self.itls, self.ttfts, self.prompt, self.output) > 0.0

    @property
    def rate(self) -> float:
        """Arrivals per second."""
        return self.arrived / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def mean_prompt(self) -> float:
        return self.prompt / self.finished

    @property
    def mean_output(self) -> float:
        return self.output / self.finished

    @property
    def mean_itl_s(self) -> float:
        return self.itl_s / self.itls

    @property
    def mean_ttft_s(self) -> float:
        return self.ttft_s / self.ttfts


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """One replica over the last tick, for rules that have a model of it."""

    name: str
    traffic: Traffic
    waiting: int
    steps: int
    """Steps that decoded something; the means below are over them, 0 where there were none."""
    step_s: float
    decoding: float
    """Decoding sequences in a step."""
    resident: float
    """Their KV tokens."""
    prefill: float
    """Prefill tokens in a step."""
    kv_tokens: int | None
    max_num_seqs: int | None
    """What the engine started with; likewise `budget`."""
    budget: int | None


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """All pods that gave figures, over the last tick."""

    now: float
    replicas: int
    """Asked for now."""
    pending: int
    """Of these, not ready yet."""
    waiting: tuple[int, ...]
    """Requests waiting, a pod each."""
    kv_usage: tuple[float, ...]
    """Share of the KV cache in use, a pod each."""
    target_s: float = math.inf
    """The declared target of the inter-token latency; infinite where there is none."""
    pods: tuple[ReplicaSeen, ...] = ()


class CapRule(Protocol):
    """Sets the cap (and the budget, if it cares) of one pod."""

    def step(self, pod: PodSeen) -> tuple[Self, Setpoint]:
        """The rule as it goes on, and what to set now."""
        ...


class ReplicaRule(Protocol):
    """Sets the number of replicas; its bounds are seen to by who asks."""

    def step(self, fleet: FleetSeen) -> tuple[Self, int | None]:
        """The rule as it goes on, and the number wanted now; None is no opinion."""
        ...


def seen(window: Window, objective: Objective) -> PodSeen:
    """What a cap rule is shown: the statistic that was declared, whatever the rule was made for."""
    engine = window.last.engines[0]
    q = QUANTILES.get(objective.itl_statistic)
    of = window.tpot if objective.of_requests else window.itl
    ceiling = engine.max_num_seqs or max(1, window.running)
    return PodSeen(
        target_s=float("inf") if objective.itl_s is None else objective.itl_s,
        itl_s=None if of is None else mean(of) if q is None else quantile(of, q),
        batch=window.itl.count / window.steps if window.steps else 0.0,
        running=window.running,
        waiting=window.waiting,
        cap=engine.max_num_active_seqs or ceiling,
        ceiling=ceiling,
    )


def fleet_seen(windows: Windows, fleet: Fleet, now: float, target_s: float | None = None) -> FleetSeen:
    """What a replica rule is shown."""
    good = usable(windows)
    return FleetSeen(
        now=now,
        replicas=fleet.replicas,
        pending=fleet.pending,
        waiting=tuple(w.waiting for w in good),
        kv_usage=tuple(w.kv_usage for w in good),
        target_s=math.inf if target_s is None else target_s,
        pods=tuple(_replica(w) for w in good),
    )


def _replica(w: Window) -> ReplicaSeen:
    engine = w.last.engines[0]
    steps = [m for m in (w.decode_steps, w.mixed_steps) if m is not None]
    n = sum(m.n for m in steps)
    return ReplicaSeen(
        name=w.pod,
        traffic=_traffic(w),
        waiting=w.waiting,
        steps=n,
        step_s=1e-6 * _per_step(sum(m.y for m in steps), n),
        decoding=_per_step(sum(m.B for m in steps), n),
        resident=_per_step(sum(m.K for m in steps), n),
        prefill=_per_step(sum(m.P for m in steps), n),
        kv_tokens=engine.kv_capacity_tokens,
        max_num_seqs=engine.max_num_seqs,
        budget=engine.max_num_batched_tokens,
    )


def _per_step(total: float, steps: int) -> float:
    return total / steps if steps else 0.0


def _traffic(w: Window) -> Traffic:
    ttft = w.ttft
    return Traffic(
        seconds=w.dt,
        arrived=float(w.arrived or 0),
        finished=float(w.finished or 0),
        prompt=float(w.finished_prompt_tokens or 0),
        output=float(w.finished_generation_tokens or 0),
        itl_s=w.itl.sum_s,
        itls=float(w.itl.count),
        ttft_s=0.0 if ttft is None else ttft.sum_s,
        ttfts=0.0 if ttft is None else float(ttft.count),
    )
