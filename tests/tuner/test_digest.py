"""The digest's laws: a bucket holds what it says, quantiles are within 2 %, differences are exact."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llamaserver_tuner.digest import GROWTH, LO, Digest, bucket_of

durations = st.floats(min_value=1e-6, max_value=1e4)


def quantile(digest: dict[str, Any], q: float) -> float:
    """As a reader does it: the geometric middle of the bucket that holds the q-quantile."""
    rank = q * (digest["count"] - 1)
    seen = 0
    for bucket, times in digest["counts"].items():
        seen += times
        if seen > rank:
            return float(digest["lo"] * digest["growth"] ** (int(bucket) + 0.5))
    raise AssertionError("the counts do not add up to the count")


@given(durations)
def test_a_bucket_holds_the_values_it_says(value: float) -> None:
    bucket = bucket_of(value)
    if value < LO:
        assert bucket == -1
    else:
        assert LO * GROWTH**bucket * (1 - 1e-9) <= value < LO * GROWTH ** (bucket + 1) * (1 + 1e-9)


@given(st.lists(st.floats(min_value=LO, max_value=1e3), min_size=1, max_size=300), st.floats(0.0, 1.0))
def test_a_quantile_is_within_two_per_cent(values: list[float], q: float) -> None:
    digest = Digest()
    digest.add_all(values)
    exact = sorted(values)[math.floor(q * (len(values) - 1))]
    assert abs(quantile(digest.to_json(), q) / exact - 1) <= 0.0201


@given(st.lists(durations, max_size=60))
def test_adding_many_at_once_is_adding_them_one_by_one(values: list[float]) -> None:
    values = values + values[: len(values) // 2]
    together, apart = Digest(), Digest()
    together.add_all(values)
    for value in values:
        apart.add(value)
    assert together.to_json()["counts"] == apart.to_json()["counts"]
    assert together.count == apart.count == len(values)
    assert math.isclose(together.total, apart.total, rel_tol=1e-9)


@given(st.lists(durations, max_size=60), st.lists(durations, max_size=60))
def test_two_readings_subtract_to_what_happened_in_between(before: list[float], after: list[float]) -> None:
    running, window = Digest(), Digest()
    running.add_all(before)
    first = running.to_json()
    running.add_all(after)
    second = running.to_json()
    window.add_all(after)
    difference = {
        bucket: times - first["counts"].get(bucket, 0)
        for bucket, times in second["counts"].items()
        if times != first["counts"].get(bucket, 0)
    }
    assert difference == window.to_json()["counts"]
    assert second["count"] - first["count"] == len(after)


def test_what_is_not_finite_is_left_out() -> None:
    digest = Digest()
    digest.add_all([math.nan, math.inf, -math.inf] * 5)
    assert (digest.count, digest.total, digest.to_json()["counts"]) == (0, 0.0, {})


def test_a_long_run_stays_small() -> None:
    choose = random.Random(0)
    digest = Digest()
    for _ in range(20_000):
        digest.add(choose.lognormvariate(-4, 1))
    assert len(digest.to_json()["counts"]) < 250
