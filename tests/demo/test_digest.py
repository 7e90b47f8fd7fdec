"""Quantiles and differences of the engine's digest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.digest import Digest

LO, GROWTH = 1e-4, 1.04


def made_of(values: list[float]) -> Digest:
    import math

    counts: dict[str, int] = {}
    for value in values:
        index = str(math.floor(math.log(value / LO) / math.log(GROWTH)))
        counts[index] = counts.get(index, 0) + 1
    return Digest.parse(
        {"lo": LO, "growth": GROWTH, "count": len(values), "sum": sum(values), "counts": counts}
    )


durations = st.lists(st.floats(2e-4, 10.0), min_size=1, max_size=200)


@given(durations, st.sampled_from(["p50", "p90", "p95", "p99"]))
def test_a_quantile_is_within_two_percent_of_the_exact_one(values: list[float], name: str) -> None:
    import math

    ordered = sorted(values)
    exact = ordered[math.ceil(float(f"0.{name[1:]}") * len(values)) - 1]
    assert made_of(values).statistic(name) == pytest.approx(exact, rel=0.0201)


@given(durations, durations)
def test_a_difference_is_the_digest_of_what_came_in_between(before: list[float], after: list[float]) -> None:
    between = made_of(before + after) - made_of(before)
    alone = made_of(after)
    assert between.counts == alone.counts
    assert between.count == alone.count
    assert between.total_s == pytest.approx(alone.total_s)


def test_the_mean_is_exact() -> None:
    assert made_of([0.010, 0.020, 0.060]).statistic("mean") == pytest.approx(0.030)


def test_no_value_has_no_quantile() -> None:
    empty = made_of([0.5]) - made_of([0.5])
    assert empty.statistic("p95") is None
    assert empty.statistic("mean") is None
    assert empty.percentiles_ms() == {}


def test_a_count_that_fell_is_a_restart() -> None:
    with pytest.raises(ValueError, match="restarted"):
        made_of([0.5]) - made_of([0.5, 0.5])
