"""The last few decisions, each in one line that a person can act on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from llamaserver.api.conditions import timestamp
from llamaserver.api.status import DecisionStatus
from llamaserver.control import Decision
from llamaserver.controller.retune import InForce

NUM_SEQS = "NumSeqs"
NUM_BATCHED_TOKENS = "NumBatchedTokens"
REPLICAS = "Replicas"
REPLACEMENT = "Replacement"
RESTART = "Restart"

NO_FIGURES = "diagnosis/stale"
RECOMMEND = "Recommend"
"""The control law's rule that names a setpoint without asking for it."""


@dataclass(frozen=True, slots=True)
class Move:
    """A pod whose engine runs with something else than before."""

    pod: str
    before: InForce
    after: InForce


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


def recommended(decision: Decision) -> dict[str, InForce]:
    """By pod: what would be set, where it is something else than what is in force. None leaves a knob."""
    found: dict[str, InForce] = {}
    for verdict in decision.trail:
        pod, cap = verdict.evidence.get("pod"), verdict.evidence.get("recommended")
        budget = verdict.evidence.get("recommended_budget")
        if verdict.rule == RECOMMEND and verdict.fired and isinstance(pod, str) and isinstance(cap, int):
            found[pod] = InForce(cap, budget if isinstance(budget, int) else None)
    return found


def retunes(
    moves: Sequence[Move], reason: str, now: datetime, recommended: bool = False
) -> list[DecisionStatus]:
    """One entry a knob and a pair of values: pods that moved alike share one, so that a fleet does not fill
    the list.
    """
    entries: list[DecisionStatus] = []
    for action, read in ((NUM_SEQS, _seqs), (NUM_BATCHED_TOKENS, _tokens)):
        alike: dict[tuple[int | None, int | None], list[str]] = {}
        for move in moves:
            pair = read(move.before), read(move.after)
            if pair[0] != pair[1]:
                alike.setdefault(pair, []).append(move.pod)
        for (before, after), pods in alike.items():
            text = reason if len(pods) == 1 else f"{len(pods)} pods: {reason}"
            entries.append(
                DecisionStatus(
                    time=timestamp(now),
                    pod=pods[0] if len(pods) == 1 else None,
                    action=action,
                    from_=None if before is None else str(before),
                    to=None if after is None else str(after),
                    reason=f"recommended: {text}" if recommended else text,
                )
            )
    return entries


def scaled(
    before: int | None, after: int, reason: str, now: datetime, recommended: bool = False
) -> DecisionStatus:
    """The entry for a change of the number of replicas."""
    return DecisionStatus(
        time=timestamp(now),
        action=REPLICAS,
        from_=None if before is None else str(before),
        to=str(after),
        reason=f"recommended: {reason}" if recommended else reason,
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
