"""Causes that are about one replica beside the others: it is slower, or it gets more than its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from llamaserver.api.enums import TuningMode
from llamaserver.control.causes.finding import Finding
from llamaserver.control.facts import Facts, statistic
from llamaserver.control.imbalance import FEWEST, TOLD_S
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import DemandState
from llamaserver.control.types import Cause, Imbalance, Straggler
from llamaserver.control.wording import ms, others_have

NOTABLE = 0.05
"""A slow replica that costs the fleet less than this share is not why all of them are full."""


def straggler(facts: Facts, demand: DemandState) -> Finding | str:
    found = facts.straggler
    if found is None:
        return "no replica's steps take longer than the others' for the same work, or not for long"
    lost = found.lost / max(1, len(facts.pods) + len(facts.blind))
    if demand.full is not None and lost < NOTABLE:
        return f"{found.pod} is slow, which costs the fleet {100 * lost:.1f} %: that is not why requests wait"
    evidence: dict[str, float | int | str] = {
        "pod": found.pod,
        "step_ms": ms(found.step_s),
        "expected_ms": ms(found.expected_s),
        "ratio": round(found.ratio, 2),
        "for_s": round(facts.now - found.since),
        "slow": len(found.slow),
        "alike": found.fit,
        "lost": round(lost, 3),
    }
    message = (
        f"A step of {found.pod} takes {ms(found.step_s)} ms, {found.ratio:.2f} times the "
        f"{ms(found.expected_s)} ms that {_others(found)} for the same work.{_more(found)}"
    )
    for said, figures in (_own_cap(facts, found), _latency(facts, found)):
        message, evidence = message + said, evidence | figures
    cold = facts.fleet.cold_start_s
    return Finding(
        Cause.STRAGGLER,
        message,
        f"Look at the node of {found.pod}: a neighbour that takes processors or memory bandwidth, clocks "
        "lowered by heat or a power limit, a slower accelerator. If it stays so for 5 minutes, cordon the "
        f"node and delete the pod: as it is {100 * lost:.0f} % of what the fleet could make is lost; without "
        f"it {100 / max(1, facts.fleet.replicas):.0f} % of the replicas are missing"
        + (f" for the {cold:.0f} s that a start takes." if cold else " until another has started."),
        evidence,
    )


def _others(found: Straggler) -> str:
    return "the other replica takes" if found.fit == 1 else f"{found.fit} replicas that agree take"


def _more(found: Straggler) -> str:
    rest = found.slow[1:]
    return f" So it is with {' and '.join(rest)}." if rest else ""


def _own_cap(facts: Facts, found: Straggler) -> tuple[str, dict[str, float | int | str]]:
    """The cap that the slow one is held to, where caps are moved."""
    own = next((p.cap for p in facts.pods if p.name == found.pod), None)
    caps = [p.cap for p in facts.keeping_up if p.cap is not None]
    if own is None or not caps or facts.limits.tuning is not TuningMode.AUTO:
        return "", {}
    usual = round(median(caps))
    said = f" It has a cap of its own, {own} sequences where others have {usual}." if own < usual else ""
    return said, {"cap": own, "cap_of_others": usual}


def _latency(facts: Facts, found: Straggler) -> tuple[str, dict[str, float | int | str]]:
    """How the fleet stands to the objective: it is judged over the tokens, or the requests, of all replicas
    together.
    """
    target, seen = facts.objective.itl_s, facts.observed.itl_s
    if target is None or seen is None:
        return "", {}
    evidence: dict[str, float | int | str] = {"itl_ms": ms(seen), "target_ms": ms(target)}
    pod = next((p for p in facts.pods if p.name == found.pod), None)
    # the few requests that one replica finishes in a window tell no statistic, and tokens are another figure
    tokens = None if pod is None or facts.objective.of_requests else pod.window.itl
    own = statistic(tokens, facts.objective)
    if own is not None:
        evidence["pod_itl_ms"] = ms(own.value_s)
    state = "is missed" if facts.missed else "holds"
    what = "requests" if facts.objective.of_requests else "tokens"
    return (
        f" Over the {what} of all replicas the objective {state}: {facts.objective.itl_named} is "
        f"{ms(seen)} ms against {ms(target)} ms.",
        evidence,
    )


def told(facts: Facts) -> Imbalance | None:
    """The imbalance, of the replicas where it has lasted long enough to be told."""
    found = facts.imbalance
    since = {} if found is None else {p: at for p, at in found.since.items() if facts.now - at >= TOLD_S}
    return replace(found, since=since) if found is not None and since else None


def routing_imbalance(facts: Facts, _: DemandState) -> Finding | str:
    found = told(facts)
    if found is None:
        return "no queue at one replica that others have the room for, or not for long"
    queues = _queues(facts, found)
    if not queues:
        return f"{' and '.join(found.since)}: no queue there in this tick, or out of sight"
    pod, *others = queues
    return Finding(
        Cause.ROUTING_IMBALANCE,
        f"{pod.window.waiting_for_room} requests wait at {pod.name}, which is full with "
        f"{pod.window.running} running, while {others_have(found.roomy)} room for {found.room} more: the "
        f"fleet as a whole has places for all, and requests do not go where these are.{_crowd(others)} "
        "Another replica would not be where they go either.",
        "See how requests are routed: a router that knows each engine's load (docs/routing.md), a connection "
        "for each request instead of a few that last, or session affinity that gives way at a full replica. "
        f"Spread evenly each replica would have about {100 * found.filled:.0f} % of its places taken.",
        _figures(facts, found, pod),
    )


def _queues(facts: Facts, found: Imbalance) -> list[PodFacts]:
    """The crowded replicas that have a queue in this tick, as a spell outlasts a lapse; the first first."""
    seen = {p.name: p for p in facts.pods if p.window.waiting_for_room >= FEWEST}
    return [seen[name] for name in found.since if name in seen]


def _crowd(others: Sequence[PodFacts]) -> str:
    return f" So it is at {' and '.join(p.name for p in others)}." if others else ""


def _figures(facts: Facts, found: Imbalance, pod: PodFacts) -> dict[str, float | int | str]:
    evidence: dict[str, float | int | str] = {
        "pod": pod.name,
        "waiting": pod.window.waiting_for_room,
        "waiting_in_all": found.waiting,
        "running": pod.window.running,
        "crowded": len(found.since),
        "replicas": len(facts.pods),
        "roomy": found.roomy,
        "room": found.room,
        "filled": round(found.filled, 2),
        "share_of_arrivals": round(found.share, 2),
        "for_s": round(facts.now - found.since[pod.name]),
    }
    return evidence if pod.cap is None else {**evidence, "cap": pod.cap}
