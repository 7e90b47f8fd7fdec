"""The number of replicas by who knows what will come and what a replica does."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from llamaserver.simulate.rules.seen import FleetSeen


@dataclass(frozen=True, slots=True)
class Foresight:
    """The replicas that the trace needs, asked for one cold start before they are needed.

    The oracle of regret: N*(t) is the highest load of [t, t + cold start] over what a replica serves, rounded
    up. Without room for chance, so it is the least that could do and not what anybody could hold.
    """

    plan: tuple[tuple[float, int], ...] = ()
    """(from when, so many), in the order of times."""

    def step(self, fleet: FleetSeen) -> tuple[Foresight, int | None]:
        place = bisect_right(self.plan, fleet.now, key=lambda known: known[0])
        return self, self.plan[max(0, place - 1)][1] if self.plan else None
