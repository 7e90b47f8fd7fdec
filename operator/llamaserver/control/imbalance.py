"""Requests that are sent to full replicas while others have the room for them: the router's matter.

A replica is crowded when it is full and CROWDED of its places wait besides, and has room when nobody waits
there and it is ROOMY full at most. That is an imbalance only where those with room could take all that wait
anywhere: what waits beyond that is want of capacity, whoever routes. And only where requests go on coming to
the crowded ones: a queue from before a replica was added, or from a burst, stays in the engine that it waits
in, and no router can do anything about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llamaserver.control.facts import FULL_SHARE, KV_TIGHT, Facts, admits
from llamaserver.control.need import arrivals_at
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import ImbalanceState, spell
from llamaserver.control.types import Imbalance

CROWDED, ROOMY = 0.25, 0.75
FEWEST = 2
"""So many wait at least: one may be on its way in."""
FAIR = 0.5
"""The crowded get at least this part of what an even router would send them."""
LEAST_ARRIVALS = 4.0
HELD_S, TOLD_S = 10.0, 30.0
"""How long it lasts before no replica is added for it, and before it is told."""


def follow(state: ImbalanceState, facts: Facts, held: Mapping[str, int]) -> ImbalanceState:
    """The memory with one more tick in it. `held` is what each replica had in hand when it was last seen."""
    roomy = _roomy(facts)
    room = _room(roomy, facts)
    crowded = {p.name for p in facts.pods if _is_crowded(p, facts)} if facts.waiting <= room else set()
    names = {*crowded, *(p.name for p in facts.pods), *(b.pod for b in facts.blind)}
    spells = {pod: spell(state.crowded.get(pod), pod in crowded, facts.now) for pod in names}
    kept = {pod: s for pod, s in spells.items() if s is not None}
    if not kept:
        return ImbalanceState()
    counted = {p.name: arrivals_at(held, p.window) or 0 for p in facts.pods}
    came = {pod: state.came.get(pod, 0.0) + counted.get(pod, 0) for pod in names}
    return ImbalanceState(kept, came, len(roomy) if crowded else state.roomy, room if crowded else state.room)


def found(state: ImbalanceState, facts: Facts) -> Imbalance | None:
    """The imbalance that has lasted HELD_S; None where there is none."""
    lasting = sorted((s.since, pod) for pod, s in state.crowded.items() if facts.now - s.since >= HELD_S)
    since = {pod: at for at, pod in lasting}
    total = sum(state.came.values())
    if not since or total < LEAST_ARRIVALS:
        return None
    share = sum(state.came.get(pod, 0.0) for pod in state.crowded) / total
    if share < FAIR * len(state.crowded) / len(state.came):
        return None
    places = sum(known for p in facts.pods if (known := _places(p, facts)) is not None)
    return Imbalance(
        since=since,
        waiting=facts.waiting,
        roomy=state.roomy,
        room=state.room,
        filled=sum(_in_hand(p) for p in facts.pods) / places if places > 0.0 else 0.0,
        share=share,
    )


def _is_crowded(p: PodFacts, facts: Facts) -> bool:
    places, waiting = _places(p, facts), p.window.waiting_for_room
    if places is None or waiting < max(FEWEST, CROWDED * places):
        return False
    return p.window.running >= FULL_SHARE * places


def _roomy(facts: Facts) -> list[PodFacts]:
    return [
        p
        for p in facts.pods
        if (places := _places(p, facts)) is not None
        and p.window.waiting <= 1  # on its way in
        and _in_hand(p) <= ROOMY * places
        and p.window.kv_usage <= KV_TIGHT
    ]


def _room(roomy: Sequence[PodFacts], facts: Facts) -> int:
    return int(sum((_places(p, facts) or 0.0) - _in_hand(p) for p in roomy))


def _places(p: PodFacts, facts: Facts) -> float | None:
    """Sequences that a replica runs when it is full; None while unknown."""
    holds = admits(p, facts.limits)
    if holds is None:
        return None
    return p.engines * (holds if p.cap is None else min(holds, float(p.cap)))


def _in_hand(p: PodFacts) -> int:
    return p.window.running + p.window.waiting_for_room
