"""Each condition of a LlamaServer, judged by a pure function: what is known goes in, a verdict comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from llamaserver.api.conditions import ConditionType, Reason
from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.enums import ScalingMode, TuningMode
from llamaserver.cluster.kinds import Object
from llamaserver.control import Cause
from llamaserver.controller.diff import mark_of
from llamaserver.controller.pods import Pod, Trouble
from llamaserver.controller.runtime import Report


@dataclass(frozen=True, slots=True)
class Judgement:
    """A condition's content. `status` None means Unknown."""

    type: ConditionType
    status: bool | None
    reason: str
    message: str
    by_report: bool = False
    """Judged by the last tick, and so by the spec that the tick knew."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A Deployment's own account of itself. `current` is False while it is not what is wanted now, or has not
    yet seen its newest spec.
    """

    exists: bool
    current: bool
    wanted: int
    updated: int
    total: int
    ready: int
    deadline_exceeded: str

    @property
    def complete(self) -> bool:
        """Every pod there is has the present template, and there are as many as wanted."""
        return self.exists and self.current and self.updated >= self.wanted and self.total == self.updated


@dataclass(frozen=True, slots=True)
class Facts:
    """All that conditions are judged by."""

    spec: EffectiveSpec | None
    invalid: str
    apply_problem: tuple[str, str] | None
    claim_problem: str
    rollout: Rollout
    rollout_reason: str
    pods: Sequence[Pod]
    report: Report | None
    now: datetime
    patience_s: float
    """For how long a pod's trouble may be one that mends itself."""
    waits_for: str = ""


def rollout(deployment: Object | None, wanted_mark: str) -> Rollout:
    """Read a Deployment, which is to say that it was made from `wanted_mark`."""
    if deployment is None:
        return Rollout(False, False, 0, 0, 0, 0, "")
    spec: dict[str, Any] = deployment.get("spec") or {}
    status: dict[str, Any] = deployment.get("status") or {}
    replicas = spec.get("replicas")
    late = next(
        (
            str(condition.get("message") or "the pods did not come up in time")
            for condition in status.get("conditions") or ()
            if condition.get("type") == "Progressing"
            and condition.get("reason") == "ProgressDeadlineExceeded"
        ),
        "",
    )
    return Rollout(
        exists=True,
        current=mark_of(deployment) == wanted_mark
        and (status.get("observedGeneration") or 0) >= (deployment["metadata"].get("generation") or 0),
        wanted=1 if replicas is None else int(replicas),
        updated=int(status.get("updatedReplicas") or 0),
        total=int(status.get("replicas") or 0),
        ready=int(status.get("readyReplicas") or 0),
        deadline_exceeded=late,
    )


def judge(facts: Facts) -> list[Judgement]:
    """All conditions, in the order in which status shows them."""
    ready = _ready(facts)
    verdicts = [_accepted(facts), ready, _progressing(facts), _stalled(facts, ready.status is True)]
    if facts.report is not None and facts.spec is not None:
        measured = (
            _slo_met(facts.spec, facts.report),
            _tuned(facts.spec, facts.report),
            _metrics(facts.report),
        )
        verdicts += [replace(verdict, by_report=True) for verdict in measured]
    return verdicts


def trouble(facts: Facts) -> Trouble | None:
    """What keeps a pod from coming up, the longest-standing first.

    A pod that waits for what a terminating one still holds is in no trouble: without surge every rollout of a
    full cluster goes that way.
    """
    handing_over = any(pod.terminating for pod in facts.pods)
    found = [
        pod.trouble
        for pod in facts.pods
        if pod.trouble is not None and not (handing_over and pod.trouble.reason is Reason.UNSCHEDULABLE)
    ]
    return min(found, key=lambda one: one.since or facts.now, default=None)


def _accepted(facts: Facts) -> Judgement:
    if facts.invalid:
        kept = "; the last accepted spec stays in force" if facts.spec is not None else ""
        return Judgement(ConditionType.ACCEPTED, False, Reason.INVALID_SPEC, facts.invalid + kept)
    if facts.apply_problem:
        return Judgement(ConditionType.ACCEPTED, False, *facts.apply_problem)
    return Judgement(ConditionType.ACCEPTED, True, Reason.VALID, "the spec is valid")


def _ready(facts: Facts) -> Judgement:
    """Serving with the present spec, by as many replicas as are promised. The objective has no say in it."""
    type_, state = ConditionType.READY, facts.rollout
    if facts.invalid:
        serving = (
            f"{state.ready} replicas serve the last accepted spec" if state.ready else "nothing is served"
        )
        return Judgement(type_, False, Reason.INVALID_SPEC, f"the present spec cannot be served; {serving}")
    if facts.apply_problem:
        return Judgement(type_, False, *facts.apply_problem)
    if facts.waits_for or not state.exists or facts.spec is None:
        text = facts.waits_for or "the Deployment is not made yet"
        return Judgement(type_, False, Reason.STARTING, text)
    if state.wanted == 0 and state.complete:
        return Judgement(type_, True, Reason.SCALED_TO_ZERO, "no replicas are asked for, and none run")
    need = min(_promised(facts.spec, state.wanted), state.wanted)
    text = f"{state.ready} of {state.wanted} replicas ready"
    if state.current and state.updated >= need and state.total == state.updated and state.ready >= need:
        return Judgement(type_, True, Reason.SERVING, text)
    if state.current and (found := trouble(facts)) is not None:
        return Judgement(type_, False, found.reason, f"{text}; {found.message}")
    if state.total > state.updated or not state.current:
        return Judgement(type_, False, Reason.ROLLING_OUT, f"{text}, {_updated(state)} with the present spec")
    reason = Reason.REPLICAS_NOT_READY if state.ready else Reason.NO_REPLICAS_READY
    return Judgement(type_, False, reason, text)


def _updated(state: Rollout) -> int:
    """Pods with the present spec: none are known while the Deployment has not seen it."""
    return state.updated if state.current else 0


def _promised(spec: EffectiveSpec, wanted: int) -> int:
    """Replicas without which a fleet is not ready: more than the fewest are elasticity, not a promise."""
    if spec.scaling_mode is ScalingMode.FIXED:
        return wanted
    return 1 if spec.scaling_mode is ScalingMode.EXTERNAL else spec.min_replicas


def _progressing(facts: Facts) -> Judgement:
    type_, state = ConditionType.PROGRESSING, facts.rollout
    if facts.apply_problem:
        return Judgement(type_, False, *facts.apply_problem)
    if facts.waits_for:
        return Judgement(type_, True, Reason.STARTING, facts.waits_for)
    if not state.exists:
        moving = not facts.invalid
        return Judgement(
            type_, moving, Reason.STARTING, "the children are being made" if moving else "waiting for a spec"
        )
    found = trouble(facts)
    ails = f"; {found.message}" if found is not None else ""
    if not state.current or state.total > state.updated:
        why = f": {facts.rollout_reason}" if facts.rollout_reason else ""
        text = f"{_updated(state)} of {state.wanted} replicas have the present spec{why}{ails}"
        return Judgement(type_, True, Reason.ROLLING_OUT, text)
    if state.ready < state.wanted or state.total != state.wanted:
        return Judgement(type_, True, Reason.SCALING, f"{state.ready} of {state.wanted} replicas ready{ails}")
    return Judgement(type_, False, Reason.UP_TO_DATE, f"{state.ready} of {state.wanted} replicas up to date")


def _stalled(facts: Facts, ready: bool) -> Judgement:
    """True when nothing will get better by waiting: at once where that is certain, for a pod's trouble after
    the time in which it could have mended itself.
    """
    type_ = ConditionType.STALLED
    if facts.invalid:
        return Judgement(type_, True, Reason.INVALID_SPEC, facts.invalid)
    if facts.apply_problem:
        return Judgement(type_, True, *facts.apply_problem)
    if facts.report is not None and facts.report.decision.diagnosis.cause is Cause.STALLED:
        return Judgement(type_, True, Reason.ENGINE_STALLED, facts.report.decision.diagnosis.message)
    if facts.claim_problem and facts.rollout.ready < facts.rollout.wanted:
        return Judgement(type_, True, Reason.CLAIM_NOT_SHAREABLE, facts.claim_problem)
    if not ready:
        found, late = trouble(facts), facts.rollout.deadline_exceeded
        if found is not None and (late or _lasts(found, facts)):
            return Judgement(type_, True, found.reason, found.message)
        if late:
            return Judgement(type_, True, Reason.PROGRESS_DEADLINE_EXCEEDED, late)
    return Judgement(type_, False, Reason.NOT_STALLED, "nothing stands in the way")


def _lasts(found: Trouble, facts: Facts) -> bool:
    return found.since is not None and facts.now - found.since > timedelta(seconds=facts.patience_s)


def _slo_met(spec: EffectiveSpec, report: Report) -> Judgement:
    type_, decision = ConditionType.SLO_MET, report.decision
    met, diagnosis = decision.observed.slo_met, decision.diagnosis
    if spec.inter_token_latency is None and spec.queue_time is None:
        return Judgement(type_, None, Reason.NO_OBJECTIVE, "no objective is declared")
    if met is None:
        reason = Reason.NO_TRAFFIC if diagnosis.cause is Cause.IDLE else Reason.NO_DATA
        return Judgement(type_, None, reason, diagnosis.message or "nothing was measured lately")
    if met:
        return Judgement(type_, True, Reason.OBJECTIVE_MET, "every declared objective is met")
    healthy = diagnosis.cause in (Cause.HEALTHY, Cause.IDLE)
    cause = Reason.OBJECTIVE_MISSED if healthy else diagnosis.cause
    itl, queue = decision.observed.itl_met is False, decision.observed.queue_met is False
    missed = " and ".join(name for name, bad in (("interTokenLatency", itl), ("queueTime", queue)) if bad)
    text = f"{missed or 'a declared objective'} is missed"
    return Judgement(type_, False, cause, f"{text}: {diagnosis.message}" if diagnosis.message else text)


def _tuned(spec: EffectiveSpec, report: Report) -> Judgement:
    type_ = ConditionType.TUNED
    if spec.suspended:
        return Judgement(type_, False, Reason.SUSPENDED, "spec.suspend is true: nothing is decided")
    if spec.tuning_mode is TuningMode.OFF:
        return Judgement(type_, False, Reason.OFF, "spec.tuning.mode is Off: engines keep their start values")
    if not report.pods:
        return Judgement(type_, None, Reason.NO_PODS_REPORT, "no engine reports")
    if report.unavailable and len(report.unavailable) == len(report.pods):
        return Judgement(type_, False, Reason.ACTUATOR_UNAVAILABLE, _each(report.unavailable))
    if spec.tuning_mode is TuningMode.RECOMMEND:
        return Judgement(type_, False, Reason.RECOMMENDING, "spec.tuning.mode is Recommend: nothing is moved")
    if report.foreign:
        text = (
            f"pod {report.foreign} was changed by another leader while this one cannot reach the API server"
        )
        return Judgement(type_, False, Reason.RETUNE_FAILED, text)
    if report.failed:
        return Judgement(type_, False, Reason.RETUNE_FAILED, _each(report.failed))
    if report.partial:
        return Judgement(
            type_, False, Reason.RETUNE_PARTIAL, "engines of one pod differ; the change is repeated"
        )
    if report.unavailable:
        return Judgement(type_, False, Reason.ACTUATOR_UNAVAILABLE, _each(report.unavailable))
    return Judgement(type_, True, Reason.TUNED, "every engine runs with what was decided")


def _metrics(report: Report) -> Judgement:
    type_, silent = ConditionType.METRICS_AVAILABLE, len(report.silent)
    reporting = sum(pod.name not in report.silent for pod in report.pods)
    if reporting + silent == 0:
        return Judgement(type_, None, Reason.NO_PODS, "no engine can be asked yet")
    if silent == 0:
        return Judgement(type_, True, Reason.ALL_PODS_REPORT, f"{reporting} of {reporting} pods report")
    text = f"{reporting} of {reporting + silent} pods report; {_each(report.silent)}"
    reason = Reason.SOME_PODS_SILENT if reporting else Reason.NO_PODS_REPORT
    return Judgement(type_, False, reason, text)


def _each(by_pod: Any, limit: int = 3) -> str:
    """The first few pods with their message."""
    listed = [f"{pod}: {message}" for pod, message in sorted(by_pod.items())]
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return "; ".join(listed[:limit]) + more
