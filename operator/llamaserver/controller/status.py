"""Composes status, and says whether it tells something new. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from llamaserver.api.conditions import Condition, set_condition, timestamp
from llamaserver.api.duration import format_duration
from llamaserver.api.names import selector_text
from llamaserver.api.status import (
    MAX_ENGINES,
    MAX_PODS,
    Actuator,
    DecisionStatus,
    DiagnosisStatus,
    EngineTuning,
    ObservedStatus,
    PodTuning,
    RecoveryStatus,
    RestartStatus,
    ScalingStatus,
    Status,
    TuningStatus,
)
from llamaserver.control import Decision, Diagnosis, Learned, Observed
from llamaserver.controller.conditions import judge
from llamaserver.controller.facts import Facts
from llamaserver.controller.report import budget_word
from llamaserver.controller.runtime import IN_FORCE, EngineReport, PodReport, Report

_EVIDENCE = 32
TOLD_ENGINES = 512
"""Engines that are told one by one, of all pods: what etcd takes has its limits."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks."""

    monotonic: float
    wall: datetime


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose status it is."""

    name: str
    generation: int


def compose(
    who: Identity,
    facts: Facts,
    before: Status,
    *,
    decisions: Iterable[DecisionStatus],
    recovery: RecoveryStatus | None = None,
    restart: RestartStatus | None = None,
    learned: Learned | None,
    grace_s: float | None,
    now: Moment,
) -> Status:
    """The status as it should be. Before the first tick what an earlier leader measured is carried on."""
    report = facts.report
    conditions: tuple[Condition, ...] = before.conditions or ()
    old = {condition.type: condition.observed_generation for condition in conditions}
    for verdict in judge(facts):
        generation: int | None = who.generation
        if verdict.by_report and report is not None:
            generation = report.generation or old.get(verdict.type)
        conditions = set_condition(
            conditions,
            verdict.type,
            verdict.status,
            verdict.reason,
            verdict.message,
            generation=who.generation if generation is None else generation,
            now=now.wall,
        )
    alive = [pod for pod in facts.pods if not pod.ending]
    measured = {} if report is None else _measured(report, before, now)
    return before.model_copy(
        update={
            "observed_generation": who.generation,
            "conditions": conditions,
            "replicas": len(alive),
            "ready_replicas": sum(pod.ready for pod in alive),
            "selector": selector_text(who.name),
            "effective": before.effective if facts.spec is None else facts.spec.to_status(grace_s),
            "decisions": tuple(decisions) or None,
            "recovery": recovery,
            "restart": restart,
            "model": before.model if learned is None else _figures(learned),
            **measured,
        }
    )


def as_measured(composed: Status, report: Report, learned: Learned | None, now: Moment) -> Status:
    """The status as composed at the last look, with what has been measured since."""
    model = composed.model if learned is None else _figures(learned)
    return composed.model_copy(update={"model": model, **_measured(report, composed, now)})


def tells_something_new(before: Status, after: Status) -> bool:
    """True when more than figures and the words around them has changed."""
    return _core(before) != _core(after)


def _measured(report: Report, before: Status, now: Moment) -> dict[str, object]:
    return {
        "observed": observed(report.decision.observed),
        "tuning": _tuning(report),
        "scaling": _scaling(report.decision),
        "diagnosis": _diagnosis(report.decision.diagnosis, before.diagnosis, now),
    }


def observed(seen: Observed) -> ObservedStatus | None:
    """The fleet's figures as people read them; None where none is known."""
    relation = "" if seen.itl_relation == "=" else seen.itl_relation
    status = ObservedStatus(
        inter_token_latency=None if seen.itl_s is None else f"{relation}{_duration(seen.itl_s)}",
        inter_token_latency_mean=_duration(seen.itl_mean_s),
        queue_time=_duration(seen.queue_s),
        running=seen.running,
        waiting=seen.waiting,
        kv_cache_usage=None if seen.kv_usage is None else f"{seen.kv_usage:.2f}",
        preemptions_per_minute=_rate(seen.preemptions_per_minute),
        tokens_per_second=_rate(seen.tokens_per_s),
    )
    return status if status.to_dict() else None


def _tuning(report: Report) -> TuningStatus | None:
    if not report.pods:
        return None
    live = any(pod.name not in report.unavailable for pod in report.pods)
    seqs = [pod.num_seqs for pod in report.pods if pod.num_seqs is not None]
    budgets = [pod.num_scheduled_tokens for pod in report.pods if pod.num_scheduled_tokens is not None]
    ceilings = [pod.ceiling for pod in report.pods if pod.ceiling is not None]
    return TuningStatus(
        num_seqs=min(seqs, default=None),
        ceiling=max(ceilings, default=None),
        num_batched_tokens=min(budgets, default=None),
        binding=report.decision.binding,
        prefill_budget=budget_word(report),
        actuator=Actuator.LIVE if live else Actuator.UNAVAILABLE,
        pods=_pods(report.pods[:MAX_PODS]),
    )


def _pods(pods: Sequence[PodReport]) -> tuple[PodTuning, ...]:
    """The pods, with their engines as long as there is room; those with a word to explain come first."""
    told: dict[str, tuple[EngineTuning, ...]] = {}
    room = TOLD_ENGINES
    for pod in sorted(pods, key=lambda pod: pod.state == IN_FORCE):
        told[pod.name] = tuple(map(_engine, pod.engines[: min(MAX_ENGINES, room)]))
        room -= len(told[pod.name])
    return tuple(
        PodTuning(
            name=pod.name,
            num_seqs=pod.num_seqs,
            state=pod.state,
            cause=pod.cause or None,
            engines=told[pod.name] or None,
        )
        for pod in pods
    )


def _engine(one: EngineReport) -> EngineTuning:
    return EngineTuning(
        index=one.index,
        num_seqs=one.num_seqs,
        running=one.running,
        waiting=one.waiting,
        kv_cache_usage=f"{one.kv_usage:.2f}",
    )


def _scaling(decision: Decision) -> ScalingStatus | None:
    wanted = decision.recommended_replicas
    if wanted is None and not decision.replicas_reason:
        return None
    return ScalingStatus(desired_replicas=wanted, reason=decision.replicas_reason or None)


def _diagnosis(found: Diagnosis, before: DiagnosisStatus | None, now: Moment) -> DiagnosisStatus:
    """A cause that an earlier status named already has held since then, whoever wrote it."""
    since = timestamp(now.wall - timedelta(seconds=max(0.0, now.monotonic - found.since)))
    if before is not None and before.cause == found.cause.value and before.since is not None:
        since = before.since
    evidence = {name: _text(value) for name, value in list(found.evidence.items())[:_EVIDENCE]}
    return DiagnosisStatus(
        cause=found.cause.value,
        message=found.message,
        advice=found.advice or None,
        since=since,
        evidence=evidence or None,
    )


def _figures(learned: Learned) -> dict[str, str]:
    return {name: f"{value:.6g}" for name, value in sorted(learned.to_dict().items())}


def _core(status: Status) -> object:
    """What is worth a write at once: everything but figures, messages and what was learned."""
    tuning = status.tuning
    return (
        status.observed_generation,
        {
            condition.type: (condition.status, condition.reason, condition.observed_generation)
            for condition in status.conditions or ()
        },
        status.replicas,
        status.ready_replicas,
        status.selector,
        status.effective,
        status.decisions,
        (status.recovery.pod, status.recovery.time, status.recovery.replacements)
        if status.recovery
        else None,
        (status.restart.max_num_seqs, status.restart.time) if status.restart else None,
        status.diagnosis.cause if status.diagnosis else None,
        status.scaling.desired_replicas if status.scaling else None,
        (
            tuning.num_seqs,
            tuning.ceiling,
            tuning.num_batched_tokens,
            tuning.binding,
            tuning.prefill_budget,
            tuning.actuator,
            [
                (
                    *(pod.name, pod.num_seqs, pod.state, pod.cause),
                    [engine.num_seqs for engine in pod.engines or ()],
                )
                for pod in tuning.pods or ()
            ],
        )
        if tuning
        else None,
    )


def _duration(seconds: float | None) -> str | None:
    """Two significant digits: enough to judge by, and steady enough not to rewrite status for noise."""
    return None if seconds is None else format_duration(float(f"{seconds:.2g}"))


def _rate(value: float | None) -> str | None:
    if value is None:
        return None
    return str(round(float(f"{value:.2g}"))) if value >= 10 else f"{value:.2g}"


def _text(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
