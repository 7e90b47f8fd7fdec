"""What one tick tells: the state of each pod, what could not be changed and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llamaserver.control import Decision
from llamaserver.control.context import (
    FIXED,
    LIVE,
    NOT_A_TAIL,
    NOT_TOLD,
    OFF,
    RECOMMENDING,
    SPECULATIVE_DECODING,
    SUSPENDED,
)
from llamaserver.controller import retune
from llamaserver.controller.runtime import DRAINING, IN_FORCE, EngineReport, PodReport, Report
from llamaserver.engine import Applied, Live, Refused, Unreachable, capability
from llamaserver.observe import Failure, NoWindow, Sample, Unusable, Windows

_NO_FAULT = (Unusable.FIRST, Unusable.RESTARTED, Unusable.NOT_SCRAPED)
"""Why a pod that has told something gives no window yet."""

_REASONS = frozenset(
    {
        "AdaptivePrefillThreshold",
        "BadSignature",
        "BodyMismatch",
        "ChunkedPrefillOff",
        "CustomScheduler",
        "EncoderDecoder",
        "EngineDead",
        "EngineError",
        "EnginePluginMissing",
        "EngineTimeout",
        "EngineUnreachable",
        "Expired",
        "FromPrometheus",
        "InvalidBody",
        "InvalidToken",
        "MissingToken",
        "MultimodalItemsNotChunked",
        "NoAttribute",
        "NoEngine",
        "NoEngineAccess",
        "NoLiveCap",
        "NoPodUid",
        "NoPublicKeys",
        "NoReason",
        "NoSigningKey",
        "NoSigningLibrary",
        "NoTuner",
        "NotSeen",
        "NotWritable",
        "OutOfBounds",
        "NotScraped",
        "PipelineParallel",
        "PrefillRole",
        "ProbeOff",
        "SeveralApiServers",
        "ShuttingDown",
        "SnapshotIncomplete",
        "StaleGeneration",
        "StatLoggerLost",
        "StatLoggerMissing",
        "StatisticsChanged",
        "TunerFailed",
        "UnknownKey",
        "WrongAudience",
        "WrongBoot",
    }
)
"""Every reason that the tuner, and our client for it, give for not changing an engine."""
_BUDGET = frozenset({FIXED, LIVE, NOT_A_TAIL, NOT_TOLD, OFF, RECOMMENDING, SPECULATIVE_DECODING, SUSPENDED})
"""What we say of the prefill budget beside them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one change."""

    change: retune.Change
    answer: Applied | Refused | Unreachable


def report(
    at: float,
    asked_at: float,
    decision: Decision,
    results: Mapping[str, Sample | Failure],
    windows: Windows,
    outcomes: Sequence[Outcome],
    foreign: str,
) -> Report:
    """Everything that is told of one tick. `foreign` names whoever else changes the engines."""
    answers = {outcome.change.pod: outcome.answer for outcome in outcomes}
    samples = {name: result for name, result in results.items() if isinstance(result, Sample)}
    unavailable = {}
    for name, sample in samples.items():
        can = capability(sample)
        if not isinstance(can, Live):
            unavailable[name] = f"{can.reason}: {can.message}" if can.message else can.reason
    return Report(
        at=at,
        asked_at=asked_at,
        decision=decision,
        pods=tuple(
            _pod_report(name, sample, answers.get(name), unavailable.get(name), decision.ailing.get(name, ""))
            for name, sample in sorted(samples.items())
        ),
        silent=_silent(results, windows),
        unavailable=unavailable,
        failed={
            name: f"{word(answer)}: {answer.message}"
            for name, answer in answers.items()
            if not isinstance(answer, Applied)
        },
        partial=any(isinstance(answer, Applied) and not answer.agreed for answer in answers.values()),
        foreign=foreign,
        every_s=max((s.every_s for s in samples.values() if s.every_s is not None), default=None),
    )


def _pod_report(
    name: str,
    sample: Sample,
    answer: Applied | Refused | Unreachable | None,
    unavailable: str | None,
    cause: str,
) -> PodReport:
    now = after(answer) if isinstance(answer, Applied) else retune.in_force(sample)
    told = bool(sample.engines)
    state, message = IN_FORCE, ""
    if unavailable is not None:
        reason, _, message = unavailable.partition(": ")
        state = _known(reason)
    elif isinstance(answer, Refused | Unreachable):
        state, message = word(answer), answer.message
    elif isinstance(answer, Applied) and not answer.agreed:
        state = "Partial"
    elif any(
        engine.max_num_active_seqs is not None and engine.running > engine.max_num_active_seqs
        for engine in sample.engines
    ):
        state = DRAINING
    ceilings = [engine.max_num_seqs for engine in sample.engines if engine.max_num_seqs is not None]
    return PodReport(
        name=name,
        num_seqs=now.num_seqs,
        num_scheduled_tokens=now.num_scheduled_tokens,
        ceiling=min(ceilings, default=None),
        running=sum(engine.running for engine in sample.engines) if told else None,
        waiting=sum(engine.waiting for engine in sample.engines) if told else None,
        state=state,
        message=message,
        engines=_engine_reports(sample, answer) if len(sample.engines) > 1 else (),
        cause=str(cause),
    )


def _engine_reports(
    sample: Sample, answer: Applied | Refused | Unreachable | None
) -> tuple[EngineReport, ...]:
    """The engines of a pod as they were read, each with the cap that was read back after a change."""
    changed = answer.engines if isinstance(answer, Applied) else ()
    caps = {engine.engine: engine.max_num_active_seqs for engine in changed}
    return tuple(
        EngineReport(
            index=engine.engine,
            num_seqs=caps.get(engine.engine, engine.max_num_active_seqs),
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.kv_usage,
        )
        for engine in sorted(sample.engines, key=lambda engine: engine.engine)
    )


def _silent(results: Mapping[str, Sample | Failure], windows: Windows) -> dict[str, str]:
    """The pods that were asked and gave no figures, and why. One that only has to be seen again is none."""
    silent = {name: result.message for name, result in results.items() if isinstance(result, Failure)}
    for name, window in windows.items():
        if isinstance(window, NoWindow) and window.why not in _NO_FAULT:
            silent.setdefault(name, window.message)
    return silent


def after(answer: Applied | Refused | Unreachable) -> retune.InForce:
    """What is in force after a change, as the engines read it back."""
    engines = answer.engines if isinstance(answer, Applied) else ()
    caps = [engine.max_num_active_seqs for engine in engines if engine.max_num_active_seqs is not None]
    budgets = [
        engine.max_num_scheduled_tokens for engine in engines if engine.max_num_scheduled_tokens is not None
    ]
    return retune.InForce(min(caps, default=None), min(budgets, default=None))


def word(answer: Applied | Refused | Unreachable) -> str:
    """The answer as a label of a metric and as a state of a pod."""
    if isinstance(answer, Applied):
        return "Applied"
    return _known(answer.reason) if isinstance(answer, Refused) else "Unreachable"


def budget_word(report: Report) -> str | None:
    """Whether the prefill budget is moved, or why not, in one word; None where no engine was heard of."""
    said = report.decision.prefill_budget
    return said if said in _BUDGET else _known(said) if said else None


def _known(reason: str) -> str:
    """A reason as an engine gave it, if it is one that engines give: it becomes a label and a word of status,
    so nobody else's text may pass.
    """
    return reason if reason in _REASONS else "Other"


def telling(report: Report) -> object:
    """The part of a report that people want to know at once."""
    decision = report.decision
    return (
        report.generation,
        decision.diagnosis.cause,
        decision.binding,
        decision.prefill_budget,
        decision.observed.slo_met,
        decision.recommended_replicas,
        tuple(
            (
                *(pod.name, pod.num_seqs, pod.num_scheduled_tokens, pod.ceiling, pod.state, pod.cause),
                tuple(engine.num_seqs for engine in pod.engines),
            )
            for pod in report.pods
        ),
        frozenset(report.silent),
        frozenset(report.unavailable),
        report.partial,
        report.foreign,
    )
