"""Small builders of samples, so that a test says only what it is about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from llamaserver.observe import Distribution, EngineState, Sample, Source
from llamaserver.observe.series import Series

DATA = Path(__file__).parent / "data"


def read(name: str) -> str:
    return (DATA / name).read_text()


def histogram(
    *counts: int, edges: tuple[float, ...] = (0.01, 0.025, 0.05), sum_s: float | None = None
) -> Distribution:
    """A coarse histogram; one count more than finite edges, the last for +Inf."""
    total = sum(counts)
    return Distribution(
        total, 0.02 * total if sum_s is None else sum_s, (*edges, math.inf), counts, exact=False
    )


def engine(**changes: Any) -> EngineState:
    values: dict[str, Any] = {
        "engine": 0,
        "running": 4,
        "waiting": 0,
        "waiting_deferred": 0,
        "kv_usage": 0.2,
        "kv_capacity_tokens": 60_000,
        "preemptions": 0,
    }
    return EngineState(**(values | changes))


def sample(at: float = 10.0, **changes: Any) -> Sample:
    """A pod read by its /metrics: four running, nothing waiting, some tokens made."""
    values: dict[str, Any] = {
        "at": at,
        "source": Source.METRICS,
        "incarnation": "uid/0",
        "engines": (engine(),),
        "itl": histogram(0, 100, 0, 0),
        "tpot": None,
        "ttft": None,
        "queue": None,
        "prompt_tokens": 1000,
        "cached_prompt_tokens": 0,
        "generation_tokens": 100,
        "finished": 1,
        "engine_steps": 25,
    }
    return Sample(**(values | changes))


TARGET = {"namespace": "chat", "instance": "10.0.0.1:8000", "job": "chat/vllm"}


def scraped(texts: Mapping[float, str], pod: str, **target: str) -> list[Series]:
    """Scrapes of a pod by their times, as a range selector finds them."""
    found: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for at, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {"__name__": sample.name, **sample.labels, **TARGET, "pod": pod, **target}
                found.setdefault(tuple(sorted(labels.items())), []).append((at, sample.value))
    return [Series(dict(labels), points) for labels, points in found.items()]
