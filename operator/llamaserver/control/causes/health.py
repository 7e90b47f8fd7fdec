"""What is said when there is no cause to name."""

from __future__ import annotations

from llamaserver.control.causes.finding import Finding
from llamaserver.control.facts import Facts
from llamaserver.control.types import Cause
from llamaserver.control.wording import ms


def healthy(facts: Facts) -> Finding:
    seen, target = facts.observed.itl_s, facts.objective.itl_s
    evidence: dict[str, float | int | str] = {"running": facts.running, "waiting": facts.waiting}
    if target is None:
        return Finding(Cause.HEALTHY, "Serving; no inter-token-latency objective is declared.", "", evidence)
    if seen is None:
        lacks = facts.observed.itl_lacks or "no inter-token latency was seen lately"
        return Finding(Cause.HEALTHY, f"Serving; {lacks}.", "", evidence)
    relation = {"=": "", "<=": "at most ", ">=": "at least "}[facts.observed.itl_relation]
    evidence |= {"itl_ms": ms(seen), "target_ms": ms(target)}
    figures = f"{facts.objective.itl_named} is {relation}{ms(seen)} ms against a target of {ms(target)} ms"
    if facts.missed:
        message = f"The objective was missed in the last seconds, but this cap should hold it: {figures}."
    elif facts.queue_missed:
        message = (
            f"The latency objective holds ({figures}), the queue objective is missed: {_queue_words(facts)}."
        )
    elif facts.observed.itl_met is None:
        message = f"Whether the objective holds cannot be told from these buckets: {figures}."
    else:
        message = f"The objective holds: {figures}."
    return Finding(Cause.HEALTHY, message, "", evidence)


def _queue_words(facts: Facts) -> str:
    """The queue as it is now against its target, and where it stands."""
    assert facts.queue_now_s is not None
    assert facts.objective.queue_s is not None
    fullest = max(facts.pods, key=lambda p: p.window.waiting)
    return (
        f"{facts.queue_now_s:.1f} s against {facts.objective.queue_s:g} s, {fullest.window.waiting} of "
        f"{facts.waiting} requests wait at {fullest.name}"
    )
