"""spec.tuning and spec.scaling: what the operator may move, and how far."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from llamaserver.api.base import Group, cel, rules
from llamaserver.api.enums import PrefillBudget, ScalingMode, TuningMode
from llamaserver.api.restart import RestartSpec

MAX_REPLICAS = 1000


class NumSeqsBounds(Group):
    """Bounds of the live cap, per engine."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.max) || (has(self.min) ? self.min : 1) <= self.max",
                "must not be more than spec.tuning.numSeqs.max: lower min or raise max",
                ".min",
            )
        )
    )

    min: int | None = Field(
        default=None,
        ge=1,
        le=16384,
        description="Lowest cap that the operator may set, in sequences per engine. Raise it when a "
        "stream's smoothness must not cost everybody else's turn. Default: 1. A change takes "
        "effect at the next tick.",
    )
    max: int | None = Field(
        default=None,
        ge=1,
        le=16384,
        description="Highest cap that the operator may set, in sequences per engine. At most "
        "spec.engine.maxNumSeqs, which an engine starts with and returns to when the operator is gone. "
        "Default: spec.engine.maxNumSeqs. A change takes effect at the next tick.",
    )


class TuningSpec(Group):
    """The fast loop: the cap and the prefill budget of running engines."""

    mode: TuningMode | None = Field(
        default=None,
        description="Auto moves the running engines; Recommend computes and reports the same decisions and "
        "moves nothing; Off leaves the engines at the values they started with. Default: Auto. "
        "A change takes effect at the next tick, without a restart.",
    )
    num_seqs: NumSeqsBounds | None = Field(
        default=None, description="Bounds of the live cap, per engine. Default: 1 to spec.engine.maxNumSeqs."
    )
    prefill_budget: PrefillBudget | None = Field(
        default=None,
        description="Auto: for a p90, p95 or p99 objective the token budget of a step moves with the cap, "
        "from spec.engine.maxNumBatchedTokens down, so that prompts are prefilled in chunks that no step is "
        "late for. Fixed: it stays at spec.engine.maxNumBatchedTokens and only the cap moves. Default: Auto. "
        "A change takes effect at the next tick, without a restart.",
    )
    restart: RestartSpec | None = Field(
        default=None,
        description="Where the cap of running engines cannot be moved (no tuner, a pipeline), have the pods "
        "rolled with another --max-num-seqs instead: when the latency objective has been missed for 10 "
        "minutes, and what was measured tells which number would hold it. Within numSeqs, never above "
        "spec.engine.maxNumSeqs, in mode Auto, and only while every replica serves. Each restart costs a "
        "start of every pod; status.restart says what was chosen, and what stands in the way. Default: "
        "nothing is restarted. A change replaces no pod, except that leaving it out gives pods back "
        "spec.engine.maxNumSeqs where they run with another number.",
    )


class ScalingSpec(Group):
    """The slow loop: the number of replicas."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.maxReplicas) || (has(self.minReplicas) ? self.minReplicas : 1) <= "
                "self.maxReplicas",
                "must not be more than spec.scaling.maxReplicas: lower minReplicas or raise maxReplicas",
                ".minReplicas",
            )
        )
    )

    mode: ScalingMode | None = Field(
        default=None,
        description="Auto: the operator moves the replicas between minReplicas and maxReplicas. Recommend: "
        "it reports the number it would choose and keeps the present one. Fixed: spec.replicas. "
        "External: an autoscaler owns the number, by the scale subresource of this resource or "
        "of the Deployment. Default: Auto.",
    )
    min_replicas: int | None = Field(
        default=None,
        ge=1,
        le=MAX_REPLICAS,
        description="Fewest replicas in the modes Auto and Recommend. Default: 1.",
    )
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        le=MAX_REPLICAS,
        description="Most replicas in the modes Auto and Recommend. Default: minReplicas, so that nothing "
        "scales until you say how far.",
    )
