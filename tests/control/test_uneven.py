"""One replica beside the others: slower than they are at the same work, or with the queue that they have the
room for.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.diagnosing import sticking
from control.fleets import Replicas
from control.test_liar import LIES, told
from llamaserver.api.enums import LatencyScope, ScalingMode, Statistic
from llamaserver.control import Cause, Decision, Diagnosis, Limits, Objective, straggler
from llamaserver.control import imbalance as routing
from llamaserver.control.causes.finding import Finding
from llamaserver.control.causes.uneven import routing_imbalance
from llamaserver.control.causes.uneven import straggler as straggler_told
from llamaserver.control.facts import Facts
from llamaserver.control.model import Block, StepModel, remembered
from llamaserver.control.state import DemandState, ImbalanceState, PaceState
from llamaserver.control.types import Imbalance
from llamaserver.control.types import Straggler as Slow
from llamaserver.observe import Window
from llamaserver.simulate.demand import constant
from llamaserver.simulate.faults import Straggler
from llamaserver.simulate.lengths import chat
from llamaserver.simulate.profiles import A100_8B, CPU_24M, H100_8B
from llamaserver.simulate.world import World

MEAN_20 = Objective(0.020, Statistic.MEAN)
QUEUES_20 = replace(MEAN_20, queue_s=0.5)
FIXED = Limits(scaling=ScalingMode.FIXED)
SLOW = (Straggler(40.0, math.inf, 1.6),)
UNEVEN = {"Straggler", "RoutingImbalance"}


def said(world: World, cause: Cause) -> list[Diagnosis]:
    """What was told of this cause, once it was settled."""
    found = [d.diagnosis for _, d in world.decisions if d.diagnosis.cause is cause]
    return [d for d in found if "next" not in d.evidence]


def last(world: World) -> Decision:
    return world.decisions[-1][1]


# --- the slow one -----------------------------------------------------------------------------------------


@cache
def slowed() -> World:
    return World(MEAN_20, FIXED, streams=constant(72), replicas=3, faults=SLOW).run(200)


def test_a_slow_replica_is_named_with_how_slow_and_what_to_do() -> None:
    found = said(slowed(), Cause.STRAGGLER)[-1]
    assert found.evidence["pod"] == "pod-1"
    assert float(found.evidence["ratio"]) == pytest.approx(1.6, rel=0.08)
    times = float(found.evidence["step_ms"]) / float(found.evidence["expected_ms"])
    assert times == pytest.approx(float(found.evidence["ratio"]), rel=0.02)
    assert "that 2 replicas that agree take for the same work" in found.message
    assert f"a cap of its own, {found.evidence['cap']} sequences" in found.message
    assert "Over the tokens of all replicas the objective" in found.message
    assert "delete the pod" in found.advice
    assert "33 % of the replicas" in found.advice
    assert last(slowed()).ailing == {"pod-1": Cause.STRAGGLER}


def test_an_objective_of_requests_is_told_as_one_of_requests() -> None:
    fleet = Replicas(count=3, objective=Objective(0.050, Statistic.P95, itl_scope=LatencyScope.REQUEST))
    fleet.facts()
    for pod in fleet.pods.values():
        pod.decoded = 100.0
    facts = fleet.facts()
    slow = Slow("pod-001", 0.040, 1.6, 0.0, ("pod-001",), 2, 0.4)
    seen = replace(facts.observed, itl_s=0.042)
    found = straggler_told(replace(facts, straggler=slow, observed=seen), DemandState())
    assert isinstance(found, Finding)
    assert "Over the requests of all replicas the objective holds: p95/request is 42" in found.message
    assert float(found.evidence["itl_ms"]) == 42.0
    assert "pod_itl_ms" not in found.evidence, "a figure of tokens, beside one of requests"


def test_it_is_told_after_half_a_minute_and_not_before() -> None:
    first = next(t for t, d in slowed().decisions if d.diagnosis.cause is Cause.STRAGGLER)
    assert 40.0 + straggler.TOLD_S <= first <= 40.0 + straggler.TOLD_S + 20.0


def test_one_slow_replica_costs_the_others_nothing() -> None:
    without = World(MEAN_20, FIXED, streams=constant(72), replicas=3).run(200)
    assert slowed().engines["pod-1"].cap < 0.75 * without.engines["pod-1"].cap
    for pod in ("pod-2", "pod-3"):
        assert slowed().engines[pod].cap == pytest.approx(without.engines[pod].cap, rel=0.12)


def test_what_only_the_slow_one_suffers_from_is_not_told_of_the_fleet() -> None:
    """At this target the slow one would miss even with a single sequence."""
    target = Objective(0.011, Statistic.MEAN)
    world = World(target, FIXED, streams=constant(12), replicas=3, faults=SLOW).run(240)
    assert set(world.causes(110)) == {"Straggler"}


def test_of_two_the_slower_one_is_named() -> None:
    world = World(MEAN_20, FIXED, streams=constant(16), replicas=2, faults=SLOW).run(160)
    assert set(world.causes(100)) == {"Straggler"}
    assert "the other replica takes" in said(world, Cause.STRAGGLER)[-1].message


def test_one_replica_is_neither_slow_nor_crowded_beside_others() -> None:
    world = World(MEAN_20, FIXED, streams=constant(24), faults=SLOW).run(160)
    assert not UNEVEN & set(world.causes())
    assert not any(d.ailing for _, d in world.decisions)


def test_it_is_over_when_the_steps_are_as_short_as_the_others() -> None:
    faults = (Straggler(40.0, 120.0, 1.6),)
    world = World(MEAN_20, FIXED, streams=constant(24), replicas=3, faults=faults).run(160)
    assert last(world).diagnosis.cause is Cause.HEALTHY
    assert not last(world).ailing


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie != "a fifth of the prefill"])
def test_false_sums_accuse_nobody(lie: str) -> None:
    """Neither the honest beside one that seems quick, nor one whose clients see nothing of slow steps."""
    world = World(Objective(0.030, Statistic.P95), FIXED, streams=constant(90), replicas=3, seed=2).run(60)
    world.views["pod-1"] = told(LIES[lie])
    world.run(180)
    assert "Straggler" not in world.causes()


def test_memory_that_binds_is_named_before_a_slow_replica() -> None:
    small = replace(CPU_24M, kv_tokens=4000)
    world = World(
        Objective(0.060, Statistic.MEAN), FIXED, small, streams=constant(108), replicas=3, faults=SLOW
    ).run(240)
    causes = world.causes(140)
    assert causes.count("KVPressure") >= 0.8 * len(causes)
    assert last(world).ailing.get("pod-1") is Cause.STRAGGLER


def test_a_fleet_that_is_held_up_alike_has_no_straggler() -> None:
    def decoding(rng: random.Random, _: float) -> tuple[int, int]:
        return rng.randint(24, 40), rng.randint(200, 400)

    world = World(
        Objective(0.020, Statistic.P95),
        FIXED,
        lengths=decoding,
        streams=constant(108),
        stalls=0.2,
        replicas=3,
    ).run(260)
    causes = world.causes(60)
    assert "Disturbed" in causes
    assert causes.count("Straggler") <= 0.05 * len(causes)


def test_a_slow_one_of_many_is_not_why_all_of_them_are_full() -> None:
    found = World(MEAN_20, FIXED, streams=constant(10 * 36), replicas=10, faults=SLOW).run(160)
    assert set(found.causes(110)) == {"AtCapacity"}
    assert last(found).ailing == {"pod-1": Cause.STRAGGLER}


MODEL = remembered(0.010, 0.0004, 0.0, 0.0001, 0.0, 0.03)
SURE = replace(MODEL, cov=tuple(tuple(1e-6 * v for v in row) for row in MODEL.cov))


def paced(offs: dict[str, float], model: StepModel = SURE) -> Slow | None:
    """What is found after a minute of steps that are so far off the model, by replica, as logarithms."""
    windows = [_window(pod) for pod in sorted(offs)]
    state, n = PaceState(), 100.0
    for tick in range(30):
        blocks = {}
        for pod, off in offs.items():
            x = tuple(n * v for v in (1.0, 0.5, 0.0, 0.0, 0.0))
            fitted = sum(t * v for t, v in zip(model.scaled, x, strict=True))
            blocks[pod] = Block(n, x, (), (fitted * math.exp(off), 0.0, 0.0, 0.0, 0.0), 0.0)
        state = straggler.follow(state, model, blocks, windows, set(offs), 2.0, 2.0 * tick)
    return straggler.found(state, 58.0)


@cache
def _window(pod: str) -> Window:
    fleet = Replicas(count=1)
    fleet.facts()
    (found,) = fleet.facts().pods
    return replace(found.window, pod=pod)


PODS = ("a", "b", "c", "d", "e", "f")
OFFS = st.lists(st.sampled_from((-0.9, -0.1, 0.0, 0.05, 0.1, 0.3, 0.5, 0.9)), min_size=2, max_size=6)


@given(OFFS, st.randoms(use_true_random=False))
def test_the_order_of_replicas_changes_nothing(offs: list[float], rng: random.Random) -> None:
    names = list(PODS[: len(offs)])
    one = paced(dict(zip(names, offs, strict=True)))
    rng.shuffle(names)
    other = paced(dict(zip(names, offs, strict=True)))
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert (one.fit, len(one.slow)) == (other.fit, len(other.slow))
        assert one.lost == pytest.approx(other.lost)


@given(st.floats(-1.0, 1.0), st.integers(2, 6))
def test_a_model_that_is_wrong_for_all_accuses_nobody(off: float, replicas: int) -> None:
    assert paced(dict.fromkeys(PODS[:replicas], off)) is None


@pytest.mark.parametrize(
    ("offs", "slow"),
    [
        ((0.0, 0.0, 0.5), 1),
        ((0.0, 0.0, 0.1, 0.2), 0),
        ((-0.9, 0.0, 0.0), 0),
        ((0.0, 0.0, 0.0, 0.5, 0.6), 2),
        ((0.0, 0.0, 0.6, 0.6), 0),  # half and half: two kinds of machines
        ((0.0, 0.5), 1),
    ],
)
def test_most_are_the_measure(offs: tuple[float, ...], slow: int) -> None:
    found = paced(dict(zip(PODS, offs, strict=False)))
    assert (0 if found is None else len(found.slow)) == slow


def test_a_model_that_does_not_know_what_such_a_step_takes_accuses_nobody() -> None:
    vague = replace(MODEL, cov=tuple(tuple(10.0 * v for v in row) for row in MODEL.cov))
    assert paced({"a": 0.0, "b": 0.0, "c": 0.5}, vague) is None


# --- the crowded one --------------------------------------------------------------------------------------


@cache
def skewed() -> World:
    limits = Limits(replicas_min=3, replicas_max=6)
    world = World(QUEUES_20, limits, streams=constant(36), replicas=3).run(40)
    sticking(world)
    return world.run(240)


def test_a_queue_beside_room_is_named_with_where_and_how_much() -> None:
    found = said(skewed(), Cause.ROUTING_IMBALANCE)[-1]
    waiting, room = int(found.evidence["waiting"]), int(found.evidence["room"])
    assert found.evidence["pod"] == "pod-1"
    assert waiting == found.evidence["waiting_in_all"]
    assert 2 <= waiting <= room
    assert f"{waiting} requests wait at pod-1" in found.message
    assert f"2 other replicas have room for {room} more" in found.message
    assert "docs/routing.md" in found.advice
    assert float(found.evidence["share_of_arrivals"]) > 0.4
    assert last(skewed()).ailing == {"pod-1": Cause.ROUTING_IMBALANCE}


def test_on_the_plant_no_replica_is_added_for_it() -> None:
    assert skewed().scales == []


def test_what_the_others_have_no_room_for_is_capacity() -> None:
    """Looked at for 90 s: an imbalance is told after 30 s."""
    limits = Limits(replicas_min=3, replicas_max=6)
    world = World(QUEUES_20, limits, streams=constant(75), replicas=3, cold_start_s=60.0).run(40)
    sticking(world)
    world.run(130)
    assert any(t > 40.0 for t, _ in world.scales)
    assert set(world.causes(40)) == {"AtCapacity"}
    assert not any(d.ailing for _, d in world.decisions)


def crowded_for_a_minute(waiting: dict[str, int]) -> Finding | str:
    """What is said of two replicas that have been crowded, by who waits there in this tick."""
    fleet = Replicas(count=3)
    fleet.facts()
    for name, pod in fleet.pods.items():
        pod.running, pod.waiting = 80 if name in waiting else 20, waiting.get(name, 0)
    facts = replace(fleet.facts(), now=100.0)
    since = {"pod-001": 40.0, "pod-002": 50.0}
    found = Imbalance(since, waiting=sum(waiting.values()), roomy=1, room=60, filled=0.75, share=0.9)
    return routing_imbalance(replace(facts, imbalance=found), DemandState())


def test_a_replica_whose_queue_is_gone_for_a_moment_is_not_the_one_to_name() -> None:
    both = crowded_for_a_minute({"pod-001": 20, "pod-002": 30})
    assert isinstance(both, Finding)
    assert both.message.startswith("20 requests wait at pod-001, which is full")
    assert "So it is at pod-002." in both.message
    other = crowded_for_a_minute({"pod-001": 0, "pod-002": 30})
    assert isinstance(other, Finding)
    assert other.message.startswith("30 requests wait at pod-002, which is full")
    assert "pod-001" not in other.message
    assert (other.evidence["pod"], other.evidence["waiting"], other.evidence["for_s"]) == ("pod-002", 30, 50)


@pytest.mark.parametrize("left", [0, 1])
def test_no_queue_is_told_where_nobody_waits_just_now(left: int) -> None:
    said = crowded_for_a_minute({"pod-001": left, "pod-002": 0})
    assert isinstance(said, str)
    assert "pod-001 and pod-002" in said


@dataclass
class Watched(Replicas):
    """Looks for an imbalance at every tick."""

    uneven: ImbalanceState = field(default_factory=ImbalanceState)
    found: list[Imbalance] = field(default_factory=list)

    def facts(self) -> Facts:
        facts = super().facts()
        self.uneven = routing.follow(self.uneven, facts, self.state.held)
        found = routing.found(self.uneven, facts)
        self.found += [] if found is None else [found]
        return replace(facts, imbalance=found)


@dataclass
class Sticking(Watched):
    """Requests stick to the first replica, whose queue misses its objective; `told` is whether the slow loop
    is shown that others have room.
    """

    told: bool = True

    def facts(self) -> Facts:
        facts = super().facts()
        observed = replace(facts.observed, queue_met=facts.waiting == 0)
        return replace(facts, observed=observed, imbalance=facts.imbalance if self.told else None)

    def _submit(self) -> None:
        first, *others = self.pods.values()
        pod = first if self.rng.random() < 0.6 else self.rng.choice(others)
        pod.waiting, pod.arrived = pod.waiting + 1, pod.arrived + 1


def sticking_fleet(told: bool, rate: float = 2.0) -> Sticking:
    """`rate` in what one replica serves."""
    fleet = Sticking(
        count=4,
        limits=Limits(replicas_min=4, replicas_max=10),
        objective=Objective(0.050, queue_s=0.5),
        told=told,
    )
    fleet.rate = constant(rate * fleet.serves)
    fleet.run(150)
    return fleet


def test_no_replica_is_added_for_a_queue_that_others_have_room_for() -> None:
    without, beside = sticking_fleet(told=False), sticking_fleet(told=True)
    assert without.scales, "else this shows nothing"
    assert beside.scales == []
    assert any(
        answer.reason == "hold: requests wait at pod-001 while 3 other replicas have room for them"
        for _, answer in beside.answers
    )


def test_a_demand_that_needs_more_however_it_is_spread_gets_them() -> None:
    assert sticking_fleet(told=True, rate=4.5).scales


@given(
    st.integers(2, 8), st.integers(0, 300), st.sampled_from([80, 16, 4]), st.randoms(use_true_random=False)
)
@settings(max_examples=60)
def test_a_load_that_is_spread_evenly_is_none_however_large(
    count: int, in_hand: int, cap: int, rng: random.Random
) -> None:
    fleet = Watched(count=count, cap=cap, limits=Limits(replicas_min=count, replicas_max=count))
    for _ in range(40):
        fleet.now += 2.0
        for pod in fleet.pods.values():
            mine = in_hand + rng.randint(0, 1)
            pod.running, pod.waiting = min(cap, mine), max(0, mine - cap)
            pod.arrived = pod.finished = 5
        fleet.facts()
    assert fleet.found == []


@given(st.permutations(range(5)))
def test_it_is_the_same_whatever_the_replicas_are_called(order: list[int]) -> None:
    loads = [(80, 60), (80, 30), (20, 0), (10, 0), (40, 1)]
    fleet = Watched(count=5, limits=Limits(replicas_min=5, replicas_max=5))
    for _ in range(10):
        fleet.now += 2.0
        for pod, which in zip(fleet.pods.values(), order, strict=True):
            pod.running, pod.waiting = loads[which]
            pod.arrived = pod.finished = 5
        fleet.facts()
    found = fleet.found[-1]
    assert set(found.since) == {f"pod-{1 + order.index(i):03}" for i in (0, 1)}
    assert (found.waiting, found.roomy, found.room) == (91, 3, 80 * 3 - 71)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("load", [0.3, 0.7, 0.95, 1.2])
def test_a_router_that_looks_at_the_load_never_has_one(load: float, seed: int) -> None:
    fleet = Watched(count=4, limits=Limits(replicas_min=4, replicas_max=4), seed=seed)
    fleet.rate = constant(load * 4 * fleet.serves)
    fleet.run(900)
    assert fleet.found == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_queue_from_before_a_replica_was_added_is_none(seed: int) -> None:
    fleet = Watched(seed=seed, limits=Limits(replicas_max=10))
    fleet.rate = lambda t: (8.0 if t < 60 else 0.4) * fleet.serves
    fleet.run(600)
    assert fleet.scales
    assert fleet.found == []


# --- neither ----------------------------------------------------------------------------------------------

FLEETS: dict[str, dict[str, Any]] = {
    "cpu": {"profile": CPU_24M, "objective": MEAN_20, "rate": constant(7.0)},
    "cpu, a tail": {"profile": CPU_24M, "objective": Objective(0.030, Statistic.P95), "rate": constant(8.0)},
    "h100": {"profile": H100_8B, "lengths": chat, "rate": constant(30.0)},
    "a100, with a knee": {"profile": A100_8B, "lengths": chat, "rate": constant(12.0)},
}


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("name", FLEETS)
def test_requests_that_come_by_chance_never_make_either(name: str, seed: int) -> None:
    made = {"objective": Objective(0.050, Statistic.P95), **FLEETS[name]}
    world = World(**made, limits=FIXED, replicas=3, seed=seed).run(900)
    assert not UNEVEN & set(world.causes())
    assert not any(d.ailing for _, d in world.decisions)
