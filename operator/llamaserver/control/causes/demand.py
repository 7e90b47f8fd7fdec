"""Causes that are about demand: requests wait for room, for something else, or there are none."""

from __future__ import annotations

from llamaserver.api.enums import ScalingMode
from llamaserver.control.causes.finding import Evidence, Finding
from llamaserver.control.causes.prefill import more_room
from llamaserver.control.context import in_force
from llamaserver.control.facts import FULL_SHARE, KV_TIGHT, Facts
from llamaserver.control.state import DemandState
from llamaserver.control.types import Cause

FILLS_S = 6.0
"""A batch takes some steps to fill after a raise: prefill of who is admitted goes through a small budget."""
EXHAUSTED_S = 30.0
ELSEWHERE_ROOM = "requests wait at full replicas, and others have room for them"


def cap_limited(facts: Facts, _: DemandState) -> Finding | str:
    for pod in facts.pods:
        if pod.limited and pod.cap is not None and pod.best is not None and pod.best > pod.cap:
            return Finding(
                Cause.CAP_LIMITED,
                f"{pod.name} is full at {pod.cap} sequences while {pod.window.waiting} wait, and about "
                f"{pod.best} would hold the objective: the cap rises step by step.",
                "",
                {"pod": pod.name, "cap": pod.cap, "fitting": pod.best, "waiting": pod.window.waiting},
            )
    return "no cap holds requests back below what the objective allows"


def capacity_exhausted(facts: Facts, demand: DemandState) -> Finding | str:
    """Full at the most replicas there may be, and the queue is longer than anyone wanted."""
    if demand.full is None or facts.now - demand.full.since < EXHAUSTED_S:
        return "not full, or not for long"
    if facts.imbalance is not None:
        return ELSEWHERE_ROOM
    if facts.limits.scaling is ScalingMode.AUTO and facts.fleet.replicas < facts.limits.replicas_max:
        return "more replicas are allowed"
    if facts.limits.scaling is not ScalingMode.AUTO or (
        facts.objective.queue_s is not None and not facts.queue_missed
    ):
        return "somebody else sets the replicas, or the queue objective holds"
    wait = facts.queue_now_s
    gives = "latency gives way to the queue" if facts.queue_first else "the queue gives way to latency"
    return Finding(
        Cause.CAPACITY_EXHAUSTED,
        f"All {facts.fleet.replicas} replicas are full at the objective, {facts.waiting} requests wait"
        + (f", for about {wait:.1f} s" if wait is not None else "")
        + f", and maxReplicas is reached; {gives}.",
        more_room(
            facts,
            f"Raise scaling.maxReplicas above {facts.limits.replicas_max}, shed load, or relax the target.",
        ),
        _fullness(facts),
    )


def at_capacity(facts: Facts, demand: DemandState) -> Finding | str:
    if not facts.full and (demand.full is None or facts.waiting == 0):
        return "requests do not wait for a full fleet"
    if facts.imbalance is not None:
        return ELSEWHERE_ROOM
    last = {
        ScalingMode.AUTO: "replicas follow where the demand needs them (status.scaling.reason)",
        ScalingMode.RECOMMEND: "replicas are recommended where the demand needs them (status.scaling.reason)",
        ScalingMode.FIXED: "the number of replicas is fixed",
        ScalingMode.EXTERNAL: "another scaler owns the number of replicas",
    }[facts.limits.scaling]
    if facts.limits.scaling is ScalingMode.AUTO and facts.fleet.replicas >= facts.limits.replicas_max:
        last = "maxReplicas is reached"
    return Finding(
        Cause.AT_CAPACITY,
        f"Every replica runs as many sequences as the objective allows and {facts.waiting} requests wait; "
        f"{last}.",
        more_room(facts, ""),
        _fullness(facts),
    )


def _fullness(facts: Facts) -> Evidence:
    caps = [p.cap for p in facts.pods if p.cap is not None]
    evidence: dict[str, float | int | str] = {
        "replicas": facts.fleet.replicas,
        "running": facts.running,
        "waiting": facts.waiting,
    }
    if caps:
        evidence |= {"cap_min": min(caps), "cap_max": max(caps)}
    if budgets := [p.budget for p in facts.pods if p.budget is not None]:
        evidence |= {"budget_min": min(budgets)}
    if facts.queue_now_s is not None:
        evidence["queue_s"] = round(facts.queue_now_s, 2)
    return evidence


def admission_elsewhere(facts: Facts, _: DemandState) -> Finding | str:
    for pod in facts.pods:
        w = pod.window
        # A cap that is only now being raised has admitted nobody yet, and a moment's count may meet a batch
        # in which somebody has just ended.
        cap = min((c for c in (pod.cap, in_force(w.last)) if c is not None), default=None)
        ran = max(pod.running, pod.record.batch if pod.record is not None else 0.0)
        if w.waiting <= 0 or cap is None or ran >= FULL_SHARE * cap or w.kv_usage > KV_TIGHT:
            continue
        if (w.waiting <= 1 or facts.now - pod.raised_at < FILLS_S) and not w.waiting_deferred:
            continue  # one request on its way in, or a batch that fills
        advice = (
            f"{w.waiting_deferred} are deferred: see whether --max-loras slots, KV transfer or grammar "
            "compilation hold them. If running stays below the cap with nothing admitted, restart the pod."
            if w.waiting_deferred
            else "See whether the token budget (engine.maxNumBatchedTokens) or a paused engine holds them."
        )
        return Finding(
            Cause.ADMISSION_ELSEWHERE,
            f"{w.waiting} requests wait at {pod.name} although it runs {pod.running} of {cap} and "
            f"{100 * w.kv_usage:.0f} % of its KV cache is in use: neither cap nor memory holds them, so "
            "raising the cap does not help.",
            advice,
            {
                "pod": pod.name,
                "waiting": w.waiting,
                "deferred": w.waiting_deferred,
                "running": pod.running,
                "cap": cap,
                "kv_usage": round(w.kv_usage, 3),
            },
        )
    return "nothing waits although there is room"


def idle(facts: Facts, _: DemandState) -> Finding | str:
    if facts.blind or not facts.pods:
        return "not every replica gives usable figures"
    if facts.running or facts.waiting or (facts.observed.tokens_per_s or 0.0) > 0.0:
        return "there is work"
    return Finding(Cause.IDLE, "No request is running or waiting.", "", {"replicas": facts.fleet.replicas})
