"""What can be promised on a machine with a traffic, and what it takes.

First one saturated replica under the law, for objectives from as strict as it gets to as loose as the engine
is by itself: what each costs in throughput. Then, for one of them, how many replicas the traffic needs; and
that is tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

from llamaserver.api.duration import format_duration
from llamaserver.api.effective import named
from llamaserver.api.enums import LatencyScope, Statistic
from llamaserver.control import Objective
from llamaserver.simulate.clients import statistic
from llamaserver.simulate.compare import Scenario, Tell, run, silently
from llamaserver.simulate.demand import Demand, constant, lengths_of
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.hindsight import holds
from llamaserver.simulate.lengths import Lengths
from llamaserver.simulate.outcome import Outcome, Traced
from llamaserver.simulate.policies import LAW, Policy, policy
from llamaserver.simulate.profiles import Calibrated, Profile
from llamaserver.simulate.shapes import OVERLOAD

Json = dict[str, Any]
CAPACITY_S = 320.0
"""How long the saturated replica is watched for one objective."""
OBJECTIVES, REFINED = 6, 3
"""How many objectives are tried, and how often the strictest one that holds is searched closer."""
WORTH = 0.9
"""The objective that is proposed keeps so much of the throughput that the loosest one gives."""
UP_SHARE, DOWN_SHARE = 0.90, 0.75
"""How full replicas are where the law adds one, and the rest may be where it takes one away."""
MINUTE_S = 60.0
CEILING_ROOM, BUDGET_ROOM = 1.25, 2.0
"""What engines start with, over where the law holds them: room to move, and no more than that, because it is
also what they return to when nobody renews their settings.
"""


@dataclass(frozen=True)
class Point:
    """One objective on one saturated replica."""

    objective: Objective
    held: bool
    outcome: Outcome
    cap: int
    """Where the law rests, of the second half of the run."""
    budget: int

    def gpu_hours_per_million_tokens(self, profile: Profile) -> float:
        rate = self.outcome.tokens_per_s
        return profile.gpus * 1e6 / (3600 * rate) if rate > 0 else math.inf


@dataclass(frozen=True)
class Plan:
    """What was found. `reachable_s` None: no objective that was tried holds."""

    calibrated: Calibrated
    statistic: Statistic
    scope: LatencyScope
    ceiling: Outcome
    """Of the engine by itself, saturated."""
    ceiling_s: float
    """The statistic of the engine by itself."""
    points: Sequence[Point]
    """From the strictest to the loosest objective."""
    chosen: Point
    replicas_min: int
    replicas_max: int
    started: Profile
    """The engines that are proposed: started with what the law needs and some room."""
    tried: Outcome
    """A fleet of these engines with these bounds under the traffic itself."""

    @property
    def named(self) -> str:
        """The statistic as people read it."""
        return named(self.statistic, self.scope)

    @property
    def reachable_s(self) -> float | None:
        return next((p.objective.itl_s for p in self.points if p.held), None)


def _started(profile: Profile, chosen: Point) -> Profile:
    """What to start engines with: powers of two with room above where the law holds the objective."""
    places = min(profile.max_num_seqs, _power_of_two(CEILING_ROOM * chosen.cap))
    budget = min(profile.budget, _power_of_two(max(BUDGET_ROOM * chosen.budget, places)))
    return replace(profile, max_num_seqs=places, budget=budget)


def _power_of_two(least: float) -> int:
    return 1 << math.ceil(math.log2(max(1.0, least)))


def plan(
    calibrated: Calibrated,
    demand: Demand,
    which: Statistic,
    target_s: float | None = None,
    *,
    scope: LatencyScope = LatencyScope.TOKEN,
    seed: int = 1,
    cold_start_s: float = 60.0,
    tell: Tell = silently,
) -> Plan:
    """The plan for a traffic. With `target_s` for that target, else for the strictest that keeps most of the
    throughput. Raises SimulationError where nothing that was tried holds.
    """
    replica = _Replica(calibrated.profile, lengths_of(demand), seed, scope, tell)
    by_itself = Objective(None, which, itl_scope=scope)
    ceiling = replica.saturated(by_itself, policy("default"), "the engine by itself")
    tokens = [(1.0 * value, 1) for _, value in ceiling.windows]
    ceiling_s = statistic(tokens, Statistic.P50) if tokens else math.nan
    points = _points(replica, which, ceiling_s, target_s)
    chosen = _chosen(points, target_s)
    least, most = bounds(demand, chosen, calibrated.profile)
    started = _started(calibrated.profile, chosen)
    scenario = Scenario(
        lambda _: demand,
        started,
        chosen.objective,
        replicas=least,
        replicas_min=least,
        replicas_max=most,
        cold_start_s=cold_start_s,
        seeds=(seed,),
    )
    tried = run(scenario, demand, policy(LAW), seed, lambda share: tell("the fleet", share)).outcome
    return Plan(
        calibrated, which, scope, ceiling.outcome, ceiling_s, points, chosen, least, most, started, tried
    )


@dataclass(frozen=True)
class _Replica:
    """One replica with more clients than it has places for."""

    profile: Profile
    lengths: Lengths
    seed: int
    scope: LatencyScope
    tell: Tell

    def saturated(self, objective: Objective, by: Policy, name: str) -> Traced:
        streams = constant(round(OVERLOAD * self.profile.max_num_seqs))
        demand = Demand("saturated", CAPACITY_S, streams=streams, lengths=self.lengths)
        scenario = Scenario(lambda _: demand, self.profile, objective, seeds=(self.seed,))
        return run(scenario, demand, by, self.seed, lambda share: self.tell(name, share))

    def point(self, which: Statistic, target_s: float) -> Point:
        objective = Objective(target_s, which, itl_scope=self.scope)
        name = f"{objective.itl_named} {format_duration(target_s)}"
        traced = self.saturated(objective, policy(LAW), name)
        late = [m for m in traced.moments if m.at > CAPACITY_S / 2]
        return Point(
            objective,
            holds(traced.outcome),
            traced.outcome,
            cap=round(median(m.cap for m in late)),
            budget=round(median(m.budget for m in late)),
        )


def _points(replica: _Replica, which: Statistic, ceiling_s: float, target_s: float | None) -> list[Point]:
    """Objectives in equal ratios up to the engine's own, the strictest that holds searched closer."""
    floor_s = replica.profile.a
    top_s = max(ceiling_s, 1.2 * floor_s) if math.isfinite(ceiling_s) else 4 * floor_s
    ratio = (top_s / floor_s) ** (1 / OBJECTIVES)
    wanted = {_rounded(floor_s * ratio**i) for i in range(1, OBJECTIVES + 1)}
    if target_s is not None:
        wanted.add(target_s)
    points = {t: replica.point(which, t) for t in sorted(wanted)}
    for _ in range(REFINED):
        held = [t for t, p in points.items() if p.held]
        high = min(held, default=top_s)
        low = max((t for t in points if t < high), default=floor_s)
        middle = _rounded(math.sqrt(low * high))
        if not held or middle in points:
            break
        points[middle] = replica.point(which, middle)
    return [points[t] for t in sorted(points)]


def _rounded(seconds: float) -> float:
    """Two digits, as people promise."""
    return float(f"{seconds:.2g}")


def _chosen(points: Sequence[Point], target_s: float | None) -> Point:
    held = [p for p in points if p.held]
    if target_s is not None:
        asked = next(p for p in points if p.objective.itl_s == target_s)
        if not asked.held:
            strictest = f"the strictest that holds is {held[0].objective.itl_s:g} s" if held else "none holds"
            raise SimulationError(
                f"an objective of {target_s:g} s cannot be promised here, {strictest}; relax it, or take a "
                "faster machine or a smaller model"
            )
        return asked
    if not held:
        raise SimulationError(
            "no objective that was tried holds on this machine with this traffic; look at it with "
            "llamaserver simulate, or give --objective"
        )
    most = max(p.outcome.tokens_per_s for p in held)
    return next(p for p in held if p.outcome.tokens_per_s >= WORTH * most)


def bounds(demand: Demand, point: Point, profile: Profile) -> tuple[int, int]:
    """Fewest and most replicas: for the quietest tenth of the minutes and for the busiest, with one to catch
    up. What is left after whole minutes is a minute of its own from half of one on, else part of the last.
    """
    if not demand.requests:
        times = [demand.duration_s * i / 100 for i in range(1, 101)]
        loads = [demand.streams(t) / max(1, point.cap) for t in times]
    else:
        minutes = max(1, round(demand.duration_s / MINUTE_S))
        tokens = [0] * minutes
        for request in demand.requests:
            if profile.takes(request.prompt, request.output):
                tokens[min(minutes - 1, int(request.at / MINUTE_S))] += request.output
        lasting = [MINUTE_S] * (minutes - 1) + [demand.duration_s - MINUTE_S * (minutes - 1)]
        serves = max(1e-9, point.outcome.tokens_per_s)
        loads = [n / seconds / serves for n, seconds in zip(tokens, lasting, strict=True)]
    quiet = quantiles(loads, n=10)[0] if len(loads) > 1 else loads[0]
    least = max(1, math.ceil(quiet / DOWN_SHARE - 1e-9))
    most = max(least, math.ceil(max(loads) / UP_SHARE - 1e-9))
    return least, most + (most > least)


def manifest(found: Plan) -> Json:
    """The LlamaServer to paste; model and image are those of the profile."""
    calibrated, objective = found.calibrated, found.chosen.objective
    assert objective.itl_s is not None
    engine: Json = {
        "image": calibrated.image,
        "maxNumSeqs": found.started.max_num_seqs,
        "maxNumBatchedTokens": found.started.budget,
    }
    if found.started.longest != Profile.max_model_len:
        engine["maxModelLen"] = found.started.longest
    if calibrated.extra_args:
        engine["extraArgs"] = list(calibrated.extra_args)
    spec: Json = {"model": {"uri": calibrated.model}, "engine": engine}
    if calibrated.resource:
        if calibrated.profile.gpus > 1:
            engine["tensorParallelSize"] = calibrated.profile.gpus
        spec["accelerator"] = {"resourceName": calibrated.resource, "count": calibrated.profile.gpus}
    latency = {"target": format_duration(objective.itl_s), "statistic": objective.itl_statistic.value}
    if objective.of_requests:
        latency["scope"] = objective.itl_scope.value
    spec["slo"] = {"interTokenLatency": latency}
    spec["scaling"] = {"minReplicas": found.replicas_min, "maxReplicas": found.replicas_max}
    return {
        "apiVersion": "llamaserver.dev/v1alpha1",
        "kind": "LlamaServer",
        "metadata": {"name": "planned"},
        "spec": spec,
    }
