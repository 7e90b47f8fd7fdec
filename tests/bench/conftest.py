"""Figures and results made up, with values that are known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.figures import Figures, PartFigures
from bench.measure import Measured
from bench.plan import DEFAULT, Pair, Wanted
from bench.result import result
from bench.scenarios import SCENARIOS, USUAL

Make = Callable[..., Figures]


@pytest.fixture
def figure() -> Make:
    """Makes one repeat."""

    def make(p95_ms: float, tokens_per_s: float, **changes: Any) -> Figures:
        values: dict[str, Any] = {
            "itl_p50_ms": p95_ms / 2,
            "itl_p95_ms": p95_ms,
            "itl_p99_ms": 2 * p95_ms,
            "itl_tail_ms": p95_ms,
            "tokens_per_s": tokens_per_s,
            "ttft_p50_s": 1.0,
            "ttft_p95_s": 2.0,
            "violated_window_share": 0.0,
            "engine_itl_tail_ms": p95_ms,
            "preemptions_per_min": 0.0,
            "cap": 16,
            "budget": 2048,
            "parts": (PartFigures("", p95_ms / 2, p95_ms, tokens_per_s),),
        }
        return Figures(**(values | changes))

    return make


@pytest.fixture
def wanted() -> Callable[..., Wanted]:
    """Makes what is asked for: everything, as by default, but for `changes`."""

    def make(**changes: Any) -> Wanted:
        values: dict[str, Any] = {
            "scenarios": USUAL,
            "policies": ("default", "best_cap", "best_pair", "ours"),
            "variants": ("ours",),
            "repeats": 4,
            "window_s": 10.0,
            "settle_s": 3.0,
            "minutes": 60.0,
            "statistic": "p95",
        }
        return Wanted(**(values | changes))

    return make


@pytest.fixture
def measured(figure: Make) -> Measured:
    """A scenario in which a cap of 12, and a pair with more throughput, hold 40 ms."""
    return Measured(
        SCENARIOS["chat_mix"],
        points={
            DEFAULT: [figure(66.0, 1000.0), figure(64.0, 990.0), figure(68.0, 1010.0)],
            Pair(12, 2048): [figure(34.0, 740.0), figure(36.0, 750.0)],
            Pair(16, 2048): [figure(47.0, 840.0)],
            Pair(32, 64): [figure(38.0, 980.0), figure(39.0, 970.0)],
            Pair(24, 56): [figure(33.0, 930.0)],
        },
        variants={"ours": [figure(35.0, 900.0), figure(37.0, 920.0), figure(36.0, 910.0, cap=20)]},
        default_p50_ms=25.0,
        default_tail_ms=64.0,
        target_ms=40.0,
        repeats=2,
        streams=600,
        versions={"vllm": "0.32.0", "tuner": "0.1.0"},
        complete=True,
    )


@pytest.fixture
def report(measured: Measured, wanted: Callable[..., Wanted]) -> Callable[..., dict[str, Any]]:
    """Makes the whole result of that scenario."""

    def make(
        found: Measured = measured, incomplete: str = "", tuner_us: float | None = None, **changes: Any
    ) -> dict[str, Any]:
        asked = wanted(scenarios=(SCENARIOS["chat_mix"],), **changes)
        machine = {"cpu": "a processor", "cores": 2, "memory_gib": 23.4, "kernel": "6.1", "dtype": "float32"}
        return result(
            asked,
            [found],
            started="2026-01-01T00:00:00Z",
            machine=machine,
            versions={"commit": "abc"},
            tuner_us=tuner_us,
            incomplete=incomplete,
            seconds=480.0,
        )

    return make
