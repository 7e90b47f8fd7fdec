"""Latency gives way to the queue, where the queue has precedence and no replica can help."""

from __future__ import annotations

from llamaserver.control.facts import Facts
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import DemandState

BAD_S = 10.0
"""How long the queue objective is missed before latency gives way."""
QUEUE_HEALTHY = 0.5
"""Share of the queue objective under which a replica may go, and the ITL target may return to its own."""
RELIEF_UP_PER_S, RELIEF_DOWN_PER_S = 0.015, 0.0025
RELIEF_MAX = 8.0


def relief(before: float, state: DemandState, facts: Facts, dt: float) -> float:
    """How far the ITL target is stretched: where the queue has precedence and no replica can help."""
    wanted = facts.objective.queue_s
    if not facts.queue_first or wanted is None or facts.objective.itl_s is None:
        return 1.0
    if not facts.pods:
        return before
    bad = state.queue_bad is not None and facts.now - state.queue_bad.since >= BAD_S
    room = any(p.best is not None and p.high is not None and p.best < _memory_bound(p) for p in facts.pods)
    if bad and room and not facts.can_grow and facts.fleet.pending == 0:
        return min(RELIEF_MAX, before * (1.0 + RELIEF_UP_PER_S * dt))
    healthy = facts.queue_now_s is None or facts.queue_now_s < QUEUE_HEALTHY * wanted
    if healthy or facts.can_grow:
        return max(1.0, before * (1.0 - RELIEF_DOWN_PER_S * dt))
    return before


def _memory_bound(pod: PodFacts) -> float:
    assert pod.high is not None
    return min(float(pod.high), pod.kv_ceiling if pod.kv_ceiling is not None else float(pod.high))
