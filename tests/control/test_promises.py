"""What status tells of objectives and of a fleet only partly seen, and what idleness must not move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from llamaserver.api.enums import Statistic, TuningMode
from llamaserver.control import Cause, Limits, Objective
from llamaserver.simulate.demand import constant
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.world import World

EASY = Objective(0.030, Statistic.MEAN, queue_s=0.5)
"""A latency that the ceiling holds, and a queue objective that sixty streams break."""


def test_a_missed_queue_objective_is_a_missed_objective() -> None:
    world = World(EASY, streams=constant(60)).run(120)
    seen = world.decisions[-1][1].observed
    assert (seen.itl_met, seen.queue_met, seen.slo_met) == (True, False, False)


def test_a_queue_objective_alone_is_judged_too() -> None:
    world = World(Objective(queue_s=0.5), streams=constant(60)).run(120)
    assert world.decisions[-1][1].observed.slo_met is False
    world.streams = constant(8)
    world.run(200)
    assert world.decisions[-1][1].observed.slo_met is True


def test_a_replica_out_of_sight_is_neither_idle_nor_zero() -> None:
    world = World(EASY, streams=constant(20), replicas=2).run(60)
    world.unreachable.add("pod-1")
    world.run(70)
    world.streams = constant(0)
    world.run(160)
    decision = world.decisions[-1][1]
    assert decision.diagnosis.cause is not Cause.IDLE
    assert decision.observed.running is None
    assert decision.observed.tokens_per_s is None


BURSTS: dict[str, Callable[[], World]] = {
    "out of reach": lambda: World(Objective(0.004, Statistic.MEAN), streams=constant(40)),
    "percentile out of reach": lambda: World(Objective(0.006, Statistic.P95), streams=constant(40)),
    "too large a batch": lambda: World(
        Objective(0.012, Statistic.MEAN), Limits(tuning=TuningMode.OFF), streams=constant(40)
    ),
    "full": lambda: World(EASY, streams=constant(60)),
    "too little memory": lambda: World(
        Objective(None), profile=replace(CPU_24M, kv_tokens=4000), streams=constant(40)
    ),
    "prefill": lambda: World(Objective(0.025, Statistic.P99), streams=constant(40)),
    "neighbours": lambda: World(Objective(0.025, Statistic.P95), stalls=0.2, streams=constant(8)),
}


@pytest.mark.parametrize("burst", BURSTS.values(), ids=BURSTS.keys())
def test_whatever_a_load_was_named_it_is_idle_when_it_is_over(burst: Callable[[], World]) -> None:
    world = burst().run(100)
    assert Cause.IDLE not in world.causes(10)
    world.streams = constant(0)
    world.run(260)  # what waits at a small cap takes its time
    assert set(world.causes(240)) == {Cause.IDLE}
    assert world.decisions[-1][1].observed.slo_met is None


def test_evidence_of_the_past_moves_no_cap_of_an_idle_engine() -> None:
    objective = Objective(0.012, Statistic.MEAN)
    world = World(objective, Limits(tuning=TuningMode.OFF), streams=constant(40)).run(60)
    world.streams = constant(0)
    world.run(140)
    world.limits = Limits()
    world.run(200)
    assert len({cap for _, _, cap in world.caps}) <= 1, world.caps


def test_a_replica_that_never_gets_ready_can_go_again() -> None:
    limits = Limits(replicas_max=4)
    world = World(Objective(0.016, Statistic.MEAN), limits, streams=constant(40), cold_start_s=1e9)
    world.run(150)
    assert world.replicas == 4, "they were asked for, and none ever comes"
    world.cold_start_s = 60.0
    world.streams = constant(2)
    world.run(900)
    assert world.replicas == 1


def test_a_new_replica_starts_as_its_peers_run_and_not_as_an_old_operator_left_them() -> None:
    before = World(Objective(0.024, Statistic.MEAN), streams=constant(40)).run(200)
    learned = before.state.learned()
    assert learned is not None
    assert learned.cap >= 20
    objective = Objective(0.024, Statistic.MEAN)
    world = World(objective, Limits(replicas_max=2), streams=constant(40), learned=learned, cold_start_s=10)
    world.run(20)
    world.objective = replace(objective, itl_s=0.012)
    world.run(240)
    first = next(cap for _, pod, cap in world.caps if pod == "pod-2")
    assert first <= 12


def test_a_cap_that_misses_the_objective_is_not_learned_for_it() -> None:
    objective = Objective(0.012, Statistic.MEAN)
    world = World(objective, Limits(tuning=TuningMode.RECOMMEND), streams=constant(40)).run(120)
    learned = world.state.learned()
    assert learned is not None
    assert learned.cap == 0.0
