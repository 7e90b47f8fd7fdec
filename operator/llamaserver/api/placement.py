"""spec.scheduling, spec.startup and spec.shutdown: where pods run, how long they may take to come and to
go.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, JsonValue

from llamaserver.api.base import Group, ObjectName, cel, rules
from llamaserver.api.duration import PATTERN, Duration

LabelValue = Annotated[str, Field(max_length=63)]


class TolerationOperator(StrEnum):
    """How a toleration's key and value are compared with a taint's."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Group):
    """One toleration, as in a pod's spec."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.value) || !has(self.operator) || self.operator != 'Exists'",
                "with operator Exists no value is compared: remove value, or set operator: Equal",
                ".value",
            ),
            cel(
                "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
                "without a key operator must be Exists, which tolerates every taint",
                ".operator",
            ),
        )
    )

    key: str | None = Field(
        default=None, min_length=1, max_length=316, description="Key of the taint. Default: every key."
    )
    operator: TolerationOperator | None = Field(default=None, description="Exists or Equal. Default: Equal.")
    value: str | None = Field(
        default=None, max_length=63, description="Value of the taint, for Equal. Default: the empty string."
    )
    effect: TaintEffect | None = Field(
        default=None, description="NoSchedule, PreferNoSchedule or NoExecute. Default: every effect."
    )
    toleration_seconds: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="How long, in seconds, a NoExecute taint is tolerated. Default: for ever.",
    )


class SchedulingSpec(Group):
    """Where the pods may run. Every change here rolls the pods."""

    node_selector: dict[str, LabelValue] | None = Field(
        default=None,
        max_length=32,
        description="Labels that a node must have, e.g. {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}. "
        "Default: none.",
    )
    tolerations: tuple[Toleration, ...] | None = Field(
        default=None,
        max_length=32,
        description="Taints that the pods tolerate. Default: none; many clusters add the accelerator's own "
        "at admission.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    runtime_class_name: ObjectName | None = Field(
        default=None,
        description="RuntimeClass of the pods, e.g. nvidia. Default: the node's default runtime.",
    )
    priority_class_name: ObjectName | None = Field(
        default=None, description="PriorityClass of the pods. Default: the cluster's default priority."
    )
    service_account_name: ObjectName | None = Field(
        default=None,
        description="ServiceAccount of the pods, e.g. one with imagePullSecrets. Its token is not mounted: "
        "the engine has no business with the API server. Default: default.",
    )


LONGEST: Final = Duration("24h")
TOO_LONG: Final = f"must be at most {LONGEST}: Kubernetes would wait on a broken pod for longer than a day"


def _bounded(field: str) -> dict[str, JsonValue]:
    """The rule that the duration `field` of a group is at most `LONGEST`; silent where the text is no
    duration.
    """
    unread = f"!has(self.{field}) || !self.{field}.matches({PATTERN!r})"
    return rules(cel(f"{unread} || duration(self.{field}) <= duration('{LONGEST}')", TOO_LONG, f".{field}"))


class StartupSpec(Group):
    """How long an engine may take to come."""

    model_config = ConfigDict(json_schema_extra=_bounded("timeout"))

    timeout: Duration | None = Field(
        default=None,
        description="How long an engine may take from the container's start until it serves: download of "
        "the weights, loading, compiling, graph capture. After that it is restarted. Raise it "
        "for large models on slow storage. At most 24h. Default: 30m. A change rolls the pods.",
    )


class ShutdownSpec(Group):
    """How long an engine may take to go."""

    model_config = ConfigDict(json_schema_extra=_bounded("drainTimeout"))

    drain_timeout: Duration | None = Field(
        default=None,
        description="How long running streams may go on after a pod was told to end, before they are cut. "
        "Set it to your longest answer: tokens times inter-token latency. At most 24h. Default: "
        "2m. A change rolls the pods.",
    )
