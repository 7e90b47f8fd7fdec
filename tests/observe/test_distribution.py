"""Distributions: exact differences, sums, and quantiles that never claim more than the buckets tell."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.observe import Distribution, quantile
from llamaserver.observe.distribution import EMPTY, MismatchError, add, digest_edges, estimate, mean, subtract
from observe.samples import histogram

LO, GROWTH = 1e-4, 1.04


def digest(values: list[float]) -> Distribution:
    """What the tuner's digest holds after these observations."""
    indices = [max(-1, math.floor(math.log(v / LO) / math.log(GROWTH))) for v in values]
    size = max(indices, default=-1) + 2
    counts = [0] * (size + 1)
    for index in indices:
        counts[index + 1] += 1
    return Distribution(len(values), sum(values), digest_edges(LO, GROWTH, size), tuple(counts), exact=True)


durations = st.lists(st.floats(2e-4, 20.0), min_size=1, max_size=200)


@settings(max_examples=60, deadline=None)
@given(durations, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_digest_answers_quantiles_within_its_bucket(values: list[float], q: float) -> None:
    exact = sorted(values)[math.ceil(q * len(values)) - 1]
    found = quantile(digest(values), q)
    assert found is not None
    assert exact / GROWTH - 1e-9 <= found <= exact * GROWTH + 1e-9


@settings(max_examples=60, deadline=None)
@given(durations, durations)
def test_subtracting_undoes_adding(first: list[float], second: list[float]) -> None:
    total = add(digest(first), digest(second))
    assert total.count == len(first) + len(second)
    back = subtract(total, digest(first))
    assert back.count == len(second)
    assert back.sum_s == pytest.approx(sum(second), abs=1e-6)
    assert [c for c in back.counts if c] == [c for c in digest(second).counts if c]


def test_the_first_coarse_bucket_only_says_at_most() -> None:
    # Two engines at 8.2 and 9.4 ms look the same through a first edge of 10 ms.
    found = estimate(histogram(500, 0, 0, 0, sum_s=4.1), 0.95)
    assert found is not None
    assert (found.value_s, found.relation) == (0.01, "<=")


def test_the_open_last_bucket_only_says_at_least() -> None:
    found = estimate(histogram(0, 0, 1, 99), 0.95)
    assert found is not None
    assert (found.value_s, found.relation) == (0.05, ">=")


def test_inside_a_bucket_the_value_is_interpolated() -> None:
    found = estimate(histogram(0, 100, 100, 0), 0.75)
    assert found is not None
    assert (found.value_s, found.relation) == (pytest.approx(0.0375), "=")


@pytest.mark.parametrize(
    "nothing",
    [EMPTY, histogram(0, 0, 0, 0), histogram(208, 0, 0, 0, sum_s=0.0)],
    ids=["empty", "no observations", "every observation 0 s"],
)
def test_what_cannot_be_known_is_none(nothing: Distribution) -> None:
    assert quantile(nothing, 0.95) is None


def test_counts_that_fall_are_no_difference() -> None:
    with pytest.raises(MismatchError):
        subtract(histogram(0, 99, 0, 0), histogram(0, 100, 0, 0))


def test_other_buckets_are_not_added() -> None:
    with pytest.raises(MismatchError):
        add(histogram(1, 1, 1, 1), histogram(1, 1, 1, 1, edges=(0.01, 0.03, 0.05)))


def test_a_mean_is_exact_and_none_without_observations() -> None:
    assert mean(digest([0.010, 0.020])) == pytest.approx(0.015)
    assert mean(EMPTY) is None
