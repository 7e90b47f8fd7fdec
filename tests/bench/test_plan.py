"""What is measured in the time there is, and which fixed settings are tried and picked."""

from __future__ import annotations

import pytest

from bench.figures import PartFigures
from bench.plan import (
    COARSE,
    DEFAULT,
    LEAST_SWEEP,
    MOST_SWEEP,
    Pair,
    coarse_grid,
    describe,
    holds,
    is_cap,
    pick,
    plan,
    refine,
)
from bench.scenarios import SCENARIOS, USUAL

TARGET_MS = 40.0


def test_everything_fits_into_an_hour(wanted) -> None:
    work = plan(wanted())
    assert [w.scenario for w in work] == list(USUAL)
    assert sum(w.seconds for w in work) <= 3600
    assert all(w.tried >= LEAST_SWEEP for w in work if w.scenario.windows == 1 and w.scenario.sweeps)
    assert all(w.tried >= 4 for w in work if w.scenario.sweeps)


def test_one_scenario_takes_about_eight_minutes(wanted) -> None:
    (work,) = plan(wanted(scenarios=(SCENARIOS["chat_mix"],), repeats=2, minutes=7.5))
    assert 360 <= work.seconds <= 480
    assert work.coarse > work.refined > 0


def test_more_time_tries_more_settings_up_to_a_bound(wanted) -> None:
    few, many, most = (plan(wanted(minutes=minutes))[0] for minutes in (60, 120, 6000))
    assert few.coarse + few.refined < many.coarse + many.refined < most.coarse + most.refined == MOST_SWEEP


def test_without_a_best_to_find_nothing_is_tried(wanted) -> None:
    (work,) = plan(wanted(scenarios=(SCENARIOS["chat_mix"],), policies=("default", "ours")))
    assert (work.coarse, work.refined) == (0, 0)


def test_a_scenario_with_long_repeats_has_fewer_of_them_and_of_settings(wanted) -> None:
    usual, long = plan(wanted(scenarios=(SCENARIOS["chat_mix"], SCENARIOS["mix_change"]), repeats=5))
    assert (usual.repeats, long.repeats) == (5, 3)
    assert long.tried < usual.tried


@pytest.mark.parametrize("name", ["decode_only", "open_chat"])
def test_nothing_is_tried_where_no_setting_can_be_better(wanted, name: str) -> None:
    (work,) = plan(wanted(scenarios=(SCENARIOS[name],), minutes=30.0))
    assert (work.tried, work.most) == (0, 0)


def test_the_plan_says_what_it_takes_and_when_that_is_too_much(wanted) -> None:
    asked = wanted(minutes=20.0)
    text = "\n".join(describe(asked, plan(asked)))
    assert all(scenario.name in text for scenario in USUAL)
    assert "longer than asked for" in text
    assert "longer than asked for" not in "\n".join(describe(wanted(), plan(wanted())))


@pytest.mark.parametrize("count", range(4, len(COARSE) + 1))
def test_however_few_are_tried_there_are_caps_and_pairs(count: int) -> None:
    grid = coarse_grid(True, True, count)
    assert len(grid) == len(set(grid)) == count
    assert grid == sorted(grid)
    assert min(sum(map(is_cap, grid)), sum(not is_cap(pair) for pair in grid)) >= count // 3


def test_every_coarse_setting_is_one_that_the_engine_takes() -> None:
    assert all(1 <= pair.cap <= DEFAULT.cap and pair.cap < pair.budget <= DEFAULT.budget for pair in COARSE)
    assert DEFAULT not in COARSE


def test_a_search_for_caps_alone_tries_caps_alone() -> None:
    assert all(is_cap(pair) for pair in coarse_grid(True, False, len(COARSE)))


# --- picking ------------------------------------------------------------------------------------


def test_the_best_has_most_throughput_of_those_that_hold(measured) -> None:
    assert pick(measured.points, TARGET_MS, caps_only=True) == Pair(12, 2048)
    assert pick(measured.points, TARGET_MS, caps_only=False) == Pair(32, 64)


def test_none_is_the_best_where_none_holds(measured) -> None:
    assert pick(measured.points, 30.0, caps_only=False) is None
    assert pick({}, 30.0, caps_only=False) is None


def test_the_median_decides_whether_a_setting_holds(figure) -> None:
    points = {Pair(16, 2048): [figure(39.0, 800.0), figure(90.0, 800.0), figure(38.0, 800.0)]}
    assert pick(points, TARGET_MS, caps_only=True) == Pair(16, 2048)


def test_a_lucky_window_is_no_best(figure) -> None:
    points = {
        Pair(12, 2048): [figure(35.0, 740.0), figure(36.0, 745.0)],
        Pair(20, 2048): [figure(39.0, 900.0)],
    }
    assert pick(points, TARGET_MS, caps_only=True) == Pair(20, 2048)
    assert pick(points, TARGET_MS, caps_only=True, repeats=2) == Pair(12, 2048)
    assert pick(points, TARGET_MS, caps_only=True, repeats=3) == Pair(20, 2048)


def test_of_equals_the_one_measured_most_is_the_best(figure) -> None:
    points = {
        Pair(32, 64): [figure(35.0, 980.0), figure(35.0, 990.0)],
        Pair(32, 60): [figure(34.0, 991.0)],
        Pair(32, 48): [figure(30.0, 930.0), figure(30.0, 930.0), figure(30.0, 930.0)],
    }
    assert pick(points, TARGET_MS, caps_only=False) == Pair(32, 64)


def in_halves(figure, *tails_ms: float, tokens_per_s: float = 900.0):
    """A repeat whose parts have these tails, and whose whole looks like the first."""
    parts = tuple(PartFigures(f"part {i}", 5.0, tail, tokens_per_s) for i, tail in enumerate(tails_ms))
    return figure(tails_ms[0], tokens_per_s, parts=parts)


def test_a_setting_that_misses_one_half_is_no_best(figure) -> None:
    points = {
        Pair(32, 128): [in_halves(figure, 20.0, 60.0), in_halves(figure, 20.0, 61.0)],
        Pair(12, 2048): [in_halves(figure, 20.0, 39.0, tokens_per_s=600.0)],
    }
    assert pick(points, TARGET_MS, caps_only=False) == Pair(12, 2048)


def test_parts_that_miss_by_turns_do_not_hold_by_chance(figure) -> None:
    by_turns = [in_halves(figure, 30.0, 50.0), in_halves(figure, 50.0, 30.0), in_halves(figure, 39.0, 39.0)]
    assert holds(by_turns, TARGET_MS), "each part's own median holds"
    assert not holds(by_turns[:1], TARGET_MS)


# --- refining -----------------------------------------------------------------------------------


def points_of(figure, latency, pairs):
    """Measured settings on a machine on which `latency(pair)` is the p95 and throughput follows the cap."""
    return {pair: [figure(latency(pair), 30.0 * pair.cap + 0.01 * pair.budget)] for pair in pairs}


def search(figure, latency, start, caps_only, steps=20):
    pairs = list(start)
    for _ in range(steps):
        found = refine(points_of(figure, latency, pairs), TARGET_MS, caps_only)
        if found is None:
            break
        assert found not in pairs
        assert 1 <= found.cap <= DEFAULT.cap
        assert found.cap < found.budget <= DEFAULT.budget
        pairs.append(found)
    return pick(points_of(figure, latency, pairs), TARGET_MS, caps_only)


@pytest.mark.parametrize("best", [1, 5, 9, 13, 19, 27])
def test_refining_finds_the_best_cap(figure, best: int) -> None:
    def latency(pair: Pair) -> float:
        return TARGET_MS if pair.cap <= best else TARGET_MS + pair.cap

    found = search(figure, latency, [DEFAULT, Pair(16, 2048), Pair(8, 2048)], caps_only=True)
    assert found is not None
    assert best / 1.15 <= found.cap <= best


def test_refining_finds_a_pair_on_the_limit(figure) -> None:
    def latency(pair: Pair) -> float:
        return 5.0 + 0.5 * pair.cap + 0.3 * min(pair.chunk, 256)

    start = [DEFAULT, Pair(16, 2048), Pair(32, 128), Pair(16, 48)]
    found = search(figure, latency, start, caps_only=False)
    assert found is not None
    assert found.cap == 32
    assert 0.85 * TARGET_MS <= latency(found) <= TARGET_MS


def test_refining_goes_below_what_was_tried_where_nothing_holds(figure) -> None:
    points = points_of(figure, lambda pair: 100.0, [DEFAULT, Pair(8, 2048), Pair(16, 32)])
    assert refine(points, TARGET_MS, caps_only=True) == Pair(4, 2048)
    lowest = refine(points_of(figure, lambda pair: 100.0, [Pair(1, 2048)]), TARGET_MS, caps_only=True)
    assert lowest is None
