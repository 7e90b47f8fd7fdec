"""The plant against figures that nobody here measured: the errors that docs/simulate.md states.

The data are not part of this repository: LLAMASERVER_DATA names the folder that has them.
"""

from __future__ import annotations

from statistics import fmean

import pytest

from simulate import anchors
from simulate.anchors import LINEAR, PROFILED, PUBLISHED

pytestmark = pytest.mark.skipif(
    bool(anchors.missing()),
    reason=f"not there: {', '.join(map(str, anchors.missing()))}; docs/simulate.md says where "
    "LLAMASERVER_DATA's files are from",
)


@pytest.mark.parametrize(
    ("anchor", "low", "high"),
    list(zip(PUBLISHED, (-0.08, -0.10, -0.16, -0.26), (0.0, 0.0, 0.0, -0.20), strict=True)),
)
def test_published_latencies(
    anchor: tuple[str, str, str, int, tuple[int, int]], low: float, high: float
) -> None:
    assert low <= anchors.latency_error(*anchor) <= high


def test_published_throughput() -> None:
    assert abs(anchors.throughput_error()) <= 0.08


@pytest.mark.parametrize(
    ("anchor", "mean", "worst"),
    list(zip(PROFILED, (0.15, 0.08, 0.15, 0.10), (0.40, 0.35, 0.45, 0.35), strict=True)),
)
def test_profiled_steps_by_tokens(
    anchor: tuple[str, str, str, str, float], mean: float, worst: float
) -> None:
    errors = anchors.step_errors(*anchor)
    assert fmean(errors) <= mean
    assert max(errors) <= worst


@pytest.mark.parametrize(
    ("anchor", "worst"), list(zip(LINEAR, (0.17, 0.15, 0.27, 0.20, 0.28, 0.25), strict=True))
)
def test_linear_models_of_others(anchor: tuple[str, str, str, int, int], worst: float) -> None:
    assert -worst <= anchors.linear_error(*anchor) <= 0.0
