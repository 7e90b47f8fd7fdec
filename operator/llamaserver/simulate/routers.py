"""Which replica a request goes to: what stands between clients and engines.

A router is asked for every request that comes by itself, and again for one whose replica was killed or taken
away before it began. It is shown the replicas that serve: none that starts, drains or restarts. Closed-loop
clients stay with their replica, which no router moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from llamaserver.simulate.engine import Engine

LEAST_LOADED, PREFIX = "least-loaded", "prefix"
LEAST_SHARE = 0.3
"""Of a prompt so much has to have been somewhere before it is sent there again: the default of
`--cache-threshold` of the cache-aware policy of vLLM's and SGLang's routers. What nearly all prompts begin
with, such as a system prompt, is less of a long one and draws nobody.
"""
Ids = tuple[int, ...]


class Router(Protocol):
    """Chooses one of the replicas that serve, of which there is at least one."""

    def choose(self, engines: Mapping[str, Engine], hash_ids: Ids, /) -> Engine: ...


class LeastLoaded:
    """The replica with the fewest requests in hand, the one that has served longest among equals."""

    def choose(self, engines: Mapping[str, Engine], _: Ids) -> Engine:
        return min(engines.values(), key=lambda e: e.in_hand)


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self.turn = 0

    def choose(self, engines: Mapping[str, Engine], _: Ids) -> Engine:
        chosen = list(engines.values())[self.turn % len(engines)]
        self.turn += 1
        return chosen


class Random:
    """Any, each as likely as the others."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(2000 + seed)

    def choose(self, engines: Mapping[str, Engine], _: Ids) -> Engine:
        return self.rng.choice(list(engines.values()))


class Prefix:
    """The replica that was last sent the longest beginning of this prompt, if that is more than LEAST_SHARE
    of its full blocks; else the one with the fewest requests in hand.

    The policy of vLLM's and SGLang's routers without the part that gives way where replicas are unevenly
    loaded: a conversation stays where it began for as long as that replica serves. What was evicted there is
    not known here either.
    """

    def __init__(self) -> None:
        self.sent: dict[int, str] = {}
        """The replica that was last sent a block and all before it."""
        self.others = LeastLoaded()

    def choose(self, engines: Mapping[str, Engine], hash_ids: Ids) -> Engine:
        name = self._known(engines, hash_ids)
        if name is None:
            chosen = self.others.choose(engines, hash_ids)
            name = next(n for n, engine in engines.items() if engine is chosen)
        self.sent.update(dict.fromkeys(hash_ids, name))
        return engines[name]

    def _known(self, engines: Mapping[str, Engine], hash_ids: Ids) -> str | None:
        for count in range(len(hash_ids), 0, -1):
            if count <= LEAST_SHARE * len(hash_ids):
                break
            name = self.sent.get(hash_ids[count - 1])
            if name in engines:
                return name
        return None


@dataclass(frozen=True)
class Routing:
    """A router by what it does, and how it is made from the seed of a run."""

    says: str
    make: Callable[[int], Router]


ROUTERS = {
    LEAST_LOADED: Routing("to the replica with the fewest requests in hand", lambda _: LeastLoaded()),
    "round-robin": Routing("to one replica after the other", lambda _: RoundRobin()),
    "random": Routing("to any replica, by chance", Random),
    PREFIX: Routing(
        "to the replica that had the beginning of the prompt before (a trace with hash_ids)",
        lambda _: Prefix(),
    ),
}
