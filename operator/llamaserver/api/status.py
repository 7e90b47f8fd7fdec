"""status: what the operator saw, concluded and did. Written by the operator alone, by server-side apply."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from llamaserver.api.base import Group
from llamaserver.api.conditions import Condition
from llamaserver.api.enums import Binding, RestartState

MAX_DECISIONS = 5
MAX_INPUTS = 16
"""Figures that one decision is told with."""
MAX_PODS = 1000
MAX_ENGINES = 32
"""Of one pod."""
NOT_SEEN = -1
"""observedGeneration of a resource that no operator has seen. The schema fills it in: tools that judge by
kstatus take a resource without any status for ready.
"""


def _cut(limit: int) -> Callable[[object], object]:
    """Cut a text that is too long: a status that says a little less is better than a status that is
    refused.
    """

    def cut(value: object) -> object:
        return value[: limit - 1] + "…" if isinstance(value, str) and len(value) > limit else value

    return cut


Short = Annotated[str, BeforeValidator(_cut(128)), Field(max_length=128)]
Evidence = Annotated[str, BeforeValidator(_cut(256)), Field(max_length=256)]
Text = Annotated[str, BeforeValidator(_cut(1024)), Field(max_length=1024)]
Figure = Annotated[str, Field(max_length=32)]
"""A decimal number as text: Kubernetes APIs keep no floating-point numbers in status."""


class Actuator(StrEnum):
    """Whether the running engines can be moved."""

    LIVE = "Live"
    UNAVAILABLE = "Unavailable"


class ObservedStatus(Group):
    """The fleet's figures over the last usable windows. What is absent is not known now; it is never zero
    for that.
    """

    inter_token_latency: Figure | None = Field(
        default=None,
        description="The declared statistic of the inter-token latency (p95 where none is), e.g. 41ms; with "
        "<= or >= in front where the engine's own histogram tells no more. In the scope Request that of the "
        "requests which finished lately.",
    )
    inter_token_latency_mean: Figure | None = Field(
        default=None, description="Mean inter-token latency, exact from sums and counts, e.g. 32ms."
    )
    queue_time: Figure | None = Field(
        default=None,
        description="The declared statistic of the time that requests waited before their first step.",
    )
    running: int | None = Field(default=None, ge=0, description="Sequences running, over all ready pods.")
    waiting: int | None = Field(default=None, ge=0, description="Requests waiting, over all ready pods.")
    kv_cache_usage: Figure | None = Field(
        default=None, description="Share of the KV cache in use in the fullest engine, 0 to 1, e.g. 0.63."
    )
    preemptions_per_minute: Figure | None = Field(
        default=None, description="Sequences put back for want of KV cache, per minute, over all ready pods."
    )
    tokens_per_second: Figure | None = Field(
        default=None, description="Tokens generated per second, over all ready pods."
    )


class EngineTuning(Group):
    """One engine of a pod that has several: the cap it runs with, and its load."""

    index: int = Field(
        ge=0, description="Index of the engine in its pod, as in the label `engine` of vLLM's metrics."
    )
    num_seqs: int | None = Field(
        default=None, ge=0, description="The cap in force in this engine, read back from it."
    )
    running: int | None = Field(default=None, ge=0, description="Sequences running in this engine.")
    waiting: int | None = Field(default=None, ge=0, description="Requests waiting for this engine.")
    kv_cache_usage: Figure | None = Field(
        default=None, description="Share of this engine's KV cache in use, 0 to 1, e.g. 0.63."
    )


class PodTuning(Group):
    """One pod and the cap it runs with."""

    name: Annotated[str, Field(max_length=253)] = Field(description="Name of the pod.")
    num_seqs: int | None = Field(
        default=None,
        ge=0,
        description="The cap in force in this pod, read back from its engine; the lowest of several.",
    )
    state: Short = Field(
        description="InForce, or why the cap is not what was asked for, in one CamelCase word. Partial: the "
        "engines of the pod differ."
    )
    cause: Short | None = Field(
        default=None,
        description="What ails this pod and not all of them, whatever cause is named for the LlamaServer: "
        "Straggler or RoutingImbalance; absent for nothing.",
    )
    engines: tuple[EngineTuning, ...] | None = Field(
        default=None,
        max_length=MAX_ENGINES,
        description="The engines one by one, where the pod has several.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class TuningStatus(Group):
    """The running engines' knobs, as read back from them."""

    num_seqs: int | None = Field(
        default=None,
        ge=0,
        description="The cap in force in sequences per engine; the lowest where pods differ.",
    )
    ceiling: int | None = Field(
        default=None,
        ge=0,
        description="The highest cap that is possible now: what the engines were started with.",
    )
    num_batched_tokens: int | None = Field(
        default=None,
        ge=0,
        description="The prefill budget that engines keep to, in tokens per step; the lowest where pods "
        "differ. An engine lifts a lowered one by itself for single steps in which it would starve somebody.",
    )
    binding: Binding | None = Field(
        default=None,
        description="What holds requests back now. Nothing: none waits. NumSeqs: the cap, set by the "
        "objective. PrefillBudget: prompts fill what the budget leaves them under the objective. "
        "MaxNumSeqs: the cap is as high as it may go. KVCache: memory.",
    )
    prefill_budget: Short | None = Field(
        default=None,
        description="Live where the prefill budget is moved with the cap, else why it is not, in one "
        "CamelCase word: Suspended by spec.suspend; Off or Recommending by spec.tuning.mode; Fixed by "
        "spec.tuning.prefillBudget; NotATail, for the objective is no p90, p95 or p99; SpeculativeDecoding; "
        "or a word of the tuner, for the budget or for the cap, without which it is not moved.",
    )
    actuator: Actuator | None = Field(
        default=None, description="Live when the running engines can be moved, else Unavailable."
    )
    pods: tuple[PodTuning, ...] | None = Field(
        default=None,
        max_length=MAX_PODS,
        description="The pods one by one.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


class ScalingStatus(Group):
    """The number of replicas that the operator holds to be right."""

    desired_replicas: int | None = Field(
        default=None, ge=0, description="Replicas wanted; in mode Recommend only a recommendation."
    )
    reason: Text | None = Field(default=None, description="Why this number.")


class DiagnosisStatus(Group):
    """The one illness named now, or Healthy."""

    cause: Short = Field(
        description="The cause in one CamelCase word; docs/status-reference.md lists them all."
    )
    message: Text = Field(default="", description="What was seen, in words.")
    advice: Text | None = Field(
        default=None, description="What to change by hand. Absent when nothing needs doing."
    )
    since: Annotated[str, Field(max_length=64)] | None = Field(
        default=None,
        description="Since when this cause holds, in UTC.",
        json_schema_extra={"format": "date-time"},
    )
    evidence: dict[str, Evidence] | None = Field(
        default=None, max_length=32, description="The figures it was concluded from, by name."
    )


class DecisionStatus(Group):
    """One thing that the operator did, or in mode Recommend would have done."""

    time: Annotated[str, Field(max_length=64)] = Field(
        description="When, in UTC.", json_schema_extra={"format": "date-time"}
    )
    pod: Annotated[str, Field(max_length=253)] | None = Field(
        default=None, description="The pod concerned. Absent for the number of replicas."
    )
    action: Short = Field(
        description="What was moved: NumSeqs, NumBatchedTokens or Replicas; Replacement of a pod, or Restart "
        "of all with another --max-num-seqs."
    )
    from_: Short | None = Field(default=None, alias="from", description="The value before.")
    to: Short | None = Field(default=None, description="The value after.")
    reason: Text = Field(description="The rule that fired, and the figures it fired on.")
    evidence: dict[str, Short] | None = Field(
        default=None,
        max_length=MAX_INPUTS,
        description="What was known when it was decided, by name: the fleet's figures, named as in "
        "status.observed, then the rule's own. Absent where nothing was.",
    )
    outcome: Text | None = Field(
        default=None,
        description="What came of it. Refused, with the engine's reason; Recommended; Asked, while replicas "
        "come or go; Applied, and once figures are of the time after it what the latencies were before and "
        "are since. Absent for Replacement and Restart, which status.recovery and status.restart tell of.",
    )

    @property
    def identity(self) -> tuple[str | None, ...]:
        """What was decided, whatever came of it."""
        return self.time, self.pod, self.action, self.from_, self.to, self.reason


class RecoveryStatus(Group):
    """The last pod that was replaced because its engine hung, and what stands in the way of the next."""

    pod: Annotated[str, Field(max_length=253)] | None = Field(
        default=None,
        description="The pod that was, or is to be, replaced last; absent when "
        "that came to nothing because its engine got on again.",
    )
    time: Annotated[str, Field(max_length=64)] | None = Field(
        default=None,
        description="When its eviction was last asked for, in UTC.",
        json_schema_extra={"format": "date-time"},
    )
    replacements: int | None = Field(
        default=None,
        ge=0,
        description="Replacements in a row that were decided, each within 24 hours of the one before. The "
        "pause before the next grows with them.",
    )
    reason: Text | None = Field(
        default=None, description="Why the pod of an engine that hangs now is not replaced yet."
    )


class NumSeqsBound(Group):
    """A number of sequences that was left, and what the load was like with it."""

    num_seqs: int = Field(ge=1, description="The number that was left.")
    context_tokens: int | None = Field(
        default=None, ge=1, description="Tokens of context of a running sequence; absent where not known."
    )
    prefill_ratio: Figure | None = Field(
        default=None, description="Prompt tokens computed for each generated token; absent where not known."
    )


class RestartStatus(Group):
    """The last restart for another cap, and what stands in the way of the next."""

    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        description="What engines are started with since, where that is less than spec.engine.maxNumSeqs; "
        "absent while it is that.",
    )
    time: Annotated[str, Field(max_length=64)] | None = Field(
        default=None,
        description="When the last restart was decided, in UTC.",
        json_schema_extra={"format": "date-time"},
    )
    objective: Short | None = Field(
        default=None, description="The latency objective that it was decided for, such as `p95 <= 50ms`."
    )
    spec_digest: Short | None = Field(
        default=None,
        description="Digest of the fields of the spec that make pods roll, as they were then. Once they are "
        "others, all but the time is forgotten.",
    )
    upper_bound: NumSeqsBound | None = Field(
        default=None,
        description="The smallest number that was left because this objective was missed with it. Under a "
        "load like that no restart goes back to it, nor beyond it.",
    )
    lower_bound: NumSeqsBound | None = Field(
        default=None,
        description="The largest number that was left because requests waited although this objective held. "
        "Under a load like that no restart goes back to it, nor below it.",
    )
    state: RestartState | None = Field(
        default=None,
        description="How it stands with the next. Decided: its rollout follows. Recommended: mode Recommend. "
        "WaitingForFleet, WaitingForInterval: one is due. NotNeeded. NotKnown: which number would hold the "
        "objective. NoBetterNumber: none that would help is allowed. Live: caps are moved live. Off: "
        "nothing is decided.",
    )
    reason: Text | None = Field(
        default=None, description="Why nothing is restarted now, or what a restart would choose."
    )


class EffectiveStatus(Group):
    """What is really in force where the spec says nothing: every default resolved."""

    served_names: tuple[Annotated[str, Field(max_length=256)], ...] | None = Field(
        default=None,
        max_length=16,
        description="Names under which clients may ask for the model.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    max_num_seqs: int | None = Field(
        default=None, ge=0, description="What engines are started with: the ceiling of the live cap."
    )
    max_num_batched_tokens: int | None = Field(
        default=None, ge=0, description="Ceiling of the live prefill budget."
    )
    tensor_parallel_size: int | None = Field(
        default=None, ge=0, description="Accelerators that share one model."
    )
    kv_offloading: Figure | None = Field(
        default=None,
        description="Memory of a pod that holds offloaded KV cache, all its engines together; absent for "
        "none.",
    )
    inter_token_latency: Short | None = Field(
        default=None,
        description="The objective in one phrase, such as `p95 <= 50ms`, or `p95/request <= 50ms` in the "
        "scope Request; absent for the batch objective.",
    )
    queue_time: Short | None = Field(
        default=None, description="The queue objective in one phrase; absent when none is declared."
    )
    precedence: Short | None = Field(default=None, description="Which objective is kept when both cannot be.")
    tuning_mode: Short | None = Field(default=None, description="Mode of the fast loop.")
    prefill_budget: Short | None = Field(
        default=None,
        description="Auto when the fast loop may move the prefill budget with the cap, else Fixed.",
    )
    min_num_seqs: int | None = Field(default=None, ge=0, description="Lower bound of the live cap.")
    max_num_active_seqs: int | None = Field(default=None, ge=0, description="Upper bound of the live cap.")
    restart_min_interval: Figure | None = Field(
        default=None,
        description="Time at least between two restarts for another cap; absent where there are none.",
    )
    metrics_source: Short | None = Field(
        default=None, description="Whom the operator asks what the engines do: Engine or Prometheus."
    )
    scaling_mode: Short | None = Field(default=None, description="Who owns the number of replicas.")
    min_replicas: int | None = Field(default=None, ge=0, description="Fewest replicas.")
    max_replicas: int | None = Field(default=None, ge=0, description="Most replicas.")
    max_surge: int | None = Field(
        default=None, ge=0, description="Pods that a rollout may start beyond the number of replicas."
    )
    max_unavailable: int | None = Field(
        default=None, ge=0, description="Pods that a rollout may take down at once."
    )
    startup_timeout: Figure | None = Field(default=None, description="Time that an engine may take to start.")
    drain_timeout: Figure | None = Field(default=None, description="Time that streams may take to end.")
    termination_grace_period: Figure | None = Field(
        default=None, description="Time that a pod may take to end, in all."
    )
    replace_stalled_after: Figure | None = Field(
        default=None,
        description="Time that an engine hangs before its pod is replaced; absent for never.",
    )


class Status(Group):
    """Everything the operator says of a LlamaServer."""

    observed_generation: int | None = Field(
        default=None,
        ge=NOT_SEEN,
        description="The metadata.generation that this status is about; -1 until the operator has seen the "
        "resource.",
    )
    conditions: tuple[Condition, ...] | None = Field(
        default=None,
        max_length=16,
        description="Accepted, Ready, Progressing, Stalled, SLOMet, Tuned and MetricsAvailable. Ready means "
        "that the present spec is being served; it never depends on the objective.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    replicas: int | None = Field(default=None, ge=0, description="Pods that exist and are not ending.")
    ready_replicas: int | None = Field(default=None, ge=0, description="Pods that serve.")
    selector: Annotated[str, Field(max_length=1024)] | None = Field(
        default=None, description="Label selector of the pods, for the scale subresource."
    )
    observed: ObservedStatus | None = Field(
        default=None,
        description="The fleet's figures over the last usable windows; what is absent is not known. Written "
        "anew when one has been more than 10 % off for some seconds, or further than it usually scatters.",
    )
    tuning: TuningStatus | None = Field(
        default=None, description="The running engines' knobs, as read back from them."
    )
    scaling: ScalingStatus | None = Field(
        default=None, description="The number of replicas held to be right, and why."
    )
    diagnosis: DiagnosisStatus | None = Field(
        default=None, description="The one illness named now, or Healthy."
    )
    decisions: tuple[DecisionStatus, ...] | None = Field(
        default=None,
        max_length=MAX_DECISIONS,
        description="The last decisions, newest first.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    recovery: RecoveryStatus | None = Field(
        default=None,
        description="What was done about engines that hang; absent before there was anything to do.",
    )
    restart: RestartStatus | None = Field(
        default=None,
        description="What restarts for another cap have chosen; absent where spec.tuning.restart never "
        "asked for them.",
    )
    effective: EffectiveStatus | None = Field(
        default=None, description="What is really in force: every default resolved."
    )
    model: dict[str, Annotated[str, Field(max_length=64)]] | None = Field(
        default=None,
        max_length=64,
        description="What was learned of this model on this hardware, so that a new leader goes on from "
        "here. Figures in base units, as text.",
    )
