"""What the tuner adds to /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from llamaserver_tuner.metrics import TunerMetrics


@pytest.fixture
def registered() -> Iterator[None]:
    before = set(REGISTRY._collector_to_names)
    yield
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def engine(index: int, cap: int, expired: int = 0) -> dict[str, Any]:
    return {
        "engine": index,
        "max_num_active_seqs": cap,
        "max_num_seqs": 32,
        "max_num_scheduled_tokens": 512,
        "retunes": {"applied": 1, "expired": expired, "rejected": 0},
    }


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


@pytest.mark.usefixtures("registered")
def test_what_is_in_force_is_shown_by_engine() -> None:
    TunerMetrics().observe([engine(0, 8), engine(1, 16), {"engine": 2, "failed": "boom"}])
    assert value("llamaserver_max_num_active_seqs", engine="0") == 8
    assert value("llamaserver_max_num_active_seqs", engine="1") == 16
    assert value("llamaserver_max_num_seqs", engine="1") == 32
    assert value("llamaserver_max_num_scheduled_tokens", engine="0") == 512
    assert value("llamaserver_max_num_active_seqs", engine="2") is None


@pytest.mark.usefixtures("registered")
def test_outcomes_are_counted_and_a_lease_that_ended_once() -> None:
    metrics = TunerMetrics()
    assert value("llamaserver_retunes_total", result="applied") == 0
    metrics.count("applied")
    for expired in (0, 1, 1, 3):
        metrics.observe([engine(0, 8, expired)])
    assert value("llamaserver_retunes_total", result="applied") == 1
    assert value("llamaserver_retunes_total", result="expired") == 3


@pytest.mark.usefixtures("registered")
def test_only_one_process_counts_leases_that_ended() -> None:
    TunerMetrics(counts_expiry=False).observe([engine(0, 8, expired=2)])
    assert value("llamaserver_retunes_total", result="expired") == 0
