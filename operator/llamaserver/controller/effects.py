"""What came of the last decisions: whether they hold, and what the latency did once they did. Pure.

A decision is written when it is taken. What came of it is added once, when the figures are all of the time
after it, so that it costs one more write at most; a load that needs no decision costs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llamaserver.api.status import DecisionStatus
from llamaserver.control import Observed
from llamaserver.controller.journal import APPLIED, ASKED, NUM_BATCHED_TOKENS, NUM_SEQS, REPLICAS
from llamaserver.controller.runtime import Followed
from llamaserver.controller.status import observed

SETTLED_S = 15.0
"""So long after a decision holds, figures are told of it: they are those of the last ten seconds."""
GIVEN_UP_S = 600.0
"""Nothing is told of the latency when none was measured for so long."""
GIVEN_UP_SCALING_S = 3600.0
"""Replicas that are not there by then are no longer waited for; conditions say why they do not come."""

_LATENCIES = ("interTokenLatency", "queueTime")
_MET = {True: "; objectives met", False: "; objectives missed", None: ""}


@dataclass(frozen=True, slots=True)
class Seen:
    """What one tick knows of it."""

    observed: Observed
    ready: int
    """Replicas that serve."""
    draining: bool
    """Some engine still runs more sequences than its cap allows."""
    now: float


def follow(
    followed: Iterable[Followed], decisions: Sequence[DecisionStatus], seen: Seen
) -> tuple[list[Followed], list[DecisionStatus]]:
    """Those that are followed on, and the decisions (newest first) with what is known by now."""
    told, left = list(decisions), []
    for one in followed:
        if one.entry not in told:
            continue
        at = told.index(one.entry)
        if one.holds_since is None and _holds(one.entry, seen):
            one = replace(one, holds_since=seen.now)
        outcome = _outcome(one, told[:at], seen)
        if outcome is None:
            left.append(one)
        else:
            told[at] = one.entry.model_copy(update={"outcome": outcome})
    return left, told


def figures(seen: Observed) -> dict[str, object]:
    """The figures that are known, as status names and writes them."""
    found = observed(seen)
    return found.to_dict() if found is not None else {}


def _outcome(one: Followed, newer: Sequence[DecisionStatus], seen: Seen) -> str | None:
    """What came of it; None while that is not known."""
    passed = seen.now - one.at
    if any(_replaces(entry, one.entry) for entry in newer):
        return f"{one.entry.outcome}; another followed after {passed:.0f} s"
    if one.holds_since is None:
        if passed < (GIVEN_UP_SCALING_S if one.entry.action == REPLICAS else GIVEN_UP_S):
            return None
        return f"{one.entry.outcome}; not done after {passed / 60:.0f} minutes"
    if seen.now - one.holds_since < SETTLED_S:
        return None
    done = APPLIED
    if one.entry.action == REPLICAS:
        done = f"{APPLIED} after {one.holds_since - one.at:.0f} s"
    effect = _effect(one.before, seen.observed)
    if effect:
        return f"{done}: {effect}{_MET[seen.observed.slo_met]}"
    if seen.now - one.holds_since < GIVEN_UP_S:
        return None
    return f"{done}; no latency was measured in the {GIVEN_UP_S / 60:.0f} minutes after"


def _effect(before: Observed, after: Observed) -> str:
    """The latencies before and after; empty where none is known now."""
    old, new = figures(before), figures(after)
    if "interTokenLatency" not in new:
        return ""
    return ", ".join(f"{name} {old.get(name, '?')} -> {new[name]}" for name in _LATENCIES if name in new)


def _holds(entry: DecisionStatus, seen: Seen) -> bool:
    if entry.action in (NUM_SEQS, NUM_BATCHED_TOKENS):
        return not seen.draining
    wanted = int(entry.to or 0)
    if entry.from_ is None or wanted == int(entry.from_):
        return seen.ready == wanted
    return seen.ready >= wanted if wanted > int(entry.from_) else seen.ready <= wanted


def _replaces(newer: DecisionStatus, older: DecisionStatus) -> bool:
    """Whether a newer decision is about the same thing, so that figures are no longer of the older one."""
    if newer.action != older.action or not (newer.outcome or "").startswith((APPLIED, ASKED)):
        return False
    return newer.pod is None or older.pod is None or newer.pod == older.pod
