"""The same demand under several policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llamaserver.api.enums import ScalingMode
from llamaserver.control import Limits, Objective
from llamaserver.control.objective import JUDGED_S
from llamaserver.simulate.demand import Demand
from llamaserver.simulate.engine import too_long
from llamaserver.simulate.foresight import foresight, saturated, served
from llamaserver.simulate.hindsight import best_cap, best_pair
from llamaserver.simulate.outcome import Moment, Outcome, Traced, judged, mean_of
from llamaserver.simulate.policies import BEST_PAIR, Policy
from llamaserver.simulate.profiles import Profile
from llamaserver.simulate.routers import LEAST_LOADED
from llamaserver.simulate.rules.caps import Static
from llamaserver.simulate.rules.foresight import Foresight
from llamaserver.simulate.world import Fault, World
from llamaserver.simulate.wrongs import Watch

Tell = Callable[[str, float], None]
"""(what runs, share of it that is done): called often; must be cheap."""


def silently(_: str, __: float) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Scenario:
    """What all policies meet."""

    demand: Callable[[int], Demand]
    """By seed."""
    profile: Profile
    objective: Objective
    replicas: int = 1
    replicas_min: int = 1
    replicas_max: int = 1
    cold_start_s: float = 60.0
    seeds: Sequence[int] = (1,)
    window_s: float = JUDGED_S
    """Over how long the objective is judged."""
    faults: Sequence[Fault] = ()
    prefix_cache: bool = False
    router: str = LEAST_LOADED
    """One of routers.ROUTERS."""


@dataclass(frozen=True)
class Result:
    """What came of one policy: by seed, and of the first seed also the course."""

    policy: Policy
    outcomes: Sequence[Outcome]
    traced: Traced

    @property
    def mean(self) -> Outcome:
        return mean_of(self.outcomes)


def compare(scenario: Scenario, chosen: Sequence[Policy], tell: Tell = silently) -> list[Result]:
    """Each policy under each seed. What is found in hindsight is found with the first seed."""
    demands = [scenario.demand(seed) for seed in scenario.seeds]
    return [_one(scenario, demands, p, tell) for p in chosen]


def _one(scenario: Scenario, demands: Sequence[Demand], policy: Policy, tell: Tell) -> Result:
    if policy.hindsight:
        policy = policy.settled(_searched(scenario, demands[0], policy, tell))
    foreseen = _foreseen(scenario, demands, policy, tell)
    runs = [
        run(scenario, demand, known, seed, lambda share: tell(policy.name, share))
        for demand, known, seed in zip(demands, foreseen, scenario.seeds, strict=True)
    ]
    return Result(policy, [r.outcome for r in runs], runs[0])


def _foreseen(scenario: Scenario, demands: Sequence[Demand], policy: Policy, tell: Tell) -> list[Policy]:
    """The policy for each demand; one that knows it beforehand gets its plan, by what one saturated replica
    serves.
    """
    if not isinstance(policy.replicas, Foresight):
        return [policy] * len(demands)
    alone = replace(scenario, replicas=1, replicas_min=1, replicas_max=1)
    tried, name = saturated(demands[0], scenario.profile), f"{policy.name}, one replica"
    one = replace(policy, replicas=None)
    serves = served(run(alone, tried, one, scenario.seeds[0], lambda share: tell(name, share)))
    plans = [foresight(d, scenario.profile, serves, scenario.cold_start_s) for d in demands]
    return [replace(policy, replicas=plan) for plan in plans]


def _searched(scenario: Scenario, demand: Demand, policy: Policy, tell: Tell) -> Static:
    tried = 0

    def outcome(static: Static) -> Outcome:
        nonlocal tried
        tried += 1
        name = f"{policy.name}, setting {tried}"
        return run(
            scenario, demand, policy.settled(static), scenario.seeds[0], lambda share: tell(name, share)
        ).outcome

    search = best_pair if policy.name.startswith(BEST_PAIR) else best_cap
    return search(scenario.profile, outcome)


def run(
    scenario: Scenario,
    demand: Demand,
    policy: Policy,
    seed: int,
    tell: Callable[[float], None] = lambda _: None,
) -> Traced:
    """One policy under one demand, for as long as that lasts. Raises SimulationError where every request is
    longer than the engines serve.
    """
    if demand.requests and not any(scenario.profile.takes(r.prompt, r.output) for r in demand.requests):
        raise too_long(scenario.profile)
    scales = scenario.replicas_max > scenario.replicas_min
    law_scales = scales and policy.scales and policy.caps is None and policy.replicas is None
    world = World(
        scenario.objective,
        Limits(
            tuning=policy.tuning,
            scaling=ScalingMode.AUTO if law_scales else ScalingMode.FIXED,
            replicas_min=scenario.replicas_min,
            replicas_max=scenario.replicas_max,
            budget_moves=policy.budget_moves,
        ),
        scenario.profile,
        demand.lengths,
        streams=demand.streams,
        requests=demand.requests,
        seed=seed,
        cold_start_s=scenario.cold_start_s,
        replicas=scenario.replicas,
        caps_by=policy.caps,
        replicas_by=policy.replicas,
        faults=scenario.faults,
        prefix_cache=scenario.prefix_cache,
        shown=policy.shown,
        router=scenario.router,
    )
    moments, watch = [], Watch(scenario.faults)
    while world.now < demand.duration_s - 1e-9:
        world.tick()
        watch.look(world)
        moments.append(_moment(world))
        tell(world.now / demand.duration_s)
    return judged(world, moments, scenario.profile, len(watch.found), scenario.window_s, demand.step_s)


def _moment(world: World) -> Moment:
    engines = list(world.engines.values())
    return Moment(
        at=world.now,
        cap=sum(e.cap for e in engines) / max(1, len(engines)),
        budget=sum(e.budget for e in engines) / max(1, len(engines)),
        replicas=len(engines),
        running=sum(len(e.running) for e in engines),
        waiting=sum(len(e.waiting) for e in engines),
    )
