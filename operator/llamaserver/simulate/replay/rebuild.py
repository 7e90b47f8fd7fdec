"""The demand behind a history: as many requests as came between two scrapes, at random times between them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from llamaserver.simulate.demand import Demand, Request
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.replay.history import History, Replica
from llamaserver.simulate.replay.lengths import pools


@dataclass(frozen=True, slots=True)
class Came:
    """So many requests between two times."""

    start: float
    end: float
    requests: int


def arrivals(replica: Replica) -> list[Came]:
    """What came to a replica, interval by interval.

    What is in hand at the first scrape came in the first interval. Where gauges and counters, being of
    slightly different moments, give less than nothing, the next interval pays for it: the sum is right.
    """
    found, owed = [], 0.0
    for i in replica.intervals:
        came = i.came + (0.0 if i.restarted else owed) + (i.in_hand_before if i.first else 0.0)
        whole = max(0, round(came))
        owed = came - whole
        found.append(Came(i.start, i.end, whole))
    return found


def rebuilt(history: History, name: str, seed: int) -> Demand:
    """The requests of all replicas together. Raises SimulationError where there were none."""
    rng = random.Random(f"replay {seed}")
    came = [c for r in history.replicas for c in arrivals(r)]
    times = sorted(rng.uniform(c.start, c.end) for c in came for _ in range(c.requests))
    kinds = pools(history)
    if not times or not kinds:
        raise SimulationError(
            f"no request finished in the {history.span_s:g} s of this history: choose another --start and "
            "--end"
        )
    requests, at = [], 0
    for t in times:
        while t > kinds[at].until:
            at += 1
        requests.append(Request(t, kinds[at].prompts.draw(rng), kinds[at].outputs.draw(rng)))
    return Demand(name, history.span_s, requests)
