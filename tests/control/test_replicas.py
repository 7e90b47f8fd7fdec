"""The slow loop: replicas follow demand against capacity at the objective, up at once, down one at a time,
and never hunt.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from control.fleets import Replicas
from llamaserver.api.enums import Precedence, ScalingMode, Statistic, TuningMode
from llamaserver.control import Fleet, Learned, Limits, Objective, decide, initial
from llamaserver.observe import Failure, Sample, Source, Unusable
from llamaserver.simulate.clients import reversals
from llamaserver.simulate.demand import constant
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import CPU_24M, slower
from llamaserver.simulate.world import Orders, World

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
    assert len(world.scales) <= 2, "not one cold start after another"
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


def test_in_the_middle_of_a_rollout_no_replica_goes() -> None:
    """Kubernetes would choose from which version, and it may be the one that serves."""
    fleet = Replicas(count=3, clients=lambda _: 5, rolling=lambda t: t < 1000).run(990)
    assert fleet.scales == []
    assert fleet.state.reason == "hold: a rollout is under way"
    fleet.rolling = lambda _: False
    fleet.run(1600)
    assert fleet.replicas < 3


def test_a_demand_that_does_not_grow_asks_for_nothing_more_while_replicas_load() -> None:
    """Desired must not double while pods load a model for minutes."""
    world = World(MEAN_16, replace(UP_TO_6, replicas_max=20), streams=constant(60), cold_start_s=300)
    world.run(290)
    assert world.replicas == 6  # 60 streams, some 12 to a replica and a tenth of room
    assert max(t for t, _ in world.scales) < 100


def test_a_replica_that_is_overdue_is_not_answered_with_another() -> None:
    world = World(MEAN_16, replace(UP_TO_6, replicas_max=20), streams=constant(40), cold_start_s=60)
    world.run(40)
    asked = world.replicas
    assert world.starting
    world.starting = [1e9 for _ in world.starting]
    world.streams = constant(200)
    world.run(300)
    late = [t for t, n in world.scales if n > asked and t > 40 + 60]
    assert late == []
    assert "not ready" in world.decisions[-1][1].replicas_reason


def test_latency_alone_never_adds_a_replica() -> None:
    """Far over the objective, yet nobody waits: that is the cap's business."""
    world = World(Objective(0.009, Statistic.MEAN), replace(UP_TO_6, cap_min=10), streams=constant(10)).run(
        300
    )
    assert world.decisions[-1][1].observed.slo_met is False
    assert world.scales == []


def test_where_caps_are_not_moved_a_rate_by_itself_adds_no_replica() -> None:
    """The engine takes more than it serves at the objective: the latency is missed and nobody waits."""
    limits = Limits(replicas_max=3, tuning=TuningMode.OFF)
    world = World(Objective(0.009, Statistic.MEAN), limits, rate=lambda t: 6.0 if t > 40 else 0.5).run(90)
    assert world.decisions[-1][1].observed.slo_met is False
    assert world.scales == []


def test_a_successor_goes_on_adding_while_replicas_start() -> None:
    world = World(MEAN_16, UP_TO_6, rate=lambda t: 4.0 if t < 100 else 14.0, cold_start_s=200)
    while not world.starting:
        world.tick()
    world.state = initial(None, world.now)
    asked = world.replicas
    world.run(world.now + 150)
    assert world.starting, "the first ones still start"
    assert world.replicas > asked


def test_what_was_seen_before_a_blind_spell_still_holds_a_replica() -> None:
    world = World(MEAN_16, UP_TO_6, streams=lambda t: 40 if t < 700 else 4, cold_start_s=20).run(600)
    busy = world.replicas
    assert busy > 2
    world.unreachable = {next(iter(world.engines))}
    world.run(780)
    world.unreachable = set()
    world.run(690 + 170)
    assert world.replicas == busy, "forty clients were there less than three minutes ago"


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


@pytest.mark.parametrize(("every_s", "first_s"), [(15.0, 60.0), (60.0, 240.0)])
def test_at_the_pace_of_a_prometheus_replicas_follow_too(every_s: float, first_s: float) -> None:
    """2.4 requests a second of 180 tokens, in engines of 12 sequences that nobody can change."""

    class Scraped(World):
        def _scrape(self, name: str, engine: Engine) -> Sample | Failure:
            found = super()._scrape(name, engine)
            assert isinstance(found, Sample)
            return replace(found, source=Source.PROMETHEUS, every_s=every_s)

    small = replace(SLOW, max_num_seqs=12)
    limits = replace(UP_TO_6, cap_max=12)
    world = Scraped(
        MEAN_80,
        limits,
        small,
        rate=lambda t: 2.4 if t < 900 else 0.3,
        text=True,
        cold_start_s=30,
        tick_s=every_s,
    )
    world.run(900)
    assert world.caps == []
    assert world.scales[0] == (first_s, 5)
    assert world.replicas in (4, 5)
    world.run(2400)
    assert world.replicas == 1
    assert reversals([n for _, n in world.scales]) <= 1


def test_a_new_operator_looks_as_far_ahead_as_the_last_one_saw_replicas_start() -> None:
    class Unmeasured(World):
        def _decide(self, fleet: Fleet) -> Orders:
            return super()._decide(replace(fleet, cold_start_s=None))

    def grows(t: float) -> float:
        return 1.0 + t / 40.0

    learned = Learned(a_s=0.0064, b_s=0.00045, g_s=6e-7, d_s=0.00017, cold_start_s=200.0)
    told = Unmeasured(MEAN_16, UP_TO_6, rate=grows, learned=learned).run(160)
    reasons = {d.replicas_reason for _, d in told.decisions}
    assert any("are expected in 215 s" in reason for reason in reasons), reasons
    unknown = Unmeasured(MEAN_16, UP_TO_6, rate=grows).run(160)
    assert any("are expected in 135 s" in d.replicas_reason for _, d in unknown.decisions)
