"""Who is better than the law is found by the figures, whoever it is; and whether it reached its targets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.benchpage import markdown, page
from control.standing import Verdict, counts, details, standing, summary, verdict
from control.targets import Target, reached, told
from llamaserver.simulate.outcome import FIGURES

points = st.tuples(st.sampled_from([0.0, 0.01, 0.3]), st.sampled_from([600.0, 1550.0, 2844.0]))


def figures(missed: float, gpu_s: float, goodput: float = 1000.0, **more: float) -> dict[str, Any]:
    means = {"violated_window_share": missed, "gpu_seconds": gpu_s, "goodput": goodput, "queue_p95_s": 2.0}
    return {name: {"mean": (means | more).get(name, 0.0), "ci95": None} for name in FIGURES}


def scenario(**policies: Any) -> dict[str, Any]:
    return {"says": "something", "duration_s": 600.0, **policies}


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ((0.1, 1000.0), Verdict.SAME),
        ((0.1, 999.0), Verdict.BETTER),
        ((0.0, 1000.0), Verdict.BETTER),
        ((0.0, 999.0), Verdict.BETTER),
        ((0.2, 999.0), Verdict.CHEAPER),
        ((0.0, 1001.0), Verdict.DEARER),
        ((0.1, 1001.0), Verdict.WORSE),
        ((0.2, 1000.0), Verdict.WORSE),
        ((0.2, 1001.0), Verdict.WORSE),
    ],
)
def test_better_is_no_worse_in_both_and_better_in_one(theirs: tuple[float, float], expected: Verdict) -> None:
    assert verdict(theirs, (0.1, 1000.0)) is expected


@given(points, points)
def test_seen_from_the_other_side_it_is_the_opposite(
    one: tuple[float, float], other: tuple[float, float]
) -> None:
    opposite = {
        Verdict.WORSE: Verdict.BETTER,
        Verdict.BETTER: Verdict.WORSE,
        Verdict.CHEAPER: Verdict.DEARER,
        Verdict.DEARER: Verdict.CHEAPER,
        Verdict.SAME: Verdict.SAME,
    }
    assert verdict(one, other) is opposite[verdict(other, one)]


FOUND = {
    "A": scenario(
        default=figures(0.4, 600.0),
        aimd=figures(0.0, 600.0),
        **{"best-cap": figures(0.01, 600.0, goodput=500.0), "llamaserver-cap": figures(0.0, 600.0)},
        llamaserver=figures(0.02, 600.0),
    ),
    "B": scenario(
        **{
            "default+hpa": figures(0.5, 1200.0),
            "default+wva": figures(0.0, 3300.0),
            "llamaserver+oracle": figures(0.0, 900.0),
            "no-fast-loop": figures(0.0, 800.0),
        },
        llamaserver=figures(0.01, 1500.0),
    ),
    "C": scenario(default=figures(0.0, 600.0)),
}


def test_baselines_are_those_that_are_nothing_of_the_law() -> None:
    rows = standing(FOUND)
    assert [(r.scenario, r.baseline) for r in rows] == [
        ("A", "default"), ("A", "aimd"), ("A", "best-cap"), ("B", "default+hpa"), ("B", "default+wva"),
    ]  # fmt: skip


def test_who_is_better_is_named_with_the_figures_that_say_why() -> None:
    rows = standing(FOUND)
    assert counts(rows) == [
        ("A", "3", "1", "0", "0", "0", "aimd, best-cap (hindsight)"),
        ("B", "2", "0", "0", "1", "1", "0"),
    ]
    assert details(rows) == [
        ("A", "aimd", "better", "100.0 (98.0)", "600 (600)", "100", "2.0 (2.0)"),
        ("A", "best-cap (hindsight)", "better", "99.0 (98.0)", "600 (600)", "50", "2.0 (2.0)"),
        ("B", "default+hpa", "cheaper, misses more", "50.0 (99.0)", "1200 (1500)", "100", "2.0 (2.0)"),
        ("B", "default+wva", "dearer, misses less", "100.0 (99.0)", "3300 (1500)", "100", "2.0 (2.0)"),
    ]
    assert "Of 5 pairs" in summary(rows)
    assert summary(rows).endswith("and better in 2.")


def test_what_was_not_measured_is_no_baseline() -> None:
    unmeasured = figures(0.0, 600.0)
    unmeasured["violated_window_share"]["mean"] = None
    assert standing({"A": scenario(default=unmeasured, llamaserver=figures(0.0, 600.0))}) == []


def test_page_and_text_tell_it() -> None:
    result = {"seeds": [1], "scenarios": FOUND}
    assert "| A | aimd | better | 100.0 (98.0) | 600 (600) | 100 | 2.0 (2.0) |" in markdown(result)
    assert "<td>aimd, best-cap (hindsight)</td>" in page(result)
    assert "every baseline" not in markdown({"seeds": [1], "scenarios": {}})


RATIO = Target("GPU-seconds over those of the oracle", "gpu_seconds", 1.8, beside="llamaserver+oracle")


def test_a_target_is_kept_missed_or_not_run() -> None:
    (found,) = reached([RATIO], FOUND["B"])
    assert found == {"says": RATIO.says, "most": 1.8, "value": pytest.approx(1500 / 900), "met": True}
    assert told(found) == "GPU-seconds over those of the oracle: 1.67 (at most 1.8): kept"
    (missed,) = reached([Target("windows missed", "violated_window_share", 0.0)], FOUND["B"])
    assert told(missed).endswith("0.01 (at most 0): NOT KEPT")
    (unrun,) = reached([RATIO], FOUND["A"])
    assert (unrun["met"], told(unrun)) == (None, f"{RATIO.says}: not run (at most 1.8)")


def test_a_target_of_recovery_is_kept_where_nothing_was_to_recover() -> None:
    target = Target("seconds", "recovery_s", 10.0)
    ours = {"llamaserver": {"recovery_s": {"mean": None, "ci95": None, "seeds": 0, "of": 5}}}
    assert told(reached([target], ours)[0]) == "seconds: nothing was to recover (at most 10): kept"
    before = {"llamaserver": {"recovery_s": {"mean": None, "ci95": None}}}
    assert reached([target], before)[0]["met"] is None
