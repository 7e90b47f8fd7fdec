"""The benchmark of the law: its scenarios are what they say, and its result has the form that is promised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control.ablations import ABLATIONS, chosen
from control.bench import meant, measured, merged, summary
from control.benchpage import cost, page
from control.diagnosing import ILLNESSES, named
from control.scenarios import CASES, rates, together
from llamaserver.api.enums import Statistic
from llamaserver.control import Cause, Objective
from llamaserver.simulate.outcome import FIGURES

BRIEF = replace(CASES["S7d"], demand=rates((4.0, 1.0), 20.0, 200, 50))


def test_a_scenario_gives_mean_and_interval_of_every_figure() -> None:
    runs, told = measured(BRIEF, chosen("default,llamaserver"), seeds=(1, 2))
    found = summary(BRIEF, runs)
    for policy in ("default", "llamaserver"):
        assert set(found[policy]) == set(FIGURES)
        assert found[policy]["tokens_per_s"]["mean"] > 0
        assert found[policy]["tokens_per_s"]["ci95"] > 0
        assert policy in told


def test_parts_of_a_run_add_up_to_the_whole() -> None:
    whole, _ = measured(BRIEF, chosen("default,aimd"), seeds=(1, 2))
    parts: dict[str, Any] = {}
    for names, seeds in (("aimd", (2,)), ("default", (1, 2)), ("aimd", (1,))):
        parts = merged(parts, measured(BRIEF, chosen(names), seeds)[0])
    one, other = summary(BRIEF, whole), summary(BRIEF, parts)
    assert one["aimd"] == other["aimd"]
    assert one["default"] == other["default"]


def test_a_run_of_before_there_was_a_figure_still_tells_the_others() -> None:
    old, _ = measured(BRIEF, chosen("default"), seeds=(1,))
    del old["default"]["seeds"]["1"]["gpu_hours"]
    parts = merged(old, measured(BRIEF, chosen("default"), seeds=(2,))[0])
    found = summary(BRIEF, parts)["default"]
    assert found["gpu_hours"] == {"mean": None, "ci95": None}
    assert found["tokens_per_s"]["mean"] > 0


def test_the_page_shows_every_scenario_and_needs_nothing_else() -> None:
    runs, _ = measured(BRIEF, chosen("default,llamaserver"), seeds=(1,))
    told = summary(BRIEF, runs)
    found = {"accuracy": 0.9, "by_cause": {"Idle": 0.9}, "confusion": {"Idle": {"Idle": 9, "Stale": 1}}}
    made = page({"seeds": [1], "scenarios": {"S7d": told}, "diagnosis": found})
    assert made.count("<svg") == 1
    assert "90.0 %" in made
    assert "http" not in made.replace("http://www.w3.org/2000/svg", "")
    good = told["default"]["goodput"]["mean"] * 20.0
    assert cost(told["default"], 40.0) == pytest.approx(1e3 * 40.0 / good)


def test_a_name_is_meant_or_all_that_begin_with_it() -> None:
    assert meant(["S3x2", "plant"]) == ["S3x2", "plant"]
    assert meant(["S3", "S3x2"]) == ["S3x1", "S3x2", "S3x4"]
    assert meant(["S1", "S7d"]) == ["S1", "S7d"]
    assert meant([])[0] == "S0"


@pytest.mark.parametrize("name", ["S9", "s1", ""])
def test_a_name_that_is_not_there_is_answered_with_those_that_are(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown name {name!r}; there are S0, S1, .*validity"):
        meant([name])


def test_every_cause_is_brought_about() -> None:
    assert {illness.cause for illness in ILLNESSES} == set(Cause)


def test_a_cause_that_is_brought_about_is_counted_by_what_was_named() -> None:
    idle = next(illness for illness in ILLNESSES if illness.cause is Cause.IDLE)
    assert named(idle, 1) == {"Idle": 26}


@pytest.mark.parametrize("name", sorted(ABLATIONS))
def test_an_ablation_runs_and_is_not_the_whole_law(name: str) -> None:
    busy = replace(BRIEF, demand=rates((40.0,), 100.0, 1000, 100), replicas_max=2, cold_start_s=5.0)
    if name == "no-kv-ceiling":
        long = rates((6.0,), 150.0, 2000, 3000)
        busy = replace(BRIEF, demand=long, objective=Objective(0.060, Statistic.P95))
    runs, _ = measured(busy, chosen(f"llamaserver,{name}"), seeds=(1,))
    assert runs[name]["seeds"] != runs["llamaserver"]["seeds"]


def test_seconds_of_recovery_are_means_of_the_seeds_that_had_to_recover() -> None:
    runs, _ = measured(BRIEF, chosen("default"), seeds=(1, 2, 3))
    seeds = runs["default"]["seeds"]
    assert [seed["recovery_s"] for seed in seeds.values()] == [None] * 3, "there is no step"
    assert summary(BRIEF, runs)["default"]["recovery_s"] == {"mean": None, "ci95": None, "seeds": 0, "of": 3}
    seeds["1"]["recovery_s"], seeds["3"]["recovery_s"] = 10.0, 30.0
    found = summary(BRIEF, runs)
    assert found["default"]["recovery_s"] == {"mean": 20.0, "ci95": pytest.approx(127.1), "seeds": 2, "of": 3}
    assert "20 ± 127 (2 of 3)" in page({"seeds": [1, 2, 3], "scenarios": {"S7d": found}})
    del seeds["2"]["recovery_s"]  # as in a run of before there was such a figure
    assert summary(BRIEF, runs)["default"]["recovery_s"] == {"mean": None, "ci95": None}


def test_several_demands_at_once_are_in_the_order_of_time_and_independent() -> None:
    short, long = rates((2.0,), 60.0, 100, 50), rates((1.0,), 60.0, 5000, 50)
    made = together(short, long, name="both")(3)
    assert [r.at for r in made.requests] == sorted(r.at for r in made.requests)
    assert len(made.requests) == len(short(3).requests) + len(long(1003).requests)
    assert made.duration_s == 60.0


def test_a_steady_fleet_keeps_its_replicas_and_its_caps() -> None:
    brief = replace(CASES["S0"], demand=rates((48.0,), 150.0, 1000, 200))
    found = summary(brief, measured(brief, chosen("llamaserver"), seeds=(1,))[0])
    assert [one["met"] for one in found["targets"]] == [True, True], found["targets"]


def test_both_knobs_hold_a_p99_under_long_prompts_and_serve_where_the_cap_alone_only_puts_off() -> None:
    case = CASES["S5p99"]
    found = summary(case, measured(case, chosen("llamaserver-cap,llamaserver"), seeds=(1,))[0])
    both, alone = ({f: found[p][f]["mean"] for f in FIGURES} for p in ("llamaserver", "llamaserver-cap"))
    assert both["violated_window_share"] <= 0.02
    assert both["goodput"] > 2 * alone["goodput"]
    assert both["queue_p95_s"] < 5.0
    assert alone["queue_p95_s"] > 60.0


def test_a_restarted_engine_leads_to_no_action_in_the_wrong_direction() -> None:
    case = CASES["S8-restarted"]
    found = summary(case, measured(case, chosen("llamaserver"), seeds=(1,))[0])
    assert found["llamaserver"]["wrong_actions"]["mean"] == 0.0
    assert found["llamaserver"]["dropped"]["mean"] > 0.0
    assert found["llamaserver"]["violated_window_share"]["mean"] <= 0.05


def test_rates_follow_one_another() -> None:
    made = rates((20.0, 2.0), 50.0, 100, 50)(1)
    early = sum(r.at < 50 for r in made.requests)
    assert early == pytest.approx(1000, rel=0.15)
    assert len(made.requests) - early == pytest.approx(100, rel=0.35)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.trace])
def test_every_seed_gives_its_own_demand(name: str) -> None:
    demand = CASES[name].demand
    assert demand(11).requests == demand(11).requests != demand(12).requests
