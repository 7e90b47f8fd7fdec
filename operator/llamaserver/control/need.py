"""How many replicas the demand needs, and what of it was seen.

Requests that come by themselves are counted as a rate. Each is decoded for n steps on average, so `rate n` is
the demand in tokens per second, and a replica at its settled cap M makes M / tau(M) of them: what it serves
at the objective. tau(M) is the step model's; while every replica is full, what they make is measured instead.
The rate is that to be expected when a replica asked for now is ready. What waits by then has to be worked off
in WORK_OFF_S besides.

Clients that wait for their answers before they ask again slow down with the engines, so their rate says how
fast they are served and not how much they want. They show in the number in hand: requests come and go and it
stands still. Then that number is the demand, and the cap is what a replica holds of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from llamaserver.control.arrivals import Arrivals, Trend, trend
from llamaserver.control.facts import FULL_SHARE, Facts, admits
from llamaserver.control.model import StepModel
from llamaserver.control.state import DemandState, Seen
from llamaserver.observe.types import Window

LOOK_BACK_S = 180.0
UP_SHARE = 0.9
WORK_OFF_S = 90.0
"""What waits when new replicas are ready is gone so much later. It stays in the engine that it waits in, so
more replicas than relieve that one of new requests make it no faster.
"""
COLD_START_S, MOST_COLD_START_S = 120.0, 1800.0
"""What a replica takes to start while none was measured, and the furthest that is looked ahead."""
REACTION_S = 15.0
"""What passes besides until it serves its share."""
SERVES_MEMORY_S = 10.0
FIT_MAX = 4.0
"""How far off a model may be taken to be."""
GENERATION = 20
"""Requests that have to finish, or as many as run, before it is known how long they are."""
LENGTH_TOLD = 1000
"""So many finished requests tell their length; older ones are left out."""
STILL_S, STILL_SLACK_S, STILL = 30.0, 5.0, 0.5
"""Clients wait for their answers when the number in hand moves by less than one and STILL of its square root.
Requests that come by themselves move it by some four square roots, and in an overload without end. It has to
be seen so often: a few looks may find it at the same place by chance.
"""
STILL_EVERY_S = 15.0
LEAST_ARRIVALS = 16


@dataclass(frozen=True, slots=True)
class Need:
    """What the demand needs. Rates in requests per second, lengths in tokens."""

    replicas: int
    sequences: int | None = None
    """In hand of clients that wait for their answers; None for requests that come by themselves."""
    holds: float = 0.0
    """Sequences that a replica holds at the objective."""
    rate: float = 0.0
    expected: float = 0.0
    """The rate when a replica asked for now is ready."""
    in_s: float = 0.0
    """When that is."""
    backlog: float = 0.0
    """Requests that wait by then."""
    serves: float = 0.0
    """Requests per second that a replica serves at the objective."""
    rising: bool = False

    def evidence(self) -> dict[str, float | int | str]:
        """The same as figures, with the number of replicas."""
        if self.sequences is not None:
            return {"needed": self.replicas, "holds": round(self.holds, 1)}
        return {
            "needed": self.replicas,
            "arrivals_per_s": round(self.rate, 2),
            "expected_per_s": round(self.expected, 2),
            "serves_per_s": round(self.serves, 2),
            "will_wait": round(self.backlog),
        }

    def say(self) -> str:
        """The demand and the capacity in words."""
        if self.sequences is not None:
            return f"{self.sequences} sequences are wanted and a replica holds {self.holds:.0f}"
        text = f"{self.rate:.3g} requests/s come"
        if self.expected > 1.005 * self.rate:
            text += f" and {self.expected:.3g} are expected in {self.in_s:.0f} s"
        if self.backlog >= 1.0:
            text += f", {self.backlog:.0f} will wait then"
        return f"{text}; a replica serves {self.serves:.3g}"


def cold_start_s(facts: Facts) -> float:
    """How long a replica that is asked for now is taken to need."""
    return min(MOST_COLD_START_S, facts.fleet.cold_start_s or COLD_START_S)


def look(state: DemandState, facts: Facts) -> DemandState:
    """The memory with this tick's demand in it."""
    windows = [p.window for p in facts.pods]
    told = [w for w in windows if w.finished is not None]
    seen = Seen(
        at=facts.now,
        in_hand=float(facts.running + facts.waiting) if not facts.blind else None,
        at_least=float(facts.running + facts.waiting),
        arrivals=_arrivals(state.held, windows, len(windows) + len(facts.blind), facts.now),
        finished=sum(w.finished or 0 for w in told),
        decoded=sum(w.itl.count for w in told),
    )
    kept = (*state.seen, seen)
    while len(kept) > 2 and kept[1].at <= facts.now - LOOK_BACK_S:
        kept = kept[1:]
    there = {w.pod for w in windows} | {w.pod for w in facts.blind}
    held = {pod: count for pod, count in state.held.items() if pod in there}
    held |= {w.pod: w.running + w.waiting for w in windows}
    dt = facts.now - state.seen[-1].at if state.seen else 0.0
    return _serves(replace(state, seen=kept, held=held), facts, dt)


def _arrivals(held: Mapping[str, int], windows: Sequence[Window], pods: int, now: float) -> Arrivals:
    """What came at the replicas that are seen, as part of the time of all."""
    requests = seconds = 0.0
    for w in windows:
        new = arrivals_at(held, w)
        if new is not None:
            requests, seconds = requests + new, seconds + w.dt
    return Arrivals(now, requests, seconds / pods)


def arrivals_at(held: Mapping[str, int], w: Window) -> int | None:
    """Requests that came to one replica in its window, by how many it held before; None where that cannot be
    known. An engine that does not tell what came has finished it or holds it.
    """
    if w.arrived is None and w.finished is not None and w.pod in held:
        return max(0, w.finished + w.running + w.waiting - held[w.pod])
    return w.arrived


def _serves(state: DemandState, facts: Facts, dt: float) -> DemandState:
    """What a replica serves, smoothed: measured while all are full, which also tells how far the model is
    off, else modelled. A model that has learned since is off by something else: what was measured stays.
    """
    weight = 1.0 - math.exp(-max(0.0, dt) / SERVES_MEMORY_S)
    modelled, fit = _modelled(facts, facts.model), state.fit
    if modelled and (earlier := _modelled(facts, state.fitted)):
        fit = _bounded(fit * earlier / modelled)
    found = _measured(facts) if facts.full and facts.settled else None
    if found is not None and modelled:
        fit += weight * (_bounded(found / modelled) - fit)
    if found is None and modelled is not None:
        found = fit * modelled
    if found is None:
        return state
    before = found if state.serves is None else state.serves
    fitted = facts.model if modelled else state.fitted
    return replace(state, serves=before + weight * (found - before), fit=fit, fitted=fitted)


def _bounded(fit: float) -> float:
    return min(FIT_MAX, max(1.0 / FIT_MAX, fit))


def _measured(facts: Facts) -> float | None:
    """What full replicas make; None where one has room."""
    full = [p.running >= FULL_SHARE * c for p in facts.pods if (c := admits(p, facts.limits)) is not None]
    if not full or not all(full) or len(full) < len(facts.pods):
        return None
    return sum(p.window.itl.count / p.window.dt for p in facts.pods) / len(facts.pods)


def _modelled(facts: Facts, model: StepModel | None) -> float | None:
    """What this model has a full replica make now."""
    made = []
    if model is None:
        return None
    for p in facts.pods:
        holds = admits(p, facts.limits)
        if holds is not None and p.work is not None and model.trusted(p.work.context):
            made.append(p.engines * p.work.tokens_per_s(model, holds))
    return median(made) if made else None


def length(seen: Sequence[Seen], running: int) -> float | None:
    """Tokens decoded per request; None before as many have finished as run."""
    finished = decoded = 0
    for tick in reversed(seen):
        finished, decoded = finished + tick.finished, decoded + tick.decoded
        if finished >= LENGTH_TOLD:
            break
    enough = finished >= min(LENGTH_TOLD, max(GENERATION, running))
    return decoded / finished if enough and decoded > 0 else None


def clients_wait(seen: Sequence[Seen], now: float, seconds: float = STILL_S) -> bool:
    """Whether requests came as fast as others ended: the number in hand stood still for so long, and for
    longer where it takes longer to replace all that are in hand.
    """
    came, most, numbers = 0.0, 0.0, list[float]()
    for tick in reversed(seen):
        if tick.at <= now - seconds and numbers and came >= max(LEAST_ARRIVALS, most):
            break
        came += tick.arrivals.requests
        if tick.in_hand is not None:
            numbers.append(tick.in_hand)
            most = max(most, tick.in_hand)
    if len(numbers) < max(4.0, seconds / STILL_EVERY_S) or now - seen[0].at < seconds - STILL_SLACK_S:
        return False
    return came >= max(LEAST_ARRIVALS, most) and most - min(numbers) <= 1.0 + STILL * math.sqrt(most)


def need(state: DemandState, facts: Facts) -> Need | None:
    """The replicas that the demand needs; None while that cannot be told."""
    if clients_wait(state.seen, facts.now):
        return _for_clients(facts)
    found, tokens = trend([s.arrivals for s in state.seen], facts.now), length(state.seen, facts.running)
    if found is None or tokens is None or not state.serves:
        return None
    return _for_rate(found, state.serves / tokens, state, facts)


def _for_clients(facts: Facts) -> Need | None:
    known = [p.engines * c for p in facts.pods if (c := admits(p, facts.limits)) is not None]
    if not known:
        return None
    holds, wanted = median(known), facts.running + facts.waiting
    return Need(math.ceil(wanted / (UP_SHARE * holds)), sequences=wanted, holds=holds)


def _for_rate(found: Trend, serves: float, state: DemandState, facts: Facts) -> Need:
    cold = cold_start_s(facts)
    in_s = cold + REACTION_S
    expected = found.ahead(in_s)
    backlog = _backlog(found, serves, cold, state, facts)
    due = max(0.0, backlog - (facts.objective.queue_s or 0.0) * serves * facts.fleet.replicas)
    return Need(
        max(1, math.ceil((expected + due / WORK_OFF_S) / (UP_SHARE * serves) - 1e-9)),
        rate=found.rate,
        expected=expected,
        in_s=in_s,
        backlog=backlog,
        serves=serves,
        rising=found.rising,
    )


def _backlog(found: Trend, serves: float, cold: float, state: DemandState, facts: Facts) -> float:
    """Requests that will wait when a replica asked for now is ready, those helping that start already."""
    pending = facts.fleet.pending
    left = min(cold, max(0.0, cold - (facts.now - state.risen_at))) if pending > 0 else cold
    ready = max(0, facts.fleet.replicas - pending)
    waiting = facts.waiting + (found.ahead(left / 2.0) - serves * ready) * left
    later = (found.ahead((left + cold) / 2.0) - serves * facts.fleet.replicas) * (cold - left)
    return max(0.0, max(0.0, waiting) + later)
