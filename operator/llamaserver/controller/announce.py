"""Events about a LlamaServer: what changed between two statuses, in words, each told once. Pure but for
what takes a recorder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llamaserver.api.conditions import Condition, ConditionStatus, ConditionType
from llamaserver.api.enums import Binding
from llamaserver.api.status import Status
from llamaserver.cluster import EventType, Recorder, Reference
from llamaserver.controller.journal import REFUSED, REPLACEMENT, REPLICAS, RESTART
from llamaserver.desired import Outlook

_GOOD = {"Healthy", "Idle"}


@dataclass(frozen=True, slots=True)
class News:
    """One Event to be."""

    type: EventType
    reason: str
    message: str


def news(before: Status, after: Status) -> Iterator[News]:
    """What people want to be told of the step from one status to the next."""
    old = {condition.type: condition for condition in before.conditions or ()}
    for condition in after.conditions or ():
        found = _turned(old.get(condition.type), condition)
        if found is not None:
            yield found
    known = {decision.identity for decision in before.decisions or ()}
    for decision in reversed(after.decisions or ()):
        if decision.identity in known or (decision.outcome or "").startswith(REFUSED):
            continue
        if decision.action == REPLACEMENT:
            text = f"pod {decision.pod} is evicted, for another to take its place: {decision.reason}"
            yield News(EventType.WARNING, REPLACEMENT, text)
            continue
        if decision.action == RESTART:
            text = f"maxNumSeqs {decision.from_} -> {decision.to}: {decision.reason}"
            yield News(EventType.WARNING, RESTART, text)
            continue
        what = "Scaled" if decision.action == REPLICAS else "Retuned"
        where = f" on pod {decision.pod}" if decision.pod else ""
        text = f"{decision.action} {decision.from_ or '?'} -> {decision.to or '?'}{where}: {decision.reason}"
        yield News(EventType.NORMAL, what, text)
    yield from _binding(before, after)
    cause_before = before.diagnosis.cause if before.diagnosis else None
    if after.diagnosis is not None and after.diagnosis.cause != cause_before and cause_before is not None:
        advice = f" {after.diagnosis.advice}" if after.diagnosis.advice else ""
        kind = EventType.NORMAL if after.diagnosis.cause in _GOOD else EventType.WARNING
        yield News(kind, after.diagnosis.cause, f"{after.diagnosis.message}{advice}" or after.diagnosis.cause)


_BINDS = {
    Binding.NOTHING: "No request waits for a place any more.",
    Binding.NUM_SEQS: "Requests wait for the cap: decodes take the time that the objective leaves.",
    Binding.PREFILL_BUDGET: "Requests wait for the prefill budget: prompts take the time that the objective "
    "leaves beside the decodes.",
    Binding.MAX_NUM_SEQS: "Requests wait for the cap, which is as high as it may go.",
    Binding.KV_CACHE: "Requests wait for KV cache: memory binds, not latency.",
}


def _binding(before: Status, after: Status) -> Iterator[News]:
    """What holds requests back now, when that has changed."""
    old = before.tuning.binding if before.tuning else None
    new = after.tuning.binding if after.tuning else None
    if old is not None and new is not None and new is not old:
        yield News(EventType.NORMAL, f"Binding{new}", _BINDS[new])


def tell(recorder: Recorder, about: Reference, before: Status, after: Status) -> None:
    """Emit the news."""
    for item in news(before, after):
        recorder.emit(about, item.type, item.reason, item.message)


def rollout(recorder: Recorder, about: Reference, cause: str, outlook: Outlook) -> None:
    """Announce that pods are about to be replaced: a warning where the service is interrupted for it."""
    kind = EventType.WARNING if outlook.interrupts else EventType.NORMAL
    recorder.emit(about, kind, "Rollout", f"{cause}: {outlook.text}")


def victim_uncertain(recorder: Recorder, about: Reference, step: str, problem: str) -> None:
    """Tell that a scale-down goes on although other pods may go than those with the fewest requests."""
    text = (
        f"{step}, and other pods may go than those with the fewest requests: {problem}; "
        "the streams of those that go have spec.shutdown.drainTimeout to end, as always"
    )
    recorder.emit(about, EventType.WARNING, "VictimUncertain", text)


def scale_down_waits(recorder: Recorder, about: Reference, step: str) -> None:
    """Tell that a scale-down waits for a rollout, which could otherwise end the last pod that serves."""
    text = (
        f"{step} waits until the rollout is over, which with so few replicas might end the last pod that "
        "serves before another one does; a version that does not start has to be taken back first"
    )
    recorder.emit(about, EventType.NORMAL, "ScaleDownWaits", text)


def replacement_refused(recorder: Recorder, about: Reference, problem: str) -> None:
    """Tell that a pod whose engine hangs stays, and is tried to be replaced again."""
    recorder.emit(about, EventType.WARNING, "ReplacementRefused", f"{problem}; it is tried again")


def _turned(before: Condition | None, after: Condition) -> News | None:
    """A condition that turned good or bad. Absence is how a condition begins: being fine from the start is no
    news.
    """
    status = after.status
    if (before is not None and before.status is status) or status is ConditionStatus.UNKNOWN:
        return None
    good = (status is ConditionStatus.TRUE) != (after.type == ConditionType.STALLED)
    match after.type:
        case ConditionType.ACCEPTED | ConditionType.STALLED:
            if good:
                return None if before is None else News(EventType.NORMAL, after.reason, after.message)
            return News(EventType.WARNING, after.reason, after.message)
        case ConditionType.READY:
            if good:
                return News(EventType.NORMAL, "Ready", after.message)
            return None if before is None else News(EventType.WARNING, "NotReady", after.message)
        case ConditionType.SLO_MET:
            if good:
                return None if before is None else News(EventType.NORMAL, "SLOMet", after.message)
            return News(EventType.WARNING, "SLOMissed", after.message)
        case _:
            return None
