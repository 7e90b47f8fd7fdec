"""Restarts for another cap: seldom, within bounds, by evidence, and never back and forth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.api.enums import RestartState, ScalingMode, Statistic
from llamaserver.control import Fleet, Limits, Objective, Observed
from llamaserver.control.facts import Facts
from llamaserver.control.line import Line, Load
from llamaserver.control.recovery import Replica, Standing
from llamaserver.control.restart import SUSTAINED_S, Bound, Hold, Past, Restart, Terms, restart
from llamaserver.control.state import Trend
from llamaserver.control.trend import GAP_S, TOLERANCE_S, follow
from llamaserver.control.types import Found
from llamaserver.observe import Failure, Sample, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.world import Orders, World

NOW = 1_800_000_000.0
HOUR = 3600.0
TERMS = Terms(HOUR, low=4, high=256, acting=True, objective="p95 <= 50ms")
LOAD = Load(1000.0, 0.5)
FOUND = Found(
    live=False,
    live_ago_s=math.inf,
    started=256,
    wanted=96,
    reason="",
    running=256,
    missed_s=900.0,
    starved_s=0.0,
    load=LOAD,
    seen="80 ms against 50 ms",
    cold_start_s=240.0,
)
NEVER = Past()
SERVING = Standing(2, (Replica("a", True, "a/0"), Replica("b", True, "b/0")), 0)


def decide(
    past: Past = NEVER, fleet: Standing = SERVING, terms: Terms = TERMS, **found: Any
) -> Restart | Hold:
    return restart(terms, replace(FOUND, **found), fleet, past, NOW)


def test_a_miss_that_lasts_is_answered_with_the_number_that_would_hold_and_its_evidence() -> None:
    done = decide()
    assert isinstance(done, Restart)
    assert done.seqs == 96
    assert done.past == Past(NOW, TERMS.objective, missed=Bound(256, LOAD), starved=None)
    assert "missed for 15 minutes (80 ms against 50 ms), and about 96 sequences would hold it" in done.reason


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"live": True}, "moved live"),
        ({"missed_s": SUSTAINED_S - 1.0}, "has not been missed for 10 minutes"),
        (
            {"wanted": None, "reason": "one point and no slope"},
            "nothing is restarted: one point and no slope",
        ),
        ({"wanted": 220}, "too near to 256"),
        ({"wanted": 2}, "even 4 sequences would miss the objective"),
        ({"running": 60}, "although engines run 60 sequences"),
    ],
)
def test_what_is_no_case_for_a_restart_is_said(found: dict[str, Any], why: str) -> None:
    held = decide(**found)
    assert isinstance(held, Hold)
    assert why in held.reason


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"busy": "a rollout is under way"}, "a rollout is under way"),
        ({"ending": 1}, "1 pod is still ending"),
        ({"replicas": (Replica("a", True, ""), Replica("b", False, ""))}, "pod b is not ready"),
        ({"replicas": SERVING.replicas[:1]}, "there are 1 pods of 2"),
        ({"replicas": (), "wanted": 0}, "no pod runs"),
    ],
)
def test_a_fleet_that_is_on_its_way_is_left_alone(change: dict[str, Any], why: str) -> None:
    held = decide(fleet=replace(SERVING, **change))
    assert isinstance(held, Hold)
    assert held.reason == f"engines are started with 96 instead of 256 sequences once that can be: {why}"
    assert held.again_s is not None


def test_no_restart_comes_before_the_interval_is_over_nor_by_what_was_before_the_last() -> None:
    assert isinstance(decide(Past(NOW - HOUR + 60.0)), Hold)
    assert isinstance(decide(Past(NOW - HOUR)), Restart)
    short = replace(TERMS, min_interval_s=SUSTAINED_S)
    assert isinstance(decide(Past(NOW - SUSTAINED_S), terms=short, missed_s=9000.0), Restart)
    assert "has not been missed" in str(decide(Past(NOW - SUSTAINED_S + 1.0), terms=short, missed_s=9000.0))


def test_a_clock_that_went_back_makes_it_wait() -> None:
    assert isinstance(decide(Past(NOW + 86400.0)), Hold)


def test_without_a_latency_objective_there_is_nothing_to_restart_for() -> None:
    assert "no latency objective is declared" in str(decide(terms=replace(TERMS, objective="")))


def test_who_only_wants_advice_gets_it() -> None:
    held = decide(terms=replace(TERMS, acting=False))
    assert isinstance(held, Hold)
    assert held.reason.startswith("recommended: engines are started with 96 instead of 256 sequences: ")


def test_the_users_bounds_hold_either_way() -> None:
    done = decide(terms=replace(TERMS, high=64))
    assert isinstance(done, Restart)
    assert done.seqs == 64
    up = decide(terms=replace(TERMS, high=200), missed_s=0.0, starved_s=900.0, started=64, wanted=900)
    assert isinstance(up, Restart)
    assert (up.seqs, up.past.starved, up.past.missed) == (200, Bound(64, LOAD), None)


def test_what_failed_is_not_tried_again_until_objective_or_load_are_others() -> None:
    past = Past(NOW - HOUR, TERMS.objective, missed=Bound(100, LOAD))
    starving = {"missed_s": 0.0, "starved_s": 900.0, "started": 40, "wanted": 200}
    up = decide(past, **starving)
    assert isinstance(up, Restart)
    assert up.seqs == 99
    low = replace(past, missed=Bound(50, LOAD))
    near = decide(low, **starving)
    assert "what was tried before under this load" in str(near)
    for other in ({"load": Load(400.0, 0.5)}, {"load": Load(1000.0, 2.0)}):
        free = decide(low, **{**starving, **other})
        assert isinstance(free, Restart)
        assert (free.seqs, free.past.missed) == (200, None)
    other_target = replace(TERMS, objective="p95 <= 90ms")
    assert isinstance(decide(low, terms=other_target, **starving), Restart)


def test_each_bound_keeps_the_load_that_it_was_found_under() -> None:
    long = Load(2000.0, 0.5)
    past = Past(NOW - HOUR, TERMS.objective, missed=Bound(30, long))
    starving = {"missed_s": 0.0, "starved_s": 900.0}
    first = decide(past, started=10, wanted=18, load=Load(1400.0, 0.5), **starving)
    assert isinstance(first, Restart)
    assert first.past.missed == Bound(30, long)
    later = replace(first.past, at=NOW - HOUR)
    second = decide(later, started=18, wanted=120, load=Load(1000.0, 0.5), **starving)
    assert isinstance(second, Restart), "contexts are half as long: the bound says nothing any more"
    assert second.seqs == 120


def test_what_would_only_trade_a_missed_objective_for_a_queue_is_left_and_the_cure_is_said() -> None:
    past = Past(NOW - HOUR, TERMS.objective, missed=Bound(40, LOAD), starved=Bound(12, LOAD))
    held = decide(past, started=20, running=20, wanted=5)
    assert isinstance(held, Hold)
    assert held.state is RestartState.NO_BETTER_NUMBER
    assert "fewer than 13 sequences left requests waiting under this load, and more than 5 miss" in str(held)
    assert "add replicas, or relax slo.interTokenLatency.target" in held.reason


@pytest.mark.parametrize(
    ("ago_s", "restarts"), [(60.0, False), (3599.0, False), (3601.0, True), (math.inf, True)]
)
def test_a_live_cap_that_was_there_within_the_hour_is_waited_for(ago_s: float, restarts: bool) -> None:
    done = decide(live_ago_s=ago_s)
    assert isinstance(done, Restart) is restarts
    if isinstance(done, Hold):
        assert done.state is RestartState.LIVE
        assert f"was moved live {ago_s / 60:.0f} minutes ago" in done.reason


steps = st.lists(
    st.tuples(
        st.floats(1.0, 2 * HOUR),
        st.one_of(st.none(), st.integers(-5, 600)),
        st.booleans(),
        st.booleans(),
        st.integers(1, 400),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(steps, st.integers(1, 40), st.integers(40, 400), st.floats(SUSTAINED_S, 4 * HOUR))
def test_however_the_figures_waver_it_is_seldom_within_bounds_and_never_back(
    told: list[tuple[float, int | None, bool, bool, int]], low: int, high: int, interval_s: float
) -> None:
    terms = Terms(interval_s, low, high, True, "p95 <= 50ms")
    now, past, started, visited, times = NOW, Past(), high, {high}, []
    for later, wanted, missed, busy, running in told:
        now += later
        found = replace(
            FOUND,
            started=started,
            wanted=wanted,
            missed_s=900.0 if missed else 0.0,
            starved_s=0.0 if missed else 900.0,
            running=running,
        )
        done = restart(terms, found, replace(SERVING, busy="x" if busy else ""), past, now)
        if isinstance(done, Hold):
            continue
        assert not busy
        assert low <= done.seqs <= high
        if missed:
            assert wanted is not None and done.seqs <= max(low, wanted), "a cut is to what holds, or below"
        assert max(done.seqs, started) >= 1.25 * min(done.seqs, started)
        assert done.seqs not in visited, "the load is the same, so what was left is left for good"
        visited.add(done.seqs)
        times.append(now)
        past, started = done.past, done.seqs
    assert all(b - a >= interval_s for a, b in pairwise(times))


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.001, 0.1),
    st.floats(1e-5, 1e-2),
    st.lists(st.floats(1.0, 300.0), min_size=2, max_size=30),
    st.floats(0.002, 0.5),
)
def test_a_line_without_noise_is_found_as_it_is(
    rest: float, slope: float, streams: list[float], allowed: float
) -> None:
    line = Line()
    for x in streams:
        line = line.after(10.0, x, rest + slope * x)
    reached = line.reaches(allowed)
    spread = max(streams) - min(streams)
    if spread < 0.3 * max(streams):
        return
    assert reached is not None
    assert reached[0] == pytest.approx((allowed - rest) / slope, rel=1e-3, abs=1e-3 * max(streams))


def test_streams_that_never_vary_have_no_slope() -> None:
    line = Line()
    for _ in range(1000):
        line = line.after(10.0, 64.0, 0.05)
    assert line.reaches(0.02) is None


def wave(low: float, high: float, period_s: float) -> Callable[[float], float]:
    return lambda t: low + (high - low) * (0.5 - 0.5 * math.cos(2 * math.pi * t / period_s))


def lived(streams: Callable[[float], float], hours: float) -> tuple[World, list[int], str]:
    """A fleet without a tuner, read by /metrics alone, whose engines are restarted as is decided."""
    terms = Terms(1800.0, 1, CPU_24M.max_num_seqs, True, "mean <= 16ms")
    limits = Limits(scaling=ScalingMode.FIXED, started=CPU_24M.max_num_seqs)
    world = World(
        Objective(0.016, Statistic.MEAN), limits, CPU_24M, streams=streams, text=True, tick_s=10.0, seed=1
    )
    past, chosen, said = Past(), [], ""
    while world.now < hours * HOUR:
        world.tick()
        fleet = Standing(1, tuple(Replica(name, True, name) for name in world.engines), 0)
        done = restart(terms, world.decisions[-1][1].restart, fleet, past, world.now)
        if isinstance(done, Hold):
            said = done.reason
            continue
        past = done.past
        chosen.append(done.seqs)
        world.profile = replace(world.profile, max_num_seqs=done.seqs)
        world.limits = replace(world.limits, started=done.seqs)
        for name in list(world.engines):
            world.kill(name)
    return world, chosen, said


def test_an_engine_whose_load_comes_and_goes_is_restarted_once_and_holds_from_then_on() -> None:
    world, chosen, _ = lived(wave(4, 44, 2400.0), 1.3)
    assert len(chosen) == 1
    assert chosen[0] < CPU_24M.max_num_seqs
    assert world.violated(1800.0) <= 0.1


def test_an_engine_that_was_full_all_the_time_is_left_alone_and_the_reason_is_said() -> None:
    _, chosen, said = lived(lambda _: 40, 0.5)
    assert chosen == []
    assert "about 32 streams decoded at once all the time" in said
    assert "change spec.engine.maxNumSeqs by hand" in said


SLOW = replace(CPU_24M, a=8 * CPU_24M.a, b=8 * CPU_24M.b, g=8 * CPU_24M.g, d=8 * CPU_24M.d, c=8 * CPU_24M.c)
"""Eight times as slow, which is simulated eight times as fast."""


class Rolling(World):
    """A fleet without a tuner of which a restart replaces one replica after the other, without surge."""

    terms = Terms(SUSTAINED_S, 1, SLOW.max_num_seqs, True, "mean <= 128ms")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.old: list[str] = []
        self.past = Past()
        self.chosen: list[tuple[float, int]] = []
        self.unsettled: list[float] = []
        self.told: Restart | Hold | None = None

    @property
    def settled(self) -> bool:
        return super().settled and not self.old

    def tick(self) -> Orders:
        if self.old and not self.starting:
            self.kill(self.old.pop(0))
        orders = super().tick()
        if not self.settled:
            self.unsettled.append(self.now)
        busy = "" if self.settled else "a rollout is under way"
        pods = tuple(Replica(name, True, name) for name in self.engines)
        fleet = Standing(self.replicas, pods, 0, busy)
        self.told = restart(self.terms, self.decisions[-1][1].restart, fleet, self.past, self.now)
        if isinstance(self.told, Restart):
            self.past = self.told.past
            self.chosen.append((self.now, self.told.seqs))
            self.profile = replace(self.profile, max_num_seqs=self.told.seqs)
            self.limits = replace(self.limits, started=self.told.seqs)
            self.old = list(self.engines)
        return orders


def fleet_of(replicas: int, streams: Callable[[float], float], **more: Any) -> Rolling:
    return Rolling(
        Objective(0.128, Statistic.MEAN),
        Limits(scaling=ScalingMode.FIXED, started=SLOW.max_num_seqs),
        SLOW,
        streams=streams,
        tick_s=10.0,
        replicas=replicas,
        **more,
    )


def test_what_a_long_rollout_does_to_the_latency_is_no_ground_for_the_next_restart() -> None:
    """Three replicas are replaced one by one for twelve minutes, in which two carry the load of three, some
    with the number of before. That is longer than minInterval, and than what a missed objective needs.
    """
    world = fleet_of(3, wave(12, 132, 2400.0), text=True, cold_start_s=240.0)
    while not world.unsettled or world.now < world.unsettled[-1] + SUSTAINED_S:
        world.tick()
        assert world.now < 2 * HOUR
        found = world.decisions[-1][1].restart
        if world.unsettled and found is not None:
            assert found.missed_s <= world.now - world.unsettled[-1], "what was before counts no more"
    ((at, seqs),) = world.chosen
    assert world.unsettled[-1] - at > SUSTAINED_S
    assert seqs < SLOW.max_num_seqs
    world.run(world.now + 2400.0)
    assert [number for _, number in world.chosen] == [seqs]
    assert world.violated(world.now - 2400.0) <= 0.1


def test_a_tuner_that_is_away_is_waited_for_and_when_it_is_back_nothing_was_restarted() -> None:
    world = fleet_of(2, wave(8, 88, 2400.0), cold_start_s=60.0)
    world.run(1200.0)
    assert isinstance(world.told, Hold)
    assert world.told.state is RestartState.LIVE
    world.text = True
    ready = 0
    while world.now < 1200.0 + 3500.0:
        world.tick()
        found = world.decisions[-1][1].restart
        ready += found is not None and found.missed_s >= SUSTAINED_S and found.wanted is not None
    assert ready > 0, "the objective was missed for long enough, and what would hold it is known"
    assert world.chosen == []
    assert "was moved live 58 minutes ago" in str(world.told)
    world.text = False
    world.run(world.now + 60.0)
    assert "is moved live, which needs no restart" in str(world.told)


def judged(
    trend: Trend, now: float, level: float | None, *, settled: bool = True, rolling: str = ""
) -> Trend:
    """The trend after a tick in which the latency was `level` times the target; None: not measured."""
    itl_s = None if level is None else 0.05 * level
    observed = Observed(itl_s, itl_s, None, None, None, None, None, None, None)
    trend = trend if itl_s is None else replace(trend, statistic_s=itl_s, mean_s=itl_s)
    facts = Facts(
        objective=Objective(0.05),
        limits=Limits(started=64, rolling=rolling),
        fleet=Fleet(1, 1, 0, settled=settled),
        model=None,
        pods=(),
        blind=(),
        observed=observed,
        queue_now_s=None,
        now=now,
    )
    return follow(trend, facts)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([2.0, 10.0, 30.0]), st.sampled_from([1.5, 0.5, None])), max_size=80)
)
def test_a_miss_has_lasted_only_since_it_was_last_seen_to_be_over(
    steps: list[tuple[float, float | None]],
) -> None:
    trend, now, last_missed, began = Trend(), 0.0, -math.inf, math.inf
    for later, level in steps:
        now += later
        trend = judged(trend, now, level)
        if level == 0.5 and now - last_missed > TOLERANCE_S:
            began = math.inf
        if level == 1.5:
            began = now if math.isinf(began) or now - last_missed > GAP_S else began
            last_missed = now
        if trend.missed is not None and now - trend.missed.seen <= GAP_S:
            assert trend.missed.since == began


def test_a_miss_now_and_then_is_none_that_lasts() -> None:
    trend = Trend()
    for second in range(0, 1201, 7):
        trend = judged(trend, float(second), 1.5 if second % 119 == 0 else 0.5)
        assert trend.missed is None or trend.missed.seen - trend.missed.since <= TOLERANCE_S


def test_while_pods_come_and_go_nothing_is_judged() -> None:
    trend = judged(judged(Trend(), 0.0, 1.5), 100.0, 1.5)
    assert trend.missed is not None
    trend = judged(trend, 110.0, 1.5, settled=False)
    assert (trend.missed, trend.statistic_s) == (None, None)
    after = judged(trend, 120.0, 1.5)
    assert after.missed is not None
    assert after.missed.since == 120.0


def test_what_other_pods_have_shown_is_forgotten() -> None:
    """Pods of another model, say, that are twice as slow."""
    line = Line()
    for streams in range(4, 40):
        line = line.after(10.0, float(streams), 0.01 + 0.001 * streams)
    trend = judged(replace(Trend(), line=line, live_at=5.0), 10.0, 1.5)
    assert trend.line == line
    trend = judged(trend, 20.0, 1.5, rolling="other")
    assert (trend.line, trend.beside, trend.load) == (Line(), 1.0, (0.0, 0.0, 0.0, 0.0))
    assert trend.live_at == 5.0
    assert trend.missed is not None
    assert trend.missed.since == 20.0


@pytest.mark.parametrize("reason", ["PipelineParallel", "CustomScheduler", "PrefillRole"])
def test_an_engine_that_cannot_be_moved_as_it_was_started_is_not_waited_for(reason: str) -> None:
    def refusing(name: str, engine: Engine, now: float) -> Sample | Failure:
        found = parse_snapshot(speech.snapshot(engine), now, f"{name}/0")
        assert isinstance(found, Sample)
        return replace(found, engines=tuple(replace(one, live_cap=reason) for one in found.engines))

    world = fleet_of(1, lambda _: 20.0)
    world.run(60.0)
    world.views = dict.fromkeys(world.engines, refusing)
    world.run(120.0)
    found = world.decisions[-1][1].restart
    assert found is not None
    assert (found.live, found.live_ago_s) == (False, math.inf)
    world.views, world.text = {}, True
    world.run(180.0)
    found = world.decisions[-1][1].restart
    assert found is not None
    assert found.live_ago_s == pytest.approx(120.0)
