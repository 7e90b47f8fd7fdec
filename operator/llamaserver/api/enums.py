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


class LatencyScope(StrEnum):
    """What the statistic of an inter-token latency is taken over."""

    TOKEN = "Token"  # noqa: S105 - a token of text
    REQUEST = "Request"


class Precedence(StrEnum):
    """Which objective gives way when the replicas allowed cannot hold both."""

    INTER_TOKEN_LATENCY = "InterTokenLatency"  # noqa: S105 - a token of text
    QUEUE_TIME = "QueueTime"


class TuningMode(StrEnum):
    """What the fast loop may do with an engine."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"
    OFF = "Off"


class MetricsSource(StrEnum):
    """Whom the operator asks what the engines do."""

    ENGINE = "Engine"
    """The engines themselves."""
    PROMETHEUS = "Prometheus"
    """The Prometheus that the operator was told of, where engines cannot be reached."""


class PrefillBudget(StrEnum):
    """Whether the fast loop may move the token budget of a step, by which prefill is spread."""

    AUTO = "Auto"
    FIXED = "Fixed"


class Binding(StrEnum):
    """Which knob holds requests back now."""

    NOTHING = "Nothing"
    """No request waits for a place."""
    KV_CACHE = "KVCache"
    MAX_NUM_SEQS = "MaxNumSeqs"
    """The cap is as high as the user or the engine's start value allows."""
    PREFILL_BUDGET = "PrefillBudget"
    """Prompts fill what the budget leaves them: their share of a step is what the objective rations."""
    NUM_SEQS = "NumSeqs"
    """The cap: decoding sequences are what the objective rations."""


class RestartState(StrEnum):
    """How it stands with a restart for another cap."""

    DECIDED = "Decided"
    """One was decided; its rollout follows."""
    RECOMMENDED = "Recommended"
    """One would be decided, were the mode not Recommend."""
    WAITING_FOR_FLEET = "WaitingForFleet"
    """One is due, and something else is under way."""
    WAITING_FOR_INTERVAL = "WaitingForInterval"
    """One is due, and the last is less than minInterval ago."""
    NOT_NEEDED = "NotNeeded"
    """The objective is held, or not missed for long."""
    NOT_KNOWN = "NotKnown"
    """What was measured does not tell which number would hold the objective."""
    NO_BETTER_NUMBER = "NoBetterNumber"
    """No number that would help is allowed, worth a restart, and not tried before."""
    LIVE = "Live"
    """Caps are moved live, or were a short while ago."""
    OFF = "Off"
    """Nothing is decided: suspended, mode Off, no objective, or a spec that is not in force."""


class ScalingMode(StrEnum):
    """Who owns the number of replicas."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"
    FIXED = "Fixed"
    EXTERNAL = "External"
