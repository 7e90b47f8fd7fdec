"""The slow loop: replicas follow demand against capacity at the objective, one step at a time, and never
hunt.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from control.plant import CPU_24M, slower
from control.world import World, constant, reversals
from llamaserver.api.enums import Precedence, ScalingMode, Statistic
from llamaserver.control import Fleet, Limits, Objective, decide
from llamaserver.observe import Failure, Unusable

MEAN_16 = Objective(0.016, Statistic.MEAN)
"""About 12 sequences of a replica hold it."""
UP_TO_6 = Limits(replicas_max=6)
SLOW = slower(CPU_24M, 5.0)
"""A machine with steps five times as long, for tests of half an hour: MEAN_80 is to it what MEAN_16 is to the
other.
"""
MEAN_80 = Objective(0.080, Statistic.MEAN)


def test_a_demand_of_forty_streams_gets_the_replicas_that_hold_it() -> None:
    world = World(MEAN_16, UP_TO_6, streams=constant(40), cold_start_s=20).run(600)
    assert world.replicas == 4  # 40 streams, some 12 to a replica
    assert [n for _, n in world.scales] == [2, 3, 4]
    assert world.violated(60) <= 0.05


def test_a_steady_load_sees_no_reversal_in_half_an_hour() -> None:
    world = World(
        MEAN_80, UP_TO_6, SLOW, streams=constant(40), cold_start_s=30, slow_noise=0.05, tick_s=5.0
    ).run(2400)
    steady = [n for t, n in world.scales if t > 600]
    assert reversals([world.replicas, *steady]) == 0
    assert len(steady) <= 1


def test_poisson_arrivals_settle_too() -> None:
    """2.4 requests a second of 180 tokens want some 35 sequences at this latency."""
    world = World(MEAN_80, UP_TO_6, SLOW, rate=constant(2.4), cold_start_s=30, tick_s=5.0).run(2400)
    assert 3 <= world.replicas <= 5
    assert reversals([n for _, n in world.scales]) <= 1


def test_replicas_go_when_the_load_goes_one_at_a_time_and_not_at_once() -> None:
    world = World(
        MEAN_80, UP_TO_6, SLOW, streams=lambda t: 40 if t < 500 else 5, cold_start_s=20, tick_s=5.0
    ).run(1600)
    assert world.replicas == 1
    down = [(t, n) for t, n in world.scales if t > 500]
    assert [n for _, n in down][-3:] == [3, 2, 1]
    assert down[0][0] >= 500 + 150
    assert all(b - a >= 100 for (a, _), (b, _) in pairwise(down))


def test_nothing_is_decided_while_a_replica_is_pending() -> None:
    """Desired must not double while pods load a model for minutes."""
    world = World(MEAN_16, UP_TO_6, streams=constant(60), cold_start_s=300).run(290)
    assert [n for _, n in world.scales] == [2]
    assert "not ready" in world.decisions[-1][1].replicas_reason


def test_latency_alone_never_adds_a_replica() -> None:
    """Far over the objective, yet nobody waits: that is the cap's business."""
    world = World(Objective(0.009, Statistic.MEAN), replace(UP_TO_6, cap_min=10), streams=constant(10)).run(
        300
    )
    assert world.decisions[-1][1].observed.slo_met is False
    assert world.scales == []


def test_an_objective_out_of_reach_is_not_answered_with_replicas() -> None:
    world = World(Objective(0.004, Statistic.MEAN), UP_TO_6, streams=constant(40)).run(300)
    assert world.scales == []
    assert "no number of replicas" in world.decisions[-1][1].replicas_reason


def test_waiting_within_the_queue_objective_needs_no_replica() -> None:
    patient = replace(MEAN_16, queue_s=60.0)
    hasty = replace(MEAN_16, queue_s=1.0)
    assert World(patient, UP_TO_6, streams=constant(40)).run(300).scales == []
    assert World(hasty, UP_TO_6, streams=constant(40)).run(300).scales != []


def test_with_latency_first_the_queue_gives_way_at_the_last_replica() -> None:
    world = World(replace(MEAN_16, queue_s=1.0), Limits(), streams=constant(40)).run(400)
    assert world.violated(60) <= 0.05
    assert world.state.relief == 1.0
    assert world.decisions[-1][1].diagnosis.cause == "CapacityExhausted"


def test_with_the_queue_first_latency_gives_way_at_the_last_replica() -> None:
    objective = replace(MEAN_16, queue_s=1.5, precedence=Precedence.QUEUE_TIME)
    world = World(objective, Limits(), streams=constant(24)).run(500)
    assert world.state.relief > 1.0
    assert world.engines["pod-1"].cap > 14
    waits = [d.observed.queue_s for t, d in world.decisions if t > 300 and d.observed.queue_s is not None]
    assert sorted(waits)[len(waits) // 2] <= 1.5
    # and latency returns to its own target when there is room for both
    world.streams = constant(6)
    world.run(900)
    assert world.state.relief == 1.0


@pytest.mark.parametrize("mode", [ScalingMode.FIXED, ScalingMode.EXTERNAL, ScalingMode.RECOMMEND])
def test_only_auto_scales(mode: ScalingMode) -> None:
    world = World(MEAN_16, replace(UP_TO_6, scaling=mode), streams=constant(40)).run(120)
    assert all(d.replicas is None for _, d in world.decisions)
    if mode is ScalingMode.RECOMMEND:
        assert any(d.recommended_replicas == 2 for _, d in world.decisions)


@pytest.mark.parametrize(("replicas", "wanted"), [(1, 2), (9, 6), (3, None)])
def test_the_users_bounds_are_applied_at_once_and_blindly(replicas: int, wanted: int | None) -> None:
    world = World(MEAN_16, replace(UP_TO_6, replicas_min=2))
    _, decision = decide(MEAN_16, world.limits, world.state, {}, Fleet(replicas, 0, 0), 1.0)
    assert decision.replicas == wanted


def test_one_pod_out_of_sight_holds_the_number() -> None:
    world = World(MEAN_16, replace(UP_TO_6, replicas_min=2), streams=constant(80), replicas=2)
    world.unreachable.add("pod-2")
    world.run(200)
    assert world.scales == []
    assert "1 of 2 replicas" in world.decisions[-1][1].replicas_reason
    assert isinstance(world._scrape("pod-2", world.engines["pod-2"]), Failure)
    assert Unusable.UNREACHABLE in {w.why for w in world.windows.values() if hasattr(w, "why")}


def test_pods_without_a_tuner_scale_by_their_queue() -> None:
    world = World(
        MEAN_16,
        replace(UP_TO_6, ceiling=CPU_24M.max_num_seqs),
        streams=constant(80),
        text=True,
        cold_start_s=20,
    )
    world.run(400)
    assert world.caps == []
    assert world.replicas == 3  # 80 streams, 32 sequences to a replica
