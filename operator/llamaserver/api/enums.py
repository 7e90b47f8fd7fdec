"""The closed sets of words a LlamaServer is written with; one source for schema, parsing and control law."""

from __future__ import annotations

from enum import StrEnum


class Statistic(StrEnum):
    """Which figure of a distribution an objective is about."""

    MEAN = "mean"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"


class Precedence(StrEnum):
    """Which objective gives way when the replicas allowed cannot hold both."""

    INTER_TOKEN_LATENCY = "InterTokenLatency"  # noqa: S105 - a token of text
    QUEUE_TIME = "QueueTime"


class TuningMode(StrEnum):
    """What the fast loop may do with an engine."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"
    OFF = "Off"


class ScalingMode(StrEnum):
    """Who owns the number of replicas."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"
    FIXED = "Fixed"
    EXTERNAL = "External"
