"""spec.scheduling, spec.rollout, spec.startup and spec.shutdown: where pods run, how they are replaced, how
long they may take to come and to go.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import ConfigDict, Field, JsonValue

from llamaserver.api.base import Fragment, Group, LabelKey, LabelValue, ObjectName, cel, rules
from llamaserver.api.duration import Duration, bounded

MAX_PODS: Final = 1000


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

    key: LabelKey | None = Field(default=None, description="Key of the taint. Default: every key.")
    operator: TolerationOperator | None = Field(default=None, description="Exists or Equal. Default: Equal.")
    value: LabelValue | None = Field(
        default=None, description="Value of the taint, for Equal. Default: the empty string."
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


class Affinity(Group):
    """Which nodes and which pods the pods are drawn to, or kept from; the content is as in a pod."""

    node_affinity: Fragment | None = Field(
        default=None, description="Nodes, by rules that nodeSelector cannot say. Default: none."
    )
    pod_affinity: Fragment | None = Field(default=None, description="Pods to be near to. Default: none.")
    pod_anti_affinity: Fragment | None = Field(
        default=None, description="Pods to be away from. Default: none."
    )


class WhenUnsatisfiable(StrEnum):
    """What happens to a pod that would break a spread."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class TopologySpread(Group):
    """How the pods of this LlamaServer are spread over domains of nodes; the operator selects the pods."""

    topology_key: LabelKey = Field(
        description="Label of nodes whose values are the domains, e.g. topology.kubernetes.io/zone.",
    )
    max_skew: int = Field(
        ge=1, le=MAX_PODS, description="Pods that one domain may have more than another, at most."
    )
    when_unsatisfiable: WhenUnsatisfiable = Field(
        description="DoNotSchedule lets a pod wait that would break it, ScheduleAnyway only prefers others."
    )
    min_domains: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PODS,
        description="Domains there have to be, with DoNotSchedule. Default: as many as there are.",
    )


class PullSecret(Group):
    """A Secret with the credentials of a registry."""

    name: ObjectName = Field(description="Name of the Secret, in the namespace of the LlamaServer.")


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
    affinity: Affinity | None = Field(
        default=None, description="Rules that nodeSelector cannot say, as in a pod. Default: none."
    )
    topology_spread_constraints: tuple[TopologySpread, ...] | None = Field(
        default=None,
        max_length=8,
        description="How the pods are spread. An empty list spreads nothing. Default: over nodes, where that "
        "is possible.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["topologyKey"]},
    )
    scheduler_name: ObjectName | None = Field(
        default=None, description="Scheduler of the pods. Default: the cluster's own."
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
    image_pull_secrets: tuple[PullSecret, ...] | None = Field(
        default=None,
        max_length=16,
        description="Secrets with the credentials of the registries that the pods' images come from. "
        "Default: those of the ServiceAccount.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


NO_WAY_TO_ROLL: Final = (
    "must not be 0 where maxSurge is 0, for no pod could ever be replaced: set one of the two to 1"
)


class RolloutSpec(Group):
    """How running pods are replaced by pods with a changed spec."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.maxUnavailable) || self.maxUnavailable > 0 || "
                "(has(self.maxSurge) && self.maxSurge > 0)",
                NO_WAY_TO_ROLL,
                ".maxUnavailable",
            )
        )
    )

    max_surge: int | None = Field(
        default=None,
        ge=0,
        le=MAX_PODS,
        description="Pods that a rollout may start beyond the number of replicas. Each needs accelerators "
        "that are spare: set it to 1 where there are some, and no rollout takes a serving pod down "
        "before its successor serves. Default: 0, a rollout keeps to the accelerators there are, and with "
        "one replica nothing is served while the new pod starts. A change replaces no pod.",
    )
    max_unavailable: int | None = Field(
        default=None,
        ge=0,
        le=MAX_PODS,
        description="Pods that a rollout may take down at once. Raise it to replace a large fleet faster. "
        "Default: 1 where maxSurge is 0, else 0. A change replaces no pod.",
    )


LONGEST: Final = Duration("24h")
TOO_LONG_STALL: Final = f"must be at most {LONGEST}: leave it out to have no pod replaced"
TOO_LONG: Final = f"must be at most {LONGEST}: Kubernetes would wait on a broken pod for longer than a day"


def _at_most(field: str) -> dict[str, JsonValue]:
    """The rule that the duration `field` of a group is at most `LONGEST`."""
    return rules(bounded(field, "<=", LONGEST, TOO_LONG))


SHORTEST_STALL: Final = Duration("2m")
TOO_SOON: Final = (
    f"must be at least {SHORTEST_STALL}: a shorter standstill may be a long step, such as one that compiles"
)


class RecoverySpec(Group):
    """What is done about an engine that hangs."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            bounded("replaceStalledAfter", "<=", LONGEST, TOO_LONG_STALL),
            bounded("replaceStalledAfter", ">=", SHORTEST_STALL, TOO_SOON),
        )
    )

    replace_stalled_after: Duration | None = Field(
        default=None,
        description="Have the pod of an engine evicted, and so replaced, that has requests in hand and made "
        "no step for this long, as its own scheduler tells: one pod at a time, only while every other "
        "replica serves and no rollout is under way, and each time with a longer pause before the next. Set "
        "it above your longest step; an engine that may need longer is given longer. 2m to 24h. Default: "
        "never, an engine that hangs is only reported (condition Stalled). A change replaces no pod.",
    )


class StartupSpec(Group):
    """How long an engine may take to come."""

    model_config = ConfigDict(json_schema_extra=_at_most("timeout"))

    timeout: Duration | None = Field(
        default=None,
        description="How long an engine may take from the container's start until it serves: download of "
        "the weights (where spec.model.cache does not hold them), loading, compiling, graph capture. "
        "After that it is restarted. Raise it for large models on slow storage. At most 24h. Default: "
        "30m. A change rolls the pods.",
    )


class ShutdownSpec(Group):
    """How long an engine may take to go."""

    model_config = ConfigDict(json_schema_extra=_at_most("drainTimeout"))

    drain_timeout: Duration | None = Field(
        default=None,
        description="How long running streams may go on after a pod was told to end, before they are cut. "
        "Set it to your longest answer: tokens times inter-token latency. At most 24h. Default: "
        "2m. A change rolls the pods.",
    )
