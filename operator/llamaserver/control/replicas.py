"""The slow loop: how many replicas the demand needs at the objective.

Demand is counted in sequences: running plus waiting. Capacity is what a replica holds at the objective and in
its memory: the cap where the fast loop rests. Inter-token latency never drives replicas by itself: it drives
the cap, and replicas answer to requests that wait although every replica is full at its settled cap.

One step at a time, none up while a replica is pending, none at all while one is out of sight. Down only when
the rest would be at most DOWN_SHARE full with the highest demand of the last LOOK_BACK_S; up needs
FULL_SHARE, so on a steady load neither answers the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llamaserver.api.enums import ScalingMode
from llamaserver.control.facts import Facts, capacity
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import DemandState, Spell
from llamaserver.control.types import Verdict

EVERY_S = 15.0
SUSTAINED_S = 30.0
LAPSE_S = 8.0
LOOK_BACK_S = 180.0
DOWN_SHARE = 0.75
KV_AFTER_REMOVAL = 0.8
QUEUE_HEALTHY = 0.5
"""Share of the queue objective under which a replica may go, and the ITL target may return to its own."""
RELIEF_UP_PER_S, RELIEF_DOWN_PER_S = 0.015, 0.0025
RELIEF_MAX = 8.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the slow loop says this tick: `wanted` is to be applied, `recommended` is to be told."""

    state: DemandState
    wanted: int | None
    recommended: int | None
    reason: str
    verdict: Verdict


def decide_replicas(state: DemandState, facts: Facts) -> Answer:
    """Replicas wanted, or None to hold, with the reason in words."""
    state = _remember(state, facts)
    limits, n = facts.limits, facts.fleet.replicas
    if limits.suspended:
        return _answer(state, None, "suspended: no opinion", facts)
    if limits.scaling in (ScalingMode.FIXED, ScalingMode.EXTERNAL):
        answer = _answer(state, None, f"scaling mode {limits.scaling}: the number is somebody else's", facts)
        return replace(answer, recommended=None)
    inside = min(max(n, limits.replicas_min), max(limits.replicas_min, limits.replicas_max))
    if inside != n:
        which = "below minReplicas" if n < inside else "above maxReplicas"
        return _answer(replace(state, wanted=None), inside, f"{n} replicas are {which}", facts)
    if state.wanted is not None and state.wanted != n and limits.scaling is ScalingMode.AUTO:
        if limits.replicas_min <= state.wanted <= limits.replicas_max:
            return _answer(state, state.wanted, state.reason, facts)
        state = replace(state, wanted=None)
    if facts.now - state.evaluated_at < EVERY_S:
        return _answer(
            state, state.wanted if limits.scaling is ScalingMode.RECOMMEND else None, state.reason, facts
        )
    state = replace(state, wanted=None)
    return _evaluate(replace(state, evaluated_at=facts.now), facts)


def _evaluate(state: DemandState, facts: Facts) -> Answer:
    n = facts.fleet.replicas
    held = _held(facts)
    if held:
        return _answer(replace(state, reason=held), None, held, facts)
    step, reason = _up(state, facts)
    if step == 1 and facts.fleet.pending > 0:
        step, reason = 0, f"hold: {facts.fleet.pending} of {n} replicas are not ready yet"
    if not reason:
        step, reason = _down(state, facts)
    if step == 0:
        return _answer(replace(state, reason=reason), None, reason, facts)
    state = replace(state, wanted=n + step, reason=reason, changed_at=facts.now, full=None)
    return _answer(state, n + step, reason, facts)


def _answer(state: DemandState, wanted: int | None, reason: str, facts: Facts) -> Answer:
    evidence = {
        "replicas": facts.fleet.replicas,
        "ready": facts.fleet.ready,
        "pending": facts.fleet.pending,
        "running": facts.running,
        "waiting": facts.waiting,
    }
    verdict = Verdict("Replicas", wanted is not None, reason, evidence)
    recommended = facts.fleet.replicas if wanted is None else wanted
    if wanted is not None and facts.limits.scaling is ScalingMode.RECOMMEND:
        return Answer(state, None, recommended, f"recommended: {reason}", replace(verdict, fired=False))
    return Answer(state, wanted, recommended, reason, verdict)


def _remember(state: DemandState, facts: Facts) -> DemandState:
    """Notes the demand, and since when the fleet is full or the queue objective missed.

    A lapse shorter than LAPSE_S, between one request that ends and the next that is admitted, does not count.
    """
    if not facts.pods:
        return replace(state, full=None, queue_bad=None)
    seen = (*state.seen, (facts.now, float(facts.running + facts.waiting)))
    while len(seen) > 2 and seen[1][0] <= facts.now - LOOK_BACK_S:
        seen = seen[1:]
    full = _spell(state.full, facts.full and facts.settled, facts.now)
    return replace(
        state, seen=seen, full=full, queue_bad=_spell(state.queue_bad, facts.queue_missed, facts.now)
    )


def _spell(spell: Spell | None, holds: bool, now: float) -> Spell | None:
    if holds:
        return Spell(now, now) if spell is None else Spell(spell.since, now)
    return None if spell is None or now - spell.seen > LAPSE_S else spell


def _held(facts: Facts) -> str:
    """Why nothing may be decided now; empty when it may."""
    if not facts.pods:
        return "hold: no replica gives usable figures"
    if facts.blind:
        total = len(facts.blind) + len(facts.pods)
        return f"hold: {len(facts.blind)} of {total} replicas give no usable figures"
    return ""


def _up(state: DemandState, facts: Facts) -> tuple[int, str]:
    """(1, why one more is needed), or (0, why not although requests wait), or (0, "") when nothing asks for
    it.
    """
    if state.full is None:
        return 0, ""
    if _hopeless(facts):
        return 0, "hold: no number of replicas reaches this latency objective"
    if facts.now - state.full.since < SUSTAINED_S:
        return 0, f"hold: full for {facts.now - state.full.since:.0f} s, {SUSTAINED_S:.0f} s are needed"
    if facts.objective.queue_s is not None and not facts.queue_missed:
        return 0, "hold: requests wait, but within the queue objective"
    if facts.fleet.replicas >= facts.limits.replicas_max:
        return 0, f"hold: full at maxReplicas, {facts.limits.replicas_max}"
    return 1, (
        f"{facts.running + facts.waiting} sequences are wanted and {facts.fleet.replicas} replicas hold "
        f"{_total(facts):.0f} at the objective"
    )


def _hopeless(facts: Facts) -> bool:
    """Whether even the smallest cap misses the objective, so that spreading the load cannot help."""
    predictors = [(p.low, p.predictor) for p in facts.pods if p.predictor is not None]
    return bool(predictors) and all(p.figure(low).ratio > 1.0 for low, p in predictors)


def _total(facts: Facts) -> float:
    return sum(p.engines * (capacity(p, facts.limits) or 0.0) for p in facts.pods)


def _down(state: DemandState, facts: Facts) -> tuple[int, str]:
    """(-1, why one less is enough), or (0, why not)."""
    n, cold = facts.fleet.replicas, facts.fleet.cold_start_s or 0.0
    if n <= facts.limits.replicas_min:
        return 0, "hold: at minReplicas"
    if any(capacity(p, facts.limits) is None for p in facts.pods):
        return 0, "hold: what a replica can hold is not known"
    if facts.now - max(state.changed_at, state.seen[0][0]) < max(LOOK_BACK_S, cold):
        return 0, "hold: the last change, or the first look, is too recent"
    if facts.waiting > 0 or facts.missed:
        return 0, "hold: requests wait, or the latency objective is missed"
    wanted = facts.objective.queue_s
    if wanted is not None and facts.queue_now_s is not None and facts.queue_now_s > QUEUE_HEALTHY * wanted:
        return 0, "hold: the queue objective is met, but not by much"
    demand = max(d for _, d in state.seen)
    # A replica that is not ready carries nothing, and it is the first to go.
    serving = len(facts.pods)
    rest = serving if facts.fleet.pending > 0 else serving - 1
    if rest < 1:
        return 0, "hold: the only replica that serves"
    left = _total(facts) * rest / serving
    usage = max(p.window.kv_usage for p in facts.pods) * serving / rest
    if demand > DOWN_SHARE * left or usage > KV_AFTER_REMOVAL:
        return 0, "hold: the others could not take over with room to spare"
    return -1, f"at most {demand:.0f} sequences in {LOOK_BACK_S:.0f} s, and {rest} replicas hold {left:.0f}"


def relief(before: float, state: DemandState, facts: Facts, dt: float) -> float:
    """How far the ITL target is stretched: where the queue has precedence and no replica can help."""
    wanted = facts.objective.queue_s
    if not facts.queue_first or wanted is None or facts.objective.itl_s is None:
        return 1.0
    if not facts.pods:
        return before
    bad = state.queue_bad is not None and facts.now - state.queue_bad.since >= SUSTAINED_S / 3.0
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
