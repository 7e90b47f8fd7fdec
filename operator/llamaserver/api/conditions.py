"""The conditions of a LlamaServer. Their types and reasons are API: docs/status-reference.md says what
each means.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import Field

from llamaserver.api.base import Group

MESSAGE_LIMIT: Final = 1024


class ConditionType(StrEnum):
    """What a condition is about. Only Ready, Progressing and Stalled concern GitOps tools."""

    ACCEPTED = "Accepted"
    READY = "Ready"
    PROGRESSING = "Progressing"
    STALLED = "Stalled"
    SLO_MET = "SLOMet"
    TUNED = "Tuned"
    METRICS_AVAILABLE = "MetricsAvailable"


class ConditionStatus(StrEnum):
    """Unknown is said when nothing is known: missing data is neither True nor False."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Why a condition has its status. Diagnosis causes are reasons of SLOMet too: see control's `Cause`."""

    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    REFERENCE_NOT_FOUND = "ReferenceNotFound"
    """The spec names an object that does not exist."""
    CONFLICT = "Conflict"
    """An object of a child's name exists and belongs to somebody else."""

    # Ready
    SERVING = "Serving"
    STARTING = "Starting"
    DOWNLOADING = "Downloading"
    NO_REPLICAS_READY = "NoReplicasReady"
    REPLICAS_NOT_READY = "ReplicasNotReady"
    SCALED_TO_ZERO = "ScaledToZero"

    # Progressing
    ROLLING_OUT = "RollingOut"
    SCALING = "Scaling"
    UP_TO_DATE = "UpToDate"

    # Stalled
    NOT_STALLED = "NotStalled"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    STARTUP_FAILED = "StartupFailed"
    STARTUP_TIMEOUT_EXCEEDED = "StartupTimeoutExceeded"
    OUT_OF_MEMORY_AT_START = "OutOfMemoryAtStart"
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    ACCELERATOR_MEMORY_IN_USE = "AcceleratorMemoryInUse"
    ACCELERATOR_NOT_FOUND = "AcceleratorNotFound"
    DRIVER_TOO_OLD = "DriverTooOld"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_ACCESS_DENIED = "ModelAccessDenied"
    MODEL_UNSUPPORTED = "ModelUnsupported"
    HUB_UNREACHABLE = "HubUnreachable"
    ARGUMENT_REFUSED = "ArgumentRefused"
    ENGINE_SETTING_INVALID = "EngineSettingInvalid"
    PORT_VARIABLE_INVALID = "PortVariableInvalid"
    DISK_FULL = "DiskFull"
    CRASH_LOOPING = "CrashLooping"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    UNSCHEDULABLE = "Unschedulable"
    PODS_REFUSED = "PodsRefused"
    CLAIM_NOT_SHAREABLE = "ClaimNotShareable"
    APPLY_REFUSED = "ApplyRefused"
    ENGINE_STALLED = "EngineStalled"

    # SLOMet
    OBJECTIVE_MET = "ObjectiveMet"
    OBJECTIVE_MISSED = "ObjectiveMissed"
    NO_OBJECTIVE = "NoObjective"
    NO_TRAFFIC = "NoTraffic"
    NO_DATA = "NoData"

    # Tuned
    TUNED = "Tuned"
    RECOMMENDING = "Recommending"
    OFF = "Off"
    SUSPENDED = "Suspended"
    ACTUATOR_UNAVAILABLE = "ActuatorUnavailable"
    RETUNE_PARTIAL = "RetunePartial"
    RETUNE_FAILED = "RetuneFailed"

    # MetricsAvailable
    ALL_PODS_REPORT = "AllPodsReport"
    SOME_PODS_SILENT = "SomePodsSilent"
    NO_PODS_REPORT = "NoPodsReport"
    PROMETHEUS_SILENT = "PrometheusSilent"
    NO_PODS = "NoPods"


class Condition(Group):
    """One condition, as metav1.Condition has it."""

    type: str = Field(
        min_length=1,
        max_length=316,
        description="What it is about: Accepted, Ready, Progressing, Stalled, SLOMet, Tuned, "
        "MetricsAvailable.",
    )
    status: ConditionStatus = Field(description="True, False, or Unknown when nothing is known.")
    reason: str = Field(
        min_length=1,
        max_length=128,
        description="Why, in one CamelCase word; docs/status-reference.md lists them all.",
    )
    message: str = Field(max_length=32768, description="Why, in words for people.")
    last_transition_time: str = Field(
        max_length=64,
        description="When the status last changed, in UTC.",
        json_schema_extra={"format": "date-time"},
    )
    observed_generation: int | None = Field(
        default=None, ge=0, description="The metadata.generation that this was concluded from."
    )


def timestamp(now: datetime) -> str:
    """`now` as Kubernetes writes it: UTC, whole seconds. Raises ValueError for a time without a zone."""
    if now.tzinfo is None:
        raise ValueError("a time without a zone cannot be put on a resource")
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(
    conditions: Iterable[Condition],
    type: ConditionType,
    status: ConditionStatus | bool | None,
    reason: str,
    message: str,
    *,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions with this one set, in their old order; a new one goes last.

    lastTransitionTime moves only when the status flips, as `kubectl wait` and alerts expect. A `status` of
    None means Unknown. A message longer than `MESSAGE_LIMIT` is cut: a status is no log.
    """
    wanted = _status(status)
    old = {condition.type: condition for condition in conditions}
    before = old.get(type)
    flipped = before is None or before.status is not wanted
    old[type] = Condition(
        type=type,
        status=wanted,
        reason=reason,
        message=message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…",
        last_transition_time=timestamp(now) if flipped or before is None else before.last_transition_time,
        observed_generation=generation,
    )
    return tuple(old.values())


def find_condition(conditions: Iterable[Condition], type: ConditionType) -> Condition | None:
    """The condition of this type, or None when it was never set."""
    return next((condition for condition in conditions if condition.type == type), None)


def is_true(conditions: Iterable[Condition], type: ConditionType) -> bool:
    """Whether the condition is there and says True; Unknown and absent are not true."""
    found = find_condition(conditions, type)
    return found is not None and found.status is ConditionStatus.TRUE


def _status(status: ConditionStatus | bool | None) -> ConditionStatus:
    if status is None:
        return ConditionStatus.UNKNOWN
    if isinstance(status, bool):
        return ConditionStatus.TRUE if status else ConditionStatus.FALSE
    return status
