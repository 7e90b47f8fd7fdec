"""The spec with every default resolved: what is really in force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from llamaserver.api import defaults
from llamaserver.api.duration import Duration, format_duration
from llamaserver.api.enums import (
    LatencyScope,
    MetricsSource,
    Precedence,
    PrefillBudget,
    ScalingMode,
    Statistic,
    TuningMode,
)
from llamaserver.api.offloadingrules import offloaded_bytes
from llamaserver.api.parallel import other_parallel
from llamaserver.api.quantity import format_bytes
from llamaserver.api.rolling import rolling_digest
from llamaserver.api.slo import InterTokenLatencySLO
from llamaserver.api.source import Source, own_name, parse_uri
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.status import EffectiveStatus

TRACE_VARIABLE: Final = "VLLM_TRACE_FUNCTION"


def named(statistic: Statistic, scope: LatencyScope) -> str:
    """A statistic as people read it: p95 of tokens, p95/request of requests."""
    return statistic.value if scope is LatencyScope.TOKEN else f"{statistic}/request"


@dataclass(frozen=True, slots=True)
class Target:
    """One objective: this statistic stays under this duration."""

    target: Duration
    statistic: Statistic
    scope: LatencyScope = LatencyScope.TOKEN

    @property
    def seconds(self) -> float:
        """The bound in seconds."""
        return self.target.seconds

    def __str__(self) -> str:
        return f"{named(self.statistic, self.scope)} <= {self.target}"


@dataclass(frozen=True, slots=True)
class EffectiveSpec:
    """What is in force. None is said only where nothing is: no objective, no owner of the number."""

    source: Source
    served_names: tuple[str, ...]
    max_num_seqs: int
    """What engines are started with: the spec's own, or less where restarts have chosen it."""
    declared_num_seqs: int
    """The spec's own."""
    max_num_batched_tokens: int
    tensor_parallel_size: int
    workers: int
    """Processes of one pod that share the model, by all kinds of parallelism together."""
    inter_token_latency: Target | None
    queue_time: Target | None
    precedence: Precedence
    suspended: bool
    tuning_mode: TuningMode
    prefill_budget: PrefillBudget
    min_num_seqs: int
    max_num_active_seqs: int
    """Upper bound of the live cap. The engine itself starts with `max_num_seqs`."""
    least_num_seqs: int
    most_num_seqs: int
    """What a restart may start engines with: what the spec allows."""
    metrics_source: MetricsSource
    scaling_mode: ScalingMode
    replicas: int | None
    """The number the user or an autoscaler set, in the modes Fixed and External; else None."""
    min_replicas: int
    max_replicas: int | None
    """None when somebody else owns the number and has not set it here."""
    max_surge: int
    max_unavailable: int
    """Pods that a rollout may start beyond the number of replicas, and take down at once; never both 0."""
    startup_timeout: Duration
    drain_timeout: Duration
    rolling: str
    """Digest of the fields that make pods roll; see api/rolling.py."""
    restart_min_interval: Duration | None = None
    """How long at least between two restarts for another cap; None where there are none."""
    kv_offloading_bytes: int = 0
    """Memory of one pod that holds offloaded KV cache, all its engines together."""
    replace_stalled_after: Duration | None = None
    """How long an engine hangs before its pod is replaced; None for never."""
    traces_calls: bool = False
    """vLLM logs every call of a function, which makes minutes of its start an hour."""

    def to_status(self, termination_grace_s: float | None = None) -> EffectiveStatus:
        """As status.effective shows it; `termination_grace_s` is the pods' whole grace period in seconds."""
        return EffectiveStatus(
            served_names=self.served_names,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            tensor_parallel_size=self.tensor_parallel_size,
            kv_offloading=format_bytes(self.kv_offloading_bytes) if self.kv_offloading_bytes else None,
            inter_token_latency=str(self.inter_token_latency) if self.inter_token_latency else None,
            queue_time=str(self.queue_time) if self.queue_time else None,
            precedence=self.precedence if self.inter_token_latency and self.queue_time else None,
            tuning_mode=self.tuning_mode,
            prefill_budget=self.prefill_budget,
            min_num_seqs=self.min_num_seqs,
            max_num_active_seqs=self.max_num_active_seqs,
            restart_min_interval=str(self.restart_min_interval) if self.restart_min_interval else None,
            metrics_source=self.metrics_source,
            scaling_mode=self.scaling_mode,
            min_replicas=self.min_replicas,
            max_replicas=self.max_replicas,
            max_surge=self.max_surge,
            max_unavailable=self.max_unavailable,
            startup_timeout=str(self.startup_timeout),
            drain_timeout=str(self.drain_timeout),
            replace_stalled_after=str(self.replace_stalled_after) if self.replace_stalled_after else None,
            termination_grace_period=(
                None if termination_grace_s is None else format_duration(termination_grace_s)
            ),
        )


def effective(spec: LlamaServerSpec, chosen: int | None = None) -> EffectiveSpec:
    """Resolve every default of a spec that `parse` accepted.

    `chosen` is the --max-num-seqs that was last restarted for; it counts up to the spec's own, and only where
    the spec asks for restarts. The bounds of spec.tuning.numSeqs are for the choice: a change of them rolls
    no pod.
    """
    engine, slo, tuning = spec.engine, spec.slo, spec.tuning
    source = parse_uri(spec.model.uri)
    declared = engine.max_num_seqs or defaults.MAX_NUM_SEQS
    itl = slo.inter_token_latency if slo else None
    queue = slo.queue_time if slo else None
    bounds = tuning.num_seqs if tuning else None
    least_seqs = (bounds.min if bounds else None) or defaults.MIN_NUM_SEQS
    most_seqs = (bounds.max if bounds else None) or declared
    restart = tuning.restart if tuning else None
    max_num_seqs = declared
    if restart is not None and chosen is not None:
        max_num_seqs = min(chosen, declared)
    mode, replicas, least, most = _replicas(spec)
    surge, unavailable = _rollout(spec)
    return EffectiveSpec(
        source=source,
        served_names=spec.model.served_names or (own_name(source),),
        max_num_seqs=max_num_seqs,
        declared_num_seqs=declared,
        max_num_batched_tokens=engine.max_num_batched_tokens or defaults.MAX_NUM_BATCHED_TOKENS,
        tensor_parallel_size=engine.tensor_parallel_size or defaults.TENSOR_PARALLEL_SIZE,
        workers=_workers(spec),
        inter_token_latency=_latency(itl) if itl else None,
        queue_time=Target(queue.target, queue.statistic or defaults.STATISTIC) if queue else None,
        precedence=(slo.precedence if slo else None) or defaults.PRECEDENCE,
        suspended=bool(spec.suspend),
        tuning_mode=(tuning.mode if tuning else None) or defaults.TUNING_MODE,
        prefill_budget=(tuning.prefill_budget if tuning else None) or defaults.PREFILL_BUDGET,
        min_num_seqs=min(least_seqs, max_num_seqs),
        max_num_active_seqs=min(most_seqs, max_num_seqs),
        least_num_seqs=least_seqs,
        most_num_seqs=most_seqs,
        metrics_source=(spec.metrics.source if spec.metrics else None) or defaults.METRICS_SOURCE,
        scaling_mode=mode,
        replicas=replicas,
        min_replicas=least,
        max_replicas=most,
        max_surge=surge,
        max_unavailable=unavailable,
        startup_timeout=(spec.startup.timeout if spec.startup else None) or defaults.STARTUP_TIMEOUT,
        drain_timeout=(spec.shutdown.drain_timeout if spec.shutdown else None) or defaults.DRAIN_TIMEOUT,
        rolling=rolling_digest(spec),
        restart_min_interval=restart.min_interval if restart else None,
        kv_offloading_bytes=offloaded_bytes(spec),
        replace_stalled_after=spec.recovery.replace_stalled_after if spec.recovery else None,
        traces_calls=any(
            variable.name == TRACE_VARIABLE and variable.value not in (None, "", "0")
            for variable in engine.env or ()
        ),
    )


def _latency(itl: InterTokenLatencySLO) -> Target:
    return Target(itl.target, itl.statistic or defaults.STATISTIC, itl.scope or defaults.LATENCY_SCOPE)


def _replicas(spec: LlamaServerSpec) -> tuple[ScalingMode, int | None, int, int | None]:
    """Mode, the number set from outside, and the bounds of the number of replicas."""
    scaling = spec.scaling
    mode = (scaling.mode if scaling else None) or defaults.SCALING_MODE
    if mode is ScalingMode.FIXED:
        fixed = defaults.FIXED_REPLICAS if spec.replicas is None else spec.replicas
        return mode, fixed, fixed, fixed
    if mode is ScalingMode.EXTERNAL:
        return mode, spec.replicas, 0, spec.replicas
    least = (scaling.min_replicas if scaling else None) or defaults.MIN_REPLICAS
    return mode, None, least, (scaling.max_replicas if scaling else None) or least


def _workers(spec: LlamaServerSpec) -> int:
    """One for each accelerator where extraArgs do not tell how they are shared."""
    size = spec.engine.tensor_parallel_size or defaults.TENSOR_PARALLEL_SIZE
    others = other_parallel(spec.engine.extra_args or ())
    if others is None:
        return spec.accelerator.count if spec.accelerator else size
    return size * others


def _rollout(spec: LlamaServerSpec) -> tuple[int, int]:
    """maxSurge and maxUnavailable; where one of them lets pods be replaced, the other is 0."""
    surge = (spec.rollout.max_surge if spec.rollout else None) or defaults.MAX_SURGE
    unavailable = spec.rollout.max_unavailable if spec.rollout else None
    return surge, (0 if surge else 1) if unavailable is None else unavailable
