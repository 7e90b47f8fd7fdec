"""Faults do what they say, and an action against what is true is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llamaserver.api.enums import ScalingMode, Statistic
from llamaserver.control import Limits, Objective, Setpoint
from llamaserver.observe import NoWindow, Window
from llamaserver.observe.types import Source
from llamaserver.simulate.compare import Scenario, run
from llamaserver.simulate.demand import Demand, constant
from llamaserver.simulate.faults import (
    EngineRestarted,
    PodKilled,
    Silent,
    SlowStart,
    Stale,
    Straggler,
    TunerLost,
)
from llamaserver.simulate.policies import policy
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.rules.caps import Static
from llamaserver.simulate.shapes import Size, shaped
from llamaserver.simulate.world import Fault, Orders, World
from llamaserver.simulate.wrongs import Watch

MEAN_20 = Objective(0.020, Statistic.MEAN)
FIXED = Limits(scaling=ScalingMode.FIXED)


def serving(fault: Fault, **more: object) -> World:
    """Two replicas with 12 streams each, or what is said."""
    settings: dict[str, object] = {"streams": constant(24), "replicas": 2, "cold_start_s": 20.0, **more}
    return World(MEAN_20, FIXED, faults=[fault], **settings)  # type: ignore[arg-type]


def test_a_killed_replica_is_gone_and_another_one_comes_after_its_start() -> None:
    world = serving(PodKilled(40.0, 60.0)).run(42)
    assert list(world.engines) == ["pod-2"]
    assert world.broken > 0
    world.run(64)
    assert list(world.engines) == ["pod-2", "pod-3"]
    assert world.replicas == 2


def test_what_a_killed_replica_had_in_hand_is_asked_again() -> None:
    size = Size(60.0, 0, 4.0, 100, 60)
    demand = shaped("poisson", size, 3)
    world = serving(PodKilled(30.0, 50.0), streams=constant(0), requests=demand.requests).run(120)
    finished = sum(1 for e in world.ever() for _ in e.waits)
    assert finished >= len(demand.requests)
    assert not world.homeless


def test_a_restarted_engine_comes_back_in_its_pod_with_nothing_set_and_nothing_counted() -> None:
    world = serving(EngineRestarted(40.0, 60.0)).run(38)
    engine = world.engines["pod-1"]
    assert engine.cap < engine.profile.max_num_seqs
    assert isinstance(world.windows["pod-1"], Window)
    world.run(42)
    assert list(world.engines) == ["pod-2"]
    assert world.broken > 0
    assert (world.replicas, world.settled) == (2, False)
    assert isinstance(world.windows["pod-1"], NoWindow)
    assert (engine.finished, engine.generation_tokens, engine.generation) == (0, 0, 0)
    assert (engine.cap, engine.budget) == (engine.profile.max_num_seqs, engine.profile.budget)
    assert list(world.run(58).engines) == ["pod-2"]
    assert world.run(60).engines["pod-1"] is engine


def test_the_operator_sets_a_restarted_engine_again_as_soon_as_it_knows_it() -> None:
    world = serving(EngineRestarted(40.0, 60.0)).run(38)
    before = world.engines["pod-1"].cap
    world.run(74)
    engine = world.engines["pod-1"]
    assert engine.generation > 0
    assert engine.cap == pytest.approx(before, rel=0.2)
    assert engine.finished > 0
    assert isinstance(world.windows["pod-1"], Window)
    assert world.settled


def test_what_a_restarted_engine_had_in_hand_is_asked_again() -> None:
    demand = shaped("poisson", Size(60.0, 0, 4.0, 100, 60), 3)
    world = serving(EngineRestarted(30.0, 50.0), streams=constant(0), requests=demand.requests).run(120)
    assert sum(len(e.waits) for e in world.ever()) >= len(demand.requests)
    assert not world.homeless
    assert [len(e.running) for e in world.ever()] == [0, 0]


def test_a_replica_is_not_missed_by_the_bill_while_it_restarts_and_goes_first_when_one_has_to() -> None:
    world = serving(EngineRestarted(10.0, 20.0)).run(20)
    assert world.replica_s == 2 * 20.0
    world._apply(Orders({}, 1))
    assert (list(world.engines), world.restarting, world.settled) == (["pod-2"], {}, True)
    assert world.run(40).replica_s == 2 * 20.0 + 20.0
    assert list(world.engines) == ["pod-2"]


def test_the_first_setting_of_a_restarted_engine_is_no_action_in_the_wrong_direction() -> None:
    """It is compared with what the engine started with, not with what it had before."""
    world, watch = plain(20, 0.010), Watch([Silent(0.0, 1e9)])
    world._apply(Orders({"pod-1": Setpoint(8, 300)}, None))
    watch.look(world)
    world.restart("pod-1")
    for _ in range(60):
        world.tick()
        watch.look(world)
    world._apply(Orders({"pod-1": Setpoint(20, 300)}, None))
    watch.look(world)
    assert watch.found == []
    world.run(world.now + 30)
    world._apply(Orders({"pod-1": Setpoint(24, 300)}, None))
    watch.look(world)
    assert [w.what for w in watch.found] == ["cap raised while the objective is missed"]


def test_requests_wait_while_no_replica_is_there() -> None:
    demand = shaped("poisson", Size(60.0, 0, 2.0, 100, 60), 3)
    made = {"streams": constant(0), "requests": demand.requests, "replicas": 1}
    world = serving(PodKilled(20.0, 40.0), **made).run(30)
    assert not world.engines
    world.run(120)
    assert sum(len(e.waits) for e in world.ever()) >= len(demand.requests)


def test_a_straggler_is_slower_for_as_long_as_it_lasts() -> None:
    world = serving(Straggler(40.0, 80.0, 2.0), caps_by=Static(8)).run(38)
    before = world.engines["pod-1"].profile.a
    assert world.run(60).engines["pod-1"].profile.a == pytest.approx(2 * before)
    assert world.engines["pod-2"].profile.a == before
    assert world.run(84).engines["pod-1"].profile.a == before


def test_a_silent_replica_gives_no_window_and_is_seen_again() -> None:
    world = serving(Silent(40.0, 60.0)).run(50)
    assert isinstance(world.windows["pod-1"], NoWindow)
    assert isinstance(world.windows["pod-2"], Window)
    assert isinstance(world.run(66).windows["pod-1"], Window)


def test_a_stale_replica_says_the_same_or_what_was() -> None:
    world = serving(Stale(40.0, 60.0)).run(50)
    assert isinstance(world.windows["pod-1"], NoWindow)
    late = serving(Stale(40.0, 80.0, lag_s=10.0)).run(60)
    window = late.windows["pod-1"]
    assert isinstance(window, Window)
    assert window.last.clock_s == pytest.approx(late.now - 10.0, abs=1.0)


def test_a_lost_tuner_leaves_the_metrics_and_its_settings_lapse() -> None:
    world = serving(TunerLost(40.0, 400.0)).run(60)
    window = world.windows["pod-1"]
    assert isinstance(window, Window)
    assert window.last.source is Source.METRICS
    engine = world.engines["pod-1"]
    assert engine.cap < engine.profile.max_num_seqs
    world.run(200)
    assert engine.cap == engine.profile.max_num_seqs


def test_a_tuner_that_comes_back_is_given_both_knobs_at_once() -> None:
    world = World(
        Objective(0.040, Statistic.P95), FIXED, faults=[TunerLost(200.0, 400.0)], streams=constant(40)
    ).run(200)
    engine = world.engines["pod-1"]
    cap, budget = engine.cap, engine.budget
    assert budget < engine.profile.budget
    world.run(398)
    assert (engine.cap, engine.budget) == (engine.profile.max_num_seqs, engine.profile.budget)
    world.run(400)
    assert (engine.cap, engine.budget) == (cap, pytest.approx(budget, rel=0.25))


def test_a_slow_start_is_told_to_nobody() -> None:
    world = serving(SlowStart(10.0, 90.0, 60.0), replicas_by=None).run(12)
    world._apply(Orders({}, 3))
    assert len(world.run(50).engines) == 2
    assert len(world.run(76).engines) == 3


# --- actions in the wrong direction -----------------------------------------------------------------------


def watched(world: World, orders: Orders) -> list[str]:
    """What is said of these orders, given now."""
    watch = Watch([Silent(0.0, 1e9)])
    world._apply(Orders({"pod-1": Setpoint(16, 300)}, None))
    watch.look(world)
    world.run(world.now + 30)
    watch.look(world)
    world._apply(orders)
    watch.look(world)
    return [w.what for w in watch.found]


def plain(streams: int, target_s: float, replicas: int = 1) -> World:
    """Replicas that nobody tunes, at 16 sequences and a budget of 300."""
    objective = Objective(target_s, Statistic.MEAN)
    return World(objective, FIXED, streams=constant(streams), replicas=replicas, caps_by=Still()).run(10)


class Still:
    """Leaves everything as it is."""

    def step(self, pod: object) -> tuple[Still, Setpoint]:
        return self, Setpoint(getattr(pod, "cap", None), 300)


@pytest.mark.parametrize(
    ("streams", "target_s", "setpoint", "said"),
    [
        (20, 0.010, Setpoint(20, 300), "cap raised while the objective is missed"),
        (20, 0.010, Setpoint(16, 600), "budget raised while the objective is missed"),
        (20, 0.010, Setpoint(20, 150), ""),
        (20, 0.010, Setpoint(12, 300), ""),
        (20, 0.030, Setpoint(20, 300), ""),
        (24, 0.100, Setpoint(8, 300), "cap lowered while requests wait and there is room"),
        (24, 0.100, Setpoint(8, 600), ""),
        (4, 0.100, Setpoint(8, 300), ""),
    ],
)
def test_a_setting_against_the_truth_counts(
    streams: int, target_s: float, setpoint: Setpoint, said: str
) -> None:
    found = watched(plain(streams, target_s), Orders({"pod-1": setpoint}, None))
    assert found == ([said] if said else [])


def test_a_replica_that_goes_while_requests_wait_counts_and_one_that_comes_for_nobody() -> None:
    gone, come = "replica removed while requests wait", "replica added while nobody waits"
    assert watched(plain(90, 0.1, 2), Orders({}, 1)) == [gone]
    assert watched(plain(4, 0.1, 2), Orders({}, 1)) == []
    assert watched(plain(4, 0.1, 1), Orders({}, 2)) == [come]
    assert watched(plain(40, 0.1, 1), Orders({}, 2)) == []


def test_nothing_counts_before_a_fault_nor_without_one() -> None:
    demand = Demand("streams", 60.0, streams=constant(40))
    scenario = Scenario(lambda _: demand, CPU_24M, MEAN_20)
    assert run(scenario, demand, policy("aimd"), 1).outcome.wrong_actions == 0.0
    broken = replace(scenario, faults=[Stale(20.0, 40.0, lag_s=15.0)])
    assert run(broken, demand, policy("aimd"), 1).outcome.wrong_actions > 0.0


def test_the_figures_of_a_run_agree_with_each_other() -> None:
    demand = Demand("streams", 120.0, streams=constant(40))
    found = run(Scenario(lambda _: demand, CPU_24M, MEAN_20), demand, policy("llamaserver"), 1).outcome
    assert found.gpu_seconds == pytest.approx(3600 * found.gpu_hours) == 120.0
    assert found.violated_window_share == 0.0
    assert 0.9 * found.tokens_per_s < found.goodput <= found.tokens_per_s
    assert 0.0 < found.queue_p95_s <= found.ttft_p95_s
    assert found.dropped == found.replica_reversals == 0.0
