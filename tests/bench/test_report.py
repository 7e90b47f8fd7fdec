"""The result's form, its table and its page."""

from __future__ import annotations

import json
import re

import pytest

from bench import page, table
from bench.figures import PartFigures
from bench.measure import Measured
from bench.scenarios import SCENARIOS
from bench.settings import POLICIES, REPOSITORY
from harness.loopback import MAX_MODEL_LEN

FIGURES = {
    "itl_p50_ms",
    "itl_p95_ms",
    "itl_p99_ms",
    "tokens_per_s",
    "ttft_p50_s",
    "ttft_p95_s",
    "violated_window_share",
}


def test_every_policy_has_its_figures(report) -> None:
    found = report()["scenarios"]["chat_mix"]
    for name in ("default", "best_cap", "best_pair", "ours"):
        assert found[name].keys() >= FIGURES, name
        assert found[name]["spread"]["itl_p95_ms"][0] <= found[name]["itl_p95_ms"]
    assert found["target_ms"] == 40.0
    assert (found["best_cap"]["cap"], found["best_cap"]["holds"]) == (12, True)
    assert (found["best_pair"]["cap"], found["best_pair"]["budget"]) == (32, 64)
    assert found["default"]["holds"] is False
    assert found["ours"]["repeats"] == 3


def test_the_sweep_holds_every_fixed_setting_that_was_tried(report, measured) -> None:
    sweep = report()["scenarios"]["chat_mix"]["sweep"]
    assert [(point["cap"], point["budget"]) for point in sweep] == [
        (pair.cap, pair.budget) for pair in sorted(measured.points)
    ]
    assert all(point.keys() >= FIGURES for point in sweep)


def test_the_cost_inside_the_engine_is_the_tuners_and_that_of_a_variants_own_part(report, measured) -> None:
    assert report()["actuator_us_per_step"] is None
    assert report(tuner_us=3.0)["actuator_us_per_step"] == 3.0
    measured.us_per_step = 3.5
    assert report()["actuator_us_per_step"] == 3.5
    assert report(tuner_us=3.0)["actuator_us_per_step"] == 6.5


def test_a_run_that_was_cut_short_says_so_and_shows_what_is_known(report, measured) -> None:
    cut = Measured(SCENARIOS["chat_mix"], points={}, target_ms=None)
    assert report(cut, "it was interrupted")["scenarios"] == {}
    cut.points = {pair: repeats for pair, repeats in measured.points.items() if pair.cap == 32}
    found = report(cut, "it was interrupted")
    assert found["complete"] is False
    assert found["scenarios"]["chat_mix"]["best_cap"] is None
    assert found["scenarios"]["chat_mix"]["ours"] is None
    assert "Incomplete: it was interrupted" in page.html(found)
    assert "not measured to its end" in page.html(found)
    assert "**Incomplete: it was interrupted.**" in table.markdown(found)


def test_a_machine_that_was_busy_with_something_else_is_said(report, measured, figure) -> None:
    assert "Disturbed" not in page.html(report())
    measured.variants = {"ours": [figure(35.0, 900.0, others_cores=0.6)]}
    found = report()
    assert found["scenarios"]["chat_mix"]["others_cores"] == 0.6
    assert "0.60 cores during chat_mix" in table.markdown(found)
    assert "0.60 cores during chat_mix" in page.html(found)


def test_a_best_that_does_not_exist_is_said_and_not_left_out(report, measured) -> None:
    measured.target_ms = 20.0
    found = report()
    assert found["scenarios"]["chat_mix"]["best_pair"] is None
    assert "none holds" in table.markdown(found)
    assert "none holds" in page.html(found)


def test_only_what_was_asked_for_is_told(report) -> None:
    found = report(policies=("default", "ours"))["scenarios"]["chat_mix"]
    assert "best_cap" not in found
    assert table.policies(found) == ["default", "ours"]


def test_the_table_tells_what_the_result_tells(report) -> None:
    lines = table.markdown(report()).splitlines()
    assert lines[2].startswith("| `chat_mix`, p95 ≤ 40 ms | default | as started |")
    assert any("| best_cap | cap 12 |" in line for line in lines)
    assert any("| best_pair | cap 32, budget 64 |" in line for line in lines)
    assert len({line.count("|") for line in lines[:6]}) == 1


def test_a_part_that_misses_is_named(report, measured, figure) -> None:
    parts = (PartFigures("documents", 30.0, 35.0, 100.0), PartFigures("chat", 20.0, 52.5, 900.0))
    measured.variants = {"ours": [figure(35.0, 900.0, parts=parts, violated_at_change=1.0)]}
    found = report()
    said = found["scenarios"]["chat_mix"]["ours"]
    assert (said["holds"], said["worst_tail_ms"], said["violated_at_change"]) == (False, 52.5, 1.0)
    assert [part["name"] for part in said["parts"]] == ["documents", "chat"]
    assert "| 0 %, 100 % at the change | no: 52.5 ms in chat |" in table.markdown(found)
    assert "900 (52)" in page.html(found)


def test_the_page_needs_nothing_but_itself(report) -> None:
    html = page.html(report())
    assert html.count("<svg") == 1
    assert not re.search(r"<(script|link|img|iframe)\b|\bsrc=|url\(\s*['\"]?http", html)
    assert "$" not in html


def test_the_page_is_made_from_the_file_alone(report) -> None:
    found = report()
    again = json.loads(json.dumps(found))
    assert page.html(again).count("best_pair") == page.html(found).count("best_pair") > 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_scenarios_have_the_same_number_of_streams(name: str) -> None:
    assert {sum(group.streams for group in mix) for mix in SCENARIOS[name].mixes} == {40}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_request_is_longer_than_the_engine_takes(name: str) -> None:
    flags = SCENARIOS[name].flags
    most = int(flags[flags.index("--max-model-len") + 1]) if "--max-model-len" in flags else MAX_MODEL_LEN
    assert max(group.longest for mix in SCENARIOS[name].mixes for group in mix) <= most


def test_the_documentation_names_every_scenario_and_policy() -> None:
    text = (REPOSITORY / "docs" / "bench-engine.md").read_text()
    assert all(f"| `{name}` |" in text for name in (*SCENARIOS, *POLICIES))
