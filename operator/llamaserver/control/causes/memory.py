"""The cause that is about memory: the KV cache bounds the batch."""

from __future__ import annotations

import math

from llamaserver.control import kv
from llamaserver.control.causes.finding import Evidence, Finding
from llamaserver.control.facts import FULL_SHARE, KV_TIGHT, Facts
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import DemandState
from llamaserver.control.types import Cause

PREEMPTED_LATELY_S = 30.0
KV_FULL = 0.92


def kv_pressure(facts: Facts, _: DemandState) -> Finding | str:
    for pod in facts.pods:
        reason = _kv_reason(pod, facts.now)
        if reason:
            return Finding(Cause.KV_PRESSURE, *_kv_words(pod, facts, reason))
    return "no preemptions, and the KV cache is not what holds requests back"


def _kv_reason(pod: PodFacts, now: float) -> str:
    w, seen = pod.window, pod.kv.preempted_at
    waiting = w.waiting_for_room
    if seen is not None and now - seen < PREEMPTED_LATELY_S and (w.kv_usage > KV_TIGHT or w.preemptions > 0):
        return f"preempts ({w.preemptions} in the last {w.dt:.0f} s)"
    if w.kv_usage > KV_FULL and waiting > 0:
        return "has a full KV cache while requests wait"
    if pod.cap is None or waiting <= 0:
        return ""
    if pod.running < FULL_SHARE * pod.cap and w.kv_usage > KV_TIGHT:
        return "admits no more for want of KV cache"
    if pod.kv_ceiling is None or pod.high is None or pod.kv_ceiling >= 0.96 * pod.high or not pod.limited:
        return ""
    at_ceiling = pod.cap >= 0.8 * pod.kv_ceiling
    return "runs as many sequences as its KV cache holds without preempting" if at_ceiling else ""


def _kv_words(pod: PodFacts, facts: Facts, reason: str) -> tuple[str, str, Evidence]:
    capacity, footprint = kv.capacity_tokens(pod.window.last), kv.expected_footprint(pod.kv, pod.window.last)
    evidence: dict[str, float | int | str] = {
        "pod": pod.name,
        "kv_usage": round(pod.window.kv_usage, 3),
        "preemptions": pod.window.preemptions,
        "running": pod.window.running,
        "waiting": pod.window.waiting,
    }
    message = (
        f"{pod.name} {reason}: memory, not latency, bounds its batch. More sequences would make it worse."
    )
    general = "Raise engine.gpuMemoryUtilization, lower engine.maxModelLen, or allow more replicas."
    if capacity is None or footprint is None:
        return message, general, evidence
    fits = kv.fitting(capacity, footprint)
    evidence |= {"capacity_tokens": capacity, "tokens_per_sequence": round(footprint), "fitting": int(fits)}
    message += f" {capacity} tokens of cache hold {int(fits)} sequences of about {footprint:.0f} tokens."
    ceiling = pod.high if pod.high is not None else facts.limits.ceiling
    if ceiling is None or ceiling <= fits:
        return message, general, evidence
    needed = kv.needed(ceiling, footprint)
    evidence["needed_tokens"] = math.ceil(needed)
    fewest = max(1, int(fits))
    advice = (
        f"For {ceiling} sequences the cache needs {needed:.0f} tokens, {needed / capacity:.1f} times "
        "today's: raise engine.gpuMemoryUtilization until the engine's log reports that many, halve a "
        "token's size with --kv-cache-dtype fp8, or allow more replicas. To stay as it is, set "
        f"engine.maxNumSeqs: {fewest}; with engine.maxModelLen: {capacity // fewest} even the longest "
        "requests never preempt each other."
    )
    return message, advice, evidence
