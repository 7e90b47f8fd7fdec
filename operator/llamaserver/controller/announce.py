"""Events about a LlamaServer: what changed between two statuses, in words, each told once. Pure but for
`tell`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llamaserver.api.conditions import Condition, ConditionStatus, ConditionType, Reason
from llamaserver.api.status import Status
from llamaserver.cluster import EventType, Recorder, Reference
from llamaserver.controller.journal import REPLICAS

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
    known = set(before.decisions or ())
    for decision in reversed(after.decisions or ()):
        if decision in known:
            continue
        what = "Scaled" if decision.action == REPLICAS else "Retuned"
        where = f" on pod {decision.pod}" if decision.pod else ""
        text = f"{decision.action} {decision.from_ or '?'} -> {decision.to or '?'}{where}: {decision.reason}"
        yield News(EventType.NORMAL, what, text)
    cause_before = before.diagnosis.cause if before.diagnosis else None
    if after.diagnosis is not None and after.diagnosis.cause != cause_before and cause_before is not None:
        advice = f" {after.diagnosis.advice}" if after.diagnosis.advice else ""
        kind = EventType.NORMAL if after.diagnosis.cause in _GOOD else EventType.WARNING
        yield News(kind, after.diagnosis.cause, f"{after.diagnosis.message}{advice}" or after.diagnosis.cause)


def tell(recorder: Recorder, about: Reference, before: Status, after: Status) -> None:
    """Emit the news."""
    for item in news(before, after):
        recorder.emit(about, item.type, item.reason, item.message)


def _rolling(before: Condition | None, after: Condition) -> News | None:
    """A rollout that begins; its message names the first difference. Coming up for the first time is none."""
    if after.reason != Reason.ROLLING_OUT or before is None or before.reason == Reason.STARTING:
        return None
    again = before.reason == Reason.ROLLING_OUT and before.observed_generation == after.observed_generation
    return None if again else News(EventType.NORMAL, "Rollout", after.message)


def _turned(before: Condition | None, after: Condition) -> News | None:
    """A condition that turned good or bad. Absence is how a condition begins: being fine from the start is no
    news.
    """
    status = after.status
    if after.type == ConditionType.PROGRESSING:
        return _rolling(before, after)
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
