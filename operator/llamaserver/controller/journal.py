"""The last few decisions, each in one line that a person can act on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from llamaserver.api.conditions import timestamp
from llamaserver.api.status import MAX_INPUTS, DecisionStatus
from llamaserver.control import Decision
from llamaserver.controller.retune import InForce

NUM_SEQS = "NumSeqs"
NUM_BATCHED_TOKENS = "NumBatchedTokens"
REPLICAS = "Replicas"
REPLACEMENT = "Replacement"
RESTART = "Restart"

APPLIED = "Applied"
ASKED = "Asked"
REFUSED = "Refused"
RECOMMENDED = "Recommended"

NO_FIGURES = "diagnosis/stale"
REPLICAS_RULE = "Replicas"
"""The control law's rule that gives the number of replicas."""
RECOMMEND_RULE = "Recommend"
"""The control law's rule that names a setpoint without asking for it."""


@dataclass(frozen=True, slots=True)
class Move:
    """A pod whose engine runs with something else than before, or was asked to."""

    pod: str
    before: InForce
    after: InForce
    refused: str = ""
    """Why its engine does not; empty where it does."""


def why(decision: Decision, pods: Collection[str]) -> str:
    """The rules that fired for these pods, with the figures they fired on.

    A value that no rule moved was held: given to a pod just seen, or again to one that had lost it. That a
    pod was seen for the first time is no reason for its first value.
    """
    fired: dict[str, None] = {}
    for verdict in decision.trail:
        if verdict.rule == NO_FIGURES:
            continue
        if verdict.fired and verdict.reason and verdict.evidence.get("pod") in pods:
            fired[verdict.reason + _evidence(verdict.evidence)] = None
    return (
        "; ".join(fired)[:1000]
        or f"the value held for a pod that did not run with it ({decision.diagnosis.cause})"
    )


def inputs(
    decision: Decision, figures: Mapping[str, object], pods: Collection[str] = (), rule: str = ""
) -> dict[str, str]:
    """What was known when it was decided: the fleet's figures, then those of the rules that fired for these
    pods, or of one rule that is about none. Of pods that moved alike the first one's are told.
    """
    told = {name: str(value) for name, value in figures.items()}
    for verdict in decision.trail:
        about = verdict.evidence.get("pod")
        if verdict.fired and verdict.rule != NO_FIGURES and (about in pods or verdict.rule == rule):
            for name, value in verdict.evidence.items():
                if name != "pod":
                    told.setdefault(name, _short(value))
    return dict(list(told.items())[:MAX_INPUTS])


def recommended(decision: Decision) -> dict[str, InForce]:
    """By pod: what would be set, where it is something else than what is in force. None leaves a knob."""
    found: dict[str, InForce] = {}
    for verdict in decision.trail:
        pod, cap = verdict.evidence.get("pod"), verdict.evidence.get("recommended")
        budget = verdict.evidence.get("recommended_budget")
        if verdict.rule == RECOMMEND_RULE and verdict.fired and isinstance(pod, str) and isinstance(cap, int):
            found[pod] = InForce(cap, budget if isinstance(budget, int) else None)
    return found


def retunes(
    moves: Sequence[Move],
    reason: str,
    now: datetime,
    recommended: bool = False,
    evidence: Mapping[str, str] | None = None,
) -> list[DecisionStatus]:
    """One entry a knob and a pair of values: pods that moved alike share one, so that a fleet does not fill
    the list.
    """
    entries: list[DecisionStatus] = []
    for action, read in ((NUM_SEQS, _seqs), (NUM_BATCHED_TOKENS, _tokens)):
        alike: dict[tuple[int | None, int | None, str], list[str]] = {}
        for move in moves:
            before, after = read(move.before), read(move.after)
            if before != after:
                alike.setdefault((before, after, move.refused), []).append(move.pod)
        for (before, after, refused), pods in alike.items():
            done = f"{REFUSED}: {refused}" if refused else APPLIED
            text = reason if len(pods) == 1 else f"{len(pods)} pods: {reason}"
            entries.append(
                DecisionStatus(
                    time=timestamp(now),
                    pod=pods[0] if len(pods) == 1 else None,
                    action=action,
                    from_=None if before is None else str(before),
                    to=None if after is None else str(after),
                    reason=f"recommended: {text}" if recommended else text,
                    evidence=dict(evidence) if evidence else None,
                    outcome=RECOMMENDED if recommended else done,
                )
            )
    return entries


def scaled(
    before: int | None,
    after: int,
    reason: str,
    now: datetime,
    recommended: bool = False,
    evidence: Mapping[str, str] | None = None,
) -> DecisionStatus:
    """The entry for a change of the number of replicas."""
    return DecisionStatus(
        time=timestamp(now),
        action=REPLICAS,
        from_=None if before is None else str(before),
        to=str(after),
        reason=f"recommended: {reason}" if recommended else reason,
        evidence=dict(evidence) if evidence else None,
        outcome=RECOMMENDED if recommended else ASKED,
    )


def replaced(pod: str, reason: str, now: datetime) -> DecisionStatus:
    """The entry for a pod that is replaced because its engine hangs."""
    return DecisionStatus(time=timestamp(now), pod=pod, action=REPLACEMENT, reason=reason)


def restarted(before: int, after: int, reason: str, now: datetime) -> DecisionStatus:
    """The entry for all pods that are started anew with another --max-num-seqs."""
    return DecisionStatus(
        time=timestamp(now), action=RESTART, from_=str(before), to=str(after), reason=reason
    )


def _seqs(state: InForce) -> int | None:
    return state.num_seqs


def _tokens(state: InForce) -> int | None:
    return state.num_scheduled_tokens


def _evidence(evidence: Mapping[str, object]) -> str:
    told = [f"{name} {_short(value)}" for name, value in evidence.items() if name != "pod"]
    return f" ({', '.join(told)})" if told else ""


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
