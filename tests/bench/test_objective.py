"""Objectives from what the default gives."""

from __future__ import annotations

import pytest

from bench.objective import Rule
from bench.scenarios import SCENARIOS


def test_the_objective_lies_between_the_defaults_median_and_its_tail() -> None:
    assert Rule().ms(25.0, 64.0) == 40.0


@pytest.mark.parametrize(
    ("rule", "ms", "says"),
    [
        (Rule("tail", 1.1), 66.0, "1.1 times the default's p99"),
        (Rule("p50"), 25.0, "the default's p50"),
        (Rule("p50", 1.2, part="chat"), 30.0, "1.2 times the default's p50 in chat"),
        (Rule("middle", 2.0), 77.5, "2 times the geometric mean of the default's p50 and p99"),
    ],
)
def test_a_rule_says_what_it_does(rule: Rule, ms: float, says: str) -> None:
    assert (rule.ms(25.0, 60.0), rule.says("p99")) == (ms, says)


def test_where_only_decodes_run_the_default_holds_the_objective() -> None:
    scenario = SCENARIOS["decode_only"]
    assert scenario.objective.ms(20.0, 24.0) > 24.0
    assert not scenario.sweeps, "nothing can be better than what holds with everything that there is"


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_objective_is_made_in_a_part_that_there_is(name: str) -> None:
    scenario = SCENARIOS[name]
    assert scenario.objective.part in {"", *(part.name for part in scenario.parts if part.windows)}
