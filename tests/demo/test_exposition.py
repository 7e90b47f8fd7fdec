"""Quantiles of the operator's own histograms."""

from __future__ import annotations

import pytest

from demo.exposition import buckets, quantile

TEXT = """\
# TYPE llamaserver_retune_seconds histogram
llamaserver_retune_seconds_bucket{le="0.01"} 10.0
llamaserver_retune_seconds_bucket{le="0.02"} 30.0
llamaserver_retune_seconds_bucket{le="+Inf"} 30.0
llamaserver_retune_seconds_count 30.0
llamaserver_other_seconds_bucket{le="0.01"} 99.0
"""


def test_a_quantile_is_interpolated_in_its_bucket() -> None:
    found = buckets(TEXT, "llamaserver_retune_seconds")
    assert quantile(found, 0.5) == pytest.approx(0.0125)
    assert quantile(found, 1.0) == pytest.approx(0.02)


def test_two_replicas_add_up() -> None:
    one = buckets(TEXT, "llamaserver_retune_seconds")
    two = buckets(TEXT + TEXT, "llamaserver_retune_seconds")
    assert [count for _, count in two] == [2 * count for _, count in one]


def test_series_of_another_label_are_left_out() -> None:
    text = """\
llamaserver_retune_seconds_bucket{kind="change",le="0.05"} 2.0
llamaserver_retune_seconds_bucket{kind="change",le="+Inf"} 4.0
llamaserver_retune_seconds_bucket{kind="renewal",le="0.05"} 70.0
llamaserver_retune_seconds_bucket{kind="renewal",le="+Inf"} 70.0
"""
    found = buckets(text, "llamaserver_retune_seconds", kind="change")
    assert found == [(0.05, 2.0), (float("inf"), 4.0)]
    assert buckets(text, "llamaserver_retune_seconds")[-1][1] == 74.0


def test_nothing_counted_has_no_quantile() -> None:
    assert quantile(buckets("", "llamaserver_retune_seconds"), 0.5) is None
    assert quantile([(0.01, 0.0), (float("inf"), 0.0)], 0.5) is None


def test_beyond_the_last_edge_the_last_edge_is_said() -> None:
    assert quantile([(0.01, 1.0), (float("inf"), 10.0)], 0.99) == 0.01


def test_nothing_observed_has_no_quantile() -> None:
    assert quantile(buckets(TEXT, "llamaserver_absent_seconds"), 0.5) is None
    assert quantile([(0.01, 0.0), (float("inf"), 0.0)], 0.5) is None
