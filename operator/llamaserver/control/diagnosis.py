"""One cause at a time, by the ordered chain of `causes`.

Each rule looks at the facts and answers with a finding or with why it does not apply; the first finding is
the cause. A new cause has to be found on two of three ticks before it replaces the present one, so that a
single odd window does not make an event.
"""

from __future__ import annotations

from llamaserver.api.enums import TuningMode
from llamaserver.control.causes import CHAIN, Finding, healthy
from llamaserver.control.causes.uneven import told
from llamaserver.control.facts import Facts
from llamaserver.control.state import DemandState, DiagnosisState
from llamaserver.control.types import Cause, Diagnosis, Verdict
from llamaserver.control.wording import in_words


def diagnose(
    state: DiagnosisState, facts: Facts, demand: DemandState
) -> tuple[DiagnosisState, Diagnosis, tuple[Verdict, ...]]:
    """The cause that holds now, and the rules that were asked until it was found."""
    finding, trail = _find(facts, demand)
    recent = (*state.recent, finding.cause)[-3:]
    if not state.recent or finding.cause is state.cause or recent.count(finding.cause) >= 2:
        since = state.since if state.recent and finding.cause is state.cause else facts.now
        state = DiagnosisState(finding.cause, since, recent)
        return state, _told(finding, since, facts), trail
    state = DiagnosisState(state.cause, state.since, recent)
    message = f"{state.cause} so far; the newest figures say {finding.cause}: {finding.message}"
    evidence = {**finding.evidence, "next": finding.cause.value}
    return state, Diagnosis(state.cause, message, "", evidence, state.since), trail


def ailing(facts: Facts) -> dict[str, Cause]:
    """What ails single pods and not all of them. A slow one that is crowded is that because it is slow."""
    uneven = told(facts)
    found = {} if uneven is None else dict.fromkeys(uneven.since, Cause.ROUTING_IMBALANCE)
    slow = () if facts.straggler is None else facts.straggler.slow
    return found | dict.fromkeys(slow, Cause.STRAGGLER)


def _find(facts: Facts, demand: DemandState) -> tuple[Finding, tuple[Verdict, ...]]:
    trail: list[Verdict] = []
    for rule in CHAIN:
        found = rule(facts, demand)
        name = rule.__name__
        if isinstance(found, Finding):
            trail.append(Verdict(f"diagnosis/{name}", True, found.message, found.evidence))
            return found, tuple(trail)
        trail.append(Verdict(f"diagnosis/{name}", False, found, {}))
    return healthy(facts), tuple(trail)


def _told(finding: Finding, since: float, facts: Facts) -> Diagnosis:
    """The finding in final words, with what stands in the way of acting on it."""
    message = finding.message
    if facts.limits.suspended:
        message += " Suspended: nothing is decided."
    elif facts.pods and facts.limits.tuning is TuningMode.AUTO and not any(p.settable for p in facts.pods):
        sample = facts.pods[0].window.last
        live = next((e.live_cap for e in sample.engines if e.live_cap), "")
        message += f" The cap cannot be set live: {sample.reason or live or 'NotWritable'}."
    elif facts.limits.tuning is not TuningMode.AUTO:
        found = [p.recommended for p in facts.pods if p.recommended is not None]
        least = min(found, key=lambda s: s.max_num_active_seqs or 0, default=None)
        known = f"; the recommended {in_words(least)}" if least is not None else ""
        message += f" Tuning is {facts.limits.tuning}: no cap is set{known}."
    return Diagnosis(finding.cause, message, finding.advice, finding.evidence, since)
