"""The slow loop: how many replicas the demand needs at the objective.

Inter-token latency never drives replicas by itself: it drives the cap, and replicas answer to requests that
wait although every replica is full at its settled cap, and to arrivals that rise beyond what the replicas
serve. Up goes at once to the number that the demand needs (control/need.py), at most to twice as many or four
more, and again after RISE_EVERY_S. Replicas that start count as there, so only a demand that has grown asks
for more meanwhile, and nothing does when they are overdue. Nothing at all while a replica is out of sight.

Down goes one at a time, only when the rest would serve at most DOWN_SHARE of the busiest minute, and be at
most DOWN_SHARE full with the highest demand, of the last LOOK_BACK_S. Up fills UP_SHARE, so on a steady load
neither answers the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from llamaserver.api.enums import ScalingMode, TuningMode
from llamaserver.control.arrivals import busiest, trend
from llamaserver.control.facts import FULL_SHARE, Facts, admits, capacity
from llamaserver.control.need import LOOK_BACK_S, Need, clients_wait, cold_start_s, length, look, need
from llamaserver.control.relief import QUEUE_HEALTHY
from llamaserver.control.state import DemandState, spell
from llamaserver.control.types import Imbalance, Verdict
from llamaserver.control.wording import others_have

EVERY_S = 15.0
SUSTAINED_S = 30.0
"""How long a fleet is full before a replica is added for clients that wait, or for want of a rate."""
SHORT_S = 10.0
"""How long a rate needs more replicas before they are added."""
RISE_EVERY_S, RISE_FACTOR, RISE_STEP = 30.0, 2, 4
DOWN_SHARE = 0.75
BUSIEST_S = 60.0
KV_AFTER_REMOVAL = 0.8


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
    wants = None
    if facts.pods:
        state = look(state, facts)
        wants = need(state, facts)
    state = _remember(state, facts, wants)
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
    recommended = state.wanted if limits.scaling is ScalingMode.RECOMMEND else None
    if facts.now - state.evaluated_at < EVERY_S and (recommended or not _hurries(state, facts, wants)):
        return _answer(state, recommended, state.reason, facts)
    state = replace(state, wanted=None)
    return _evaluate(replace(state, evaluated_at=facts.now), facts, wants)


def _hurries(state: DemandState, facts: Facts, wants: Need | None) -> bool:
    """Whether the demand cannot wait for the next look."""
    return (
        not facts.blind
        and wants is not None
        and state.short is not None
        and _lasting(wants, state, facts.now) >= _sustained(wants)
        and facts.now - state.changed_at >= RISE_EVERY_S
        and not _overdue(state, facts)
        and facts.fleet.replicas < facts.limits.replicas_max
    )


def _lasting(wants: Need, state: DemandState, now: float) -> float:
    """For how long more replicas have been needed: by clients that wait, since when the fleet is full."""
    lasts = state.full if wants.sequences is not None else state.short
    return 0.0 if lasts is None else now - lasts.since


def _sustained(wants: Need) -> float:
    return SHORT_S if wants.sequences is None else SUSTAINED_S


def _overdue(state: DemandState, facts: Facts) -> bool:
    """Whether replicas that start have not become ready in the time they usually take."""
    return facts.fleet.pending > 0 and facts.now - state.risen_at > cold_start_s(facts)


def _evaluate(state: DemandState, facts: Facts, wants: Need | None) -> Answer:
    n = facts.fleet.replicas
    held = _held(facts)
    if held:
        return _answer(replace(state, reason=held), None, held, facts, wants)
    step, reason = _up(state, facts, wants)
    if not reason:
        step, reason = _down(state, facts)
    if step == 0:
        return _answer(replace(state, reason=reason), None, reason, facts, wants)
    if step > 0 and facts.fleet.pending == 0 and facts.limits.scaling is ScalingMode.AUTO:
        state = replace(state, risen_at=facts.now)
    state = replace(state, wanted=n + step, reason=reason)
    if facts.limits.scaling is ScalingMode.AUTO:
        state = replace(state, changed_at=facts.now, full=None, short=None)
    return _answer(state, n + step, reason, facts, wants)


def _answer(
    state: DemandState, wanted: int | None, reason: str, facts: Facts, wants: Need | None = None
) -> Answer:
    evidence: dict[str, float | int | str] = {
        "replicas": facts.fleet.replicas,
        "ready": facts.fleet.ready,
        "pending": facts.fleet.pending,
        "running": facts.running,
        "waiting": facts.waiting,
        **(wants.evidence() if wants is not None else {}),
    }
    verdict = Verdict("Replicas", wanted is not None, reason, evidence)
    recommended = facts.fleet.replicas if wanted is None else wanted
    if wanted is not None and facts.limits.scaling is ScalingMode.RECOMMEND:
        return Answer(state, None, recommended, f"recommended: {reason}", replace(verdict, fired=False))
    return Answer(state, wanted, recommended, reason, verdict)


def _remember(state: DemandState, facts: Facts, wants: Need | None) -> DemandState:
    """Notes since when the fleet is full, too small, or the queue objective missed.

    A lapse shorter than state.LAPSE_S, between one request that ends and the next that is admitted, does not
    count.
    """
    # Replicas that somebody else has asked for, or that come back, start when they are first seen to.
    known = state.risen_at if state.risen_at > -math.inf else facts.now
    state = replace(state, risen_at=known if facts.fleet.pending > 0 else -math.inf)
    if not facts.pods:
        return replace(state, full=None, queue_bad=None, short=None)
    state = replace(
        state,
        full=spell(state.full, facts.full and facts.settled, facts.now),
        queue_bad=spell(state.queue_bad, facts.queue_missed, facts.now),
    )
    short = wants is not None and wants.replicas > facts.fleet.replicas and _asked(wants, state, facts)
    return replace(state, short=spell(state.short, short, facts.now))


def _asked(wants: Need, state: DemandState, facts: Facts) -> bool:
    """Whether the demand may be answered with replicas: requests wait, or will, for longer than is wanted."""
    queue_s = facts.objective.queue_s
    if wants.sequences is not None:
        return state.full is not None and (queue_s is None or facts.queue_missed)
    if queue_s is not None:
        return facts.queue_missed or wants.backlog > queue_s * wants.serves * facts.fleet.replicas
    # Where caps are not moved nothing keeps an engine at what it serves at the objective: it takes more.
    return state.full is not None or (wants.rising and facts.limits.tuning is TuningMode.AUTO)


def _held(facts: Facts) -> str:
    """Why nothing may be decided now; empty when it may."""
    if not facts.pods:
        return "hold: no replica gives usable figures"
    if facts.blind:
        total = len(facts.blind) + len(facts.pods)
        return f"hold: {len(facts.blind)} of {total} replicas give no usable figures"
    return ""


def _up(state: DemandState, facts: Facts, wants: Need | None) -> tuple[int, str]:
    """(how many more, why), or (0, why not although requests wait or will), or (0, "") when nothing asks for
    it.
    """
    if state.full is None and state.short is None:
        return 0, ""
    if _hopeless(facts):
        return 0, "hold: no number of replicas reaches this latency objective"
    if facts.imbalance is not None and (wants is None or wants.replicas <= facts.fleet.replicas):
        # Another replica would not be where the requests go.
        return 0, f"hold: {_routed(facts.imbalance)}"
    if wants is None or _uneven(facts):
        step, reason = _one_up(state, facts)
    else:
        step, reason = _as_needed(state, facts, wants)
    n, most = facts.fleet.replicas, facts.limits.replicas_max
    if n + step > most:
        reason = f"{reason}, and maxReplicas is {most}"
    if step > 0 and n >= most:
        return 0, f"hold: {reason}"
    if step > 0 and _overdue(state, facts):
        return 0, f"hold: {facts.fleet.pending} of {n} replicas are not ready yet"
    return min(step, most - n), reason


def _as_needed(state: DemandState, facts: Facts, wants: Need) -> tuple[int, str]:
    """As many as the demand needs, within what is added at a time."""
    n, now = facts.fleet.replicas, facts.now
    if wants.replicas <= n:
        return 0, f"hold: {wants.say()}: {n} replicas are enough"
    reason = f"{wants.say()}: {wants.replicas} replicas are needed"
    if state.short is None:
        return 0, f"hold: {reason}, but requests wait within the queue objective"
    lasting = _lasting(wants, state, now)
    if lasting < _sustained(wants):
        return 0, f"hold: {reason}, for {lasting:.0f} s so far and not yet for {_sustained(wants):.0f} s"
    if now - state.changed_at < RISE_EVERY_S:
        return 0, f"hold: {reason}, {now - state.changed_at:.0f} s after the last change"
    step = min(wants.replicas - n, max((RISE_FACTOR - 1) * n, RISE_STEP))
    return step, reason if step == wants.replicas - n else f"{reason}, {n + step} for now"


def _uneven(facts: Facts) -> bool:
    """Whether requests wait for some replicas while others have room."""
    known = [(p, c) for p in facts.pods if (c := admits(p, facts.limits)) is not None]
    return facts.full and any(p.running < FULL_SHARE * c for p, c in known)


def _one_up(state: DemandState, facts: Facts) -> tuple[int, str]:
    """One more where it cannot be told how many are needed, and none while one is pending."""
    if state.full is None:
        return 0, ""
    if facts.now - state.full.since < SUSTAINED_S:
        return 0, f"hold: full for {facts.now - state.full.since:.0f} s, {SUSTAINED_S:.0f} s are needed"
    if facts.objective.queue_s is not None and not facts.queue_missed:
        return 0, "hold: requests wait, but within the queue objective"
    if facts.fleet.pending > 0:
        return 0, f"hold: {facts.fleet.pending} of {facts.fleet.replicas} replicas are not ready yet"
    return 1, (
        f"{facts.running + facts.waiting} sequences are wanted and {facts.fleet.replicas} replicas hold "
        f"{_total(facts):.0f} at the objective"
    )


def _routed(found: Imbalance) -> str:
    crowded = " and ".join(sorted(found.since))
    return f"requests wait at {crowded} while {others_have(found.roomy)} room for them"


def _hopeless(facts: Facts) -> bool:
    """Whether even the smallest cap misses the objective, so that spreading the load cannot help."""
    predictors = [(p.low, p.predictor) for p in facts.pods if p.predictor is not None]
    return bool(predictors) and all(p.figure(low).ratio > 1.0 for low, p in predictors)


def _total(facts: Facts) -> float:
    return sum(p.engines * (capacity(p, facts.limits) or 0.0) for p in facts.pods)


def _down(state: DemandState, facts: Facts) -> tuple[int, str]:
    """(-1, why one less is enough), or (0, why not)."""
    n, cold = facts.fleet.replicas, cold_start_s(facts) if facts.fleet.cold_start_s else 0.0
    if n <= facts.limits.replicas_min:
        return 0, "hold: at minReplicas"
    if facts.fleet.rolling:
        # Fewer replicas are taken from both versions, so that it need not be the pods that do not serve.
        return 0, "hold: a rollout is under way"
    if any(capacity(p, facts.limits) is None for p in facts.pods):
        return 0, "hold: what a replica can hold is not known"
    if facts.now - max(state.changed_at, state.seen[0].at) < max(LOOK_BACK_S, cold):
        return 0, "hold: the last change, or the first look, is too recent"
    if facts.waiting > 0 or facts.missed:
        return 0, "hold: requests wait, or the latency objective is missed"
    wanted = facts.objective.queue_s
    if wanted is not None and facts.queue_now_s is not None and facts.queue_now_s > QUEUE_HEALTHY * wanted:
        return 0, "hold: the queue objective is met, but not by much"
    # A replica that is not ready carries nothing, and it is the first to go.
    serving = len(facts.pods)
    rest = serving if facts.fleet.pending > 0 else serving - 1
    if rest < 1:
        return 0, "hold: the only replica that serves"
    demand, left = max(s.at_least for s in state.seen), _total(facts) * rest / serving
    usage = max(p.window.kv_usage for p in facts.pods) * serving / rest
    if demand > DOWN_SHARE * left or usage > KV_AFTER_REMOVAL:
        return 0, "hold: the others could not take over with room to spare"
    rates = _rates(state, facts)
    if rates is not None and rates[0] > DOWN_SHARE * rest * rates[1]:
        came, serves = rates
        return 0, f"hold: up to {came:.3g} requests/s come, and {rest} replicas serve {rest * serves:.3g}"
    text = f"at most {demand:.0f} sequences in {LOOK_BACK_S:.0f} s, and {rest} replicas hold {left:.0f}"
    if rates is not None:
        text += f"; up to {rates[0]:.3g} requests/s, and they serve {rest * rates[1]:.3g}"
    return -1, text


def _rates(state: DemandState, facts: Facts) -> tuple[float, float] | None:
    """Requests per second in the busiest minute, or soon, and what a replica serves; None where clients wait
    for their answers, for these ask less where fewer serve them, and where it is not known.
    """
    tokens = length(state.seen, facts.running)
    if tokens is None or not state.serves or clients_wait(state.seen, facts.now, LOOK_BACK_S):
        return None
    came = [s.arrivals for s in state.seen]
    found = trend(came, facts.now)
    soon = found.ahead(cold_start_s(facts)) if found is not None else 0.0
    return max(busiest(came, BUSIEST_S), soon), state.serves / tokens
