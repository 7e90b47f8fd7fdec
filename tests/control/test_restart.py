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

from llamaserver.api.enums import ScalingMode, Statistic
from llamaserver.control import Limits, Objective
from llamaserver.control.line import Line, Load
from llamaserver.control.recovery import Replica, Standing
from llamaserver.control.restart import SUSTAINED_S, Hold, Past, Restart, Terms, restart
from llamaserver.control.types import Found
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.world import World

NOW = 1_800_000_000.0
HOUR = 3600.0
TERMS = Terms(HOUR, low=4, high=256, acting=True, objective="p95 <= 50ms")
LOAD = Load(1000.0, 0.5)
FOUND = Found(
    live=False,
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
    assert done.past == Past(NOW, TERMS.objective, LOAD, missed=256, starved=None)
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
    assert (up.seqs, up.past.starved, up.past.missed) == (200, 64, None)


def test_what_failed_is_not_tried_again_until_objective_or_load_are_others() -> None:
    past = Past(NOW - HOUR, TERMS.objective, LOAD, missed=100)
    starving = {"missed_s": 0.0, "starved_s": 900.0, "started": 40, "wanted": 200}
    up = decide(past, **starving)
    assert isinstance(up, Restart)
    assert up.seqs == 99
    near = decide(replace(past, missed=50), **starving)
    assert "what was tried before under this load" in str(near)
    for other in ({"load": Load(400.0, 0.5)}, {"load": Load(1000.0, 2.0)}):
        free = decide(replace(past, missed=50), **{**starving, **other})
        assert isinstance(free, Restart)
        assert (free.seqs, free.past.missed) == (200, None)
    other_target = replace(TERMS, objective="p95 <= 90ms")
    assert isinstance(decide(replace(past, missed=50), terms=other_target, **starving), Restart)


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
