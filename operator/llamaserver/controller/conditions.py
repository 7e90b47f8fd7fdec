"""Each condition of a LlamaServer, judged by a pure function: what is known goes in, a verdict comes out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llamaserver.api.conditions import ConditionType, Reason
from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.enums import MetricsSource, ScalingMode, TuningMode
from llamaserver.control import Cause
from llamaserver.control.context import FIXED, LIVE, NOT_A_TAIL, OFF, RECOMMENDING, SUSPENDED
from llamaserver.controller.facts import (
    Facts,
    Rollout,
    claim_holds_back,
    downloading,
    lasts,
    trouble,
    will_not_mend,
)
from llamaserver.controller.report import budget_word
from llamaserver.controller.restart import given_back
from llamaserver.controller.runtime import Report
from llamaserver.desired import outlook


@dataclass(frozen=True, slots=True)
class Judgement:
    """A condition's content. `status` None means Unknown."""

    type: ConditionType
    status: bool | None
    reason: str
    message: str
    by_report: bool = False
    """Judged by the last tick, and so by the spec that the tick knew."""


def judge(facts: Facts) -> list[Judgement]:
    """All conditions, in the order in which status shows them."""
    ready = _ready(facts)
    verdicts = [_accepted(facts), ready, _progressing(facts), _stalled(facts, ready.status is True)]
    if facts.report is not None and facts.spec is not None:
        measured = (
            _slo_met(facts.spec, facts.report),
            _tuned(facts.spec, facts.report, facts.restart),
            _metrics(facts.spec, facts.report),
        )
        verdicts += [replace(verdict, by_report=True) for verdict in measured]
    return verdicts


def _accepted(facts: Facts) -> Judgement:
    if facts.invalid:
        kept = "; the last accepted spec stays in force" if facts.spec is not None else ""
        if facts.in_force:
            kept = "; pods that run go on, none can start before it is there, and all else is in force"
        return Judgement(ConditionType.ACCEPTED, False, facts.invalid_reason, facts.invalid + kept)
    if facts.apply_problem:
        return Judgement(ConditionType.ACCEPTED, False, *facts.apply_problem)
    return Judgement(ConditionType.ACCEPTED, True, Reason.VALID, "the spec is valid")


def _ready(facts: Facts) -> Judgement:
    """Serving with the present spec, by as many replicas as are promised. The objective has no say in it."""
    type_, state = ConditionType.READY, facts.rollout
    if facts.invalid:
        which = "it from before" if facts.in_force else "the last accepted spec"
        serving = f"{state.ready} replicas serve {which}" if state.ready else "nothing is served"
        told = f": {facts.invalid}" if facts.invalid_since else ""
        text = f"the present spec cannot be served{told}; {serving}"
        return Judgement(type_, False, facts.invalid_reason, text)
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
    fetching = downloading(facts)
    if state.replacing:
        more = f"; {fetching}" if fetching else ""
        text = f"{text}, {_updated(state)} with the present spec{more}"
        return Judgement(type_, False, Reason.ROLLING_OUT, text)
    if fetching:
        return Judgement(type_, False, Reason.DOWNLOADING, f"{text}; {fetching}")
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
        if facts.invalid:
            text = facts.invalid if facts.invalid_since else "waiting for a spec"
            return Judgement(type_, False, Reason.STARTING, text)
        return Judgement(type_, True, Reason.STARTING, "the children are being made")
    found = trouble(facts)
    told = downloading(facts) if found is None else found.message
    ails = f"; {told}" if told else ""
    comes_up = state.ready < state.wanted or state.total != state.wanted
    lasting = found is not None and lasts(found, facts)
    # Where no old pod is left, a rollout goes on until its pods serve.
    if state.replacing or (facts.rollout_reason and comes_up and not lasting):
        why = f": {facts.rollout_reason}" if facts.rollout_reason else ""
        means = f"; {outlook(facts.spec, state.wanted).text}" if facts.spec is not None else ""
        text = f"{_updated(state)} of {state.wanted} replicas have the present spec{why}{ails or means}"
        return Judgement(type_, True, Reason.ROLLING_OUT, text)
    if comes_up:
        if found is not None and lasting:
            text = f"{state.ready} of {state.wanted} replicas ready, and no more to come: {found.message}"
            return Judgement(type_, False, found.reason, text)
        return Judgement(type_, True, Reason.SCALING, f"{state.ready} of {state.wanted} replicas ready{ails}")
    return Judgement(type_, False, Reason.UP_TO_DATE, f"{state.ready} of {state.wanted} replicas up to date")


def _stalled(facts: Facts, ready: bool) -> Judgement:
    """True when nothing will get better by waiting: at once where that is certain, for a pod's trouble after
    the time in which it could have mended itself.
    """
    type_ = ConditionType.STALLED
    if will_not_mend(facts):
        return Judgement(type_, True, facts.invalid_reason, facts.invalid)
    if facts.apply_problem:
        return Judgement(type_, True, *facts.apply_problem)
    if facts.report is not None and facts.report.decision.diagnosis.cause is Cause.STALLED:
        return Judgement(type_, True, Reason.ENGINE_STALLED, facts.report.decision.diagnosis.message)
    if facts.claim_problem is not None and claim_holds_back(facts):
        return Judgement(type_, True, Reason.CLAIM_NOT_SHAREABLE, facts.claim_problem.message)
    if not ready:
        found, late = trouble(facts), facts.rollout.deadline_exceeded
        if found is not None and (late or lasts(found, facts)):
            return Judgement(type_, True, found.reason, found.message)
        if late:
            return Judgement(type_, True, Reason.PROGRESS_DEADLINE_EXCEEDED, late)
    return Judgement(type_, False, Reason.NOT_STALLED, "nothing stands in the way")


def _slo_met(spec: EffectiveSpec, report: Report) -> Judgement:
    type_, decision = ConditionType.SLO_MET, report.decision
    met, diagnosis = decision.observed.slo_met, decision.diagnosis
    if spec.inter_token_latency is None and spec.queue_time is None:
        return Judgement(type_, None, Reason.NO_OBJECTIVE, "no objective is declared")
    if met is None:
        reason = Reason.NO_TRAFFIC if diagnosis.cause is Cause.IDLE else Reason.NO_DATA
        text = decision.observed.itl_lacks or diagnosis.message or "nothing was measured lately"
        return Judgement(type_, None, reason, text)
    if met:
        return Judgement(type_, True, Reason.OBJECTIVE_MET, "every declared objective is met")
    healthy = diagnosis.cause in (Cause.HEALTHY, Cause.IDLE)
    cause = Reason.OBJECTIVE_MISSED if healthy else diagnosis.cause
    itl, queue = decision.observed.itl_met is False, decision.observed.queue_met is False
    missed = " and ".join(name for name, bad in (("interTokenLatency", itl), ("queueTime", queue)) if bad)
    text = f"{missed or 'a declared objective'} is missed"
    return Judgement(type_, False, cause, f"{text}: {diagnosis.message}" if diagnosis.message else text)


def _tuned(spec: EffectiveSpec, report: Report, restart: str) -> Judgement:
    type_, instead = ConditionType.TUNED, f"; restarts: {restart}" if restart else ""
    if spec.suspended:
        return Judgement(type_, False, Reason.SUSPENDED, "spec.suspend is true: nothing is decided")
    if spec.tuning_mode is TuningMode.OFF:
        return Judgement(type_, False, Reason.OFF, "spec.tuning.mode is Off: engines keep their start values")
    if spec.metrics_source is MetricsSource.PROMETHEUS:
        text = (
            "spec.metrics.source is Prometheus: engines are not asked, so no cap and no budget is moved in "
            "them; diagnosis and replicas go by what Prometheus has"
        )
        return Judgement(type_, False, Reason.ACTUATOR_UNAVAILABLE, text + instead)
    if not report.pods:
        return Judgement(type_, None, Reason.NO_PODS_REPORT, "no engine reports")
    if report.unavailable and len(report.unavailable) == len(report.pods):
        return Judgement(type_, False, Reason.ACTUATOR_UNAVAILABLE, _each(report.unavailable) + instead)
    lowered = f"; {told}" if (told := given_back(spec)) else ""
    if spec.tuning_mode is TuningMode.RECOMMEND:
        text = f"spec.tuning.mode is Recommend: nothing is moved{lowered}"
        return Judgement(type_, False, Reason.RECOMMENDING, text)
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
        return Judgement(type_, False, Reason.ACTUATOR_UNAVAILABLE, _each(report.unavailable) + lowered)
    text = f"every engine runs with what was decided{_kept_budget(report)}{lowered}"
    return Judgement(type_, True, Reason.TUNED, text)


def _kept_budget(report: Report) -> str:
    """Why only the cap is moved where the objective would have the prefill budget moved, too."""
    word = budget_word(report)
    expected = (None, LIVE, FIXED, NOT_A_TAIL, OFF, RECOMMENDING, SUSPENDED)
    return "" if word in expected else f"; the prefill budget stays at its start value: {word}"


def _metrics(spec: EffectiveSpec, report: Report) -> Judgement:
    type_, silent = ConditionType.METRICS_AVAILABLE, len(report.silent)
    reporting = sum(pod.name not in report.silent for pod in report.pods)
    if reporting + silent == 0:
        return Judgement(type_, None, Reason.NO_PODS, "no engine can be asked yet")
    slower = ""
    if report.every_s is not None:
        slower = f"; Prometheus scrapes them every {report.every_s:.0f} s, and nothing is decided more often"
    if silent == 0:
        text = f"{reporting} of {reporting} pods report{slower}"
        return Judgement(type_, True, Reason.ALL_PODS_REPORT, text)
    text = f"{reporting} of {reporting + silent} pods report{slower}; {_each(report.silent)}"
    if reporting:
        return Judgement(type_, False, Reason.SOME_PODS_SILENT, text)
    by_prometheus = spec.metrics_source is MetricsSource.PROMETHEUS
    reason = Reason.PROMETHEUS_SILENT if by_prometheus else Reason.NO_PODS_REPORT
    return Judgement(type_, False, reason, text)


def _each(by_pod: Any, limit: int = 3) -> str:
    """The first few pods with their message; one that all have is said once."""
    if len(by_pod) > 1 and len(told := set(by_pod.values())) == 1:
        return f"each of {len(by_pod)} pods: {told.pop()}"
    listed = [f"{pod}: {message}" for pod, message in sorted(by_pod.items())]
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return "; ".join(listed[:limit]) + more
