"""`.spec` as a whole: the groups of fields, and nothing about how they go together (that is in rules.py)."""

from __future__ import annotations

from pydantic import Field

from llamaserver.api.accelerator import AcceleratorSpec
from llamaserver.api.base import Group
from llamaserver.api.engine import EngineSpec
from llamaserver.api.metrics import MetricsSpec
from llamaserver.api.model import ModelSpec
from llamaserver.api.placement import RecoverySpec, RolloutSpec, SchedulingSpec, ShutdownSpec, StartupSpec
from llamaserver.api.podtemplate import PodTemplateSpec
from llamaserver.api.scaling import MAX_REPLICAS, ScalingSpec, TuningSpec
from llamaserver.api.slo import SLOSpec


class LlamaServerSpec(Group):
    """What is wanted: a model, the engine that serves it, the objective it is held to, and what may be
    moved.
    """

    replicas: int | None = Field(
        default=None,
        ge=0,
        le=MAX_REPLICAS,
        description="Number of replicas in the scaling modes Fixed and External: what `kubectl scale` and "
        "autoscalers write. Refused in the modes Auto and Recommend, where "
        "spec.scaling.minReplicas and maxReplicas bound what the operator chooses. Default: 1 "
        "in mode Fixed; in mode External the number is left to whoever owns it.",
    )
    suspend: bool | None = Field(
        default=None,
        description="true: serve on and decide nothing: no cap, no budget, no number of replicas is moved; "
        "the spec is still applied. Running caps return to their start values when their lease "
        "ends. Default: false.",
    )
    model: ModelSpec = Field(description="The model that is served.")
    engine: EngineSpec = Field(
        description="vLLM's container: image, what the engine is started with, and what is passed on to it."
    )
    accelerator: AcceleratorSpec | None = Field(
        default=None, description="The accelerators of one pod. Default: none, the engine runs on the CPU."
    )
    slo: SLOSpec | None = Field(
        default=None,
        description="The objectives that the operator holds. Default: the batch objective, throughput as "
        "memory and the plateau allow. Changes take effect at the next tick, without a restart.",
    )
    tuning: TuningSpec | None = Field(
        default=None, description="What the operator may move in running engines. Default: mode Auto."
    )
    scaling: ScalingSpec | None = Field(
        default=None,
        description="How the number of replicas is found. Default: mode Auto with exactly one replica.",
    )
    metrics: MetricsSpec | None = Field(
        default=None,
        description="Where the figures of the engines come from. Default: from the engines themselves.",
    )
    scheduling: SchedulingSpec | None = Field(
        default=None, description="Where the pods may run. Default: anywhere their resources are."
    )
    pod_template: PodTemplateSpec | None = Field(
        default=None,
        description="What is added to the engine's pods: sidecars, init containers, volumes, labels and "
        "annotations. What the operator owns is refused with the field that says it. Default: nothing. A "
        "change rolls the pods.",
    )
    rollout: RolloutSpec | None = Field(
        default=None,
        description="How pods are replaced when what they start with changes. Default: one at a time, on the "
        "accelerators there are.",
    )
    startup: StartupSpec | None = Field(
        default=None, description="How long an engine may take to come. Default: 30m."
    )
    shutdown: ShutdownSpec | None = Field(
        default=None, description="How long an engine may take to go. Default: 2m for its streams."
    )
    recovery: RecoverySpec | None = Field(
        default=None,
        description="What is done about an engine that hangs. Default: it is reported, and nothing else.",
    )
