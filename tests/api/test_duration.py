"""Durations: what is read, what is refused, and what is written for people."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api import Duration, format_duration, parse_duration

READ = {"50ms": 0.05, "1.5s": 1.5, "2m": 120.0, "1h": 3600.0, "0.5ms": 0.0005, "90s": 90.0, "007ms": 0.007}
REFUSED = [
    "50",
    "50 ms",
    " 50ms",
    "-1ms",
    "0ms",
    "0.0s",
    "1e3ms",
    "50MS",
    "",
    "ms",
    "1m30s",
    ".5s",
    "5.s",
    "50ms\n",
]
WRITTEN = {
    0.0: "0s",
    0.0412: "41.2ms",
    0.0004: "0.4ms",
    0.999: "999ms",
    0.9999: "1s",
    1.25: "1.25s",
    59.94: "59.9s",
    90.0: "90s",
    120.0: "120s",
    300.0: "5m",
    301.0: "301s",
    7200.0: "2h",
    5400.0: "90m",
}


@pytest.mark.parametrize(("text", "seconds"), READ.items())
def test_a_number_and_a_unit_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
    assert Duration(text).seconds == pytest.approx(seconds)
    assert Duration(text) == text


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(ValueError, match="write a positive number and one unit"):
        parse_duration(text)


@pytest.mark.parametrize(("seconds", "text"), WRITTEN.items())
def test_durations_are_written_as_people_would(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_what_is_written_reads_back_within_three_digits(seconds: float) -> None:
    text = format_duration(seconds)
    assert parse_duration(text) == pytest.approx(seconds, rel=0.006)
    assert len(text) <= 12


@pytest.mark.parametrize("seconds", [-0.1, math.nan, math.inf])
def test_what_is_no_duration_is_not_written(seconds: float) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        format_duration(seconds)
