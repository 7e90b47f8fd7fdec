"""Actions in the wrong direction: what a policy did against what was true, while something was broken.

From the beginning of a fault until AFTER_S after its end each of these counts, `true` being what the clients
of that replica saw in the last JUDGED_S, whatever the figures said:

- a cap or a prefill budget is raised, the other one not lowered, while the true statistic misses the
  objective;
- a cap is lowered, the budget not raised, while requests wait for that replica, its cache is less than CACHE
  full and the true statistic is below IDLE of the objective;
- a replica is removed while requests wait for a place anywhere;
- a replica is added while none waits, all serve, run less than IDLE of their caps and hold the objective.

A setting that lapses because nobody can renew it is no action, and neither is the first one that a replica
gets, be it new or restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from llamaserver.control.objective import JUDGED_S
from llamaserver.simulate.clients import Token, statistic
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.world import Fault, World

AFTER_S = 60.0
IDLE = 0.5
CACHE = 0.85


@dataclass(frozen=True)
class Wrong:
    """One such action: `what` says which."""

    at: float
    where: str
    what: str


class Watch:
    """Looks after every tick; without a fault nothing counts."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.spans = [(f.at, f.until + AFTER_S) for f in faults]
        self.found: list[Wrong] = []
        self.set: dict[str, tuple[int, int]] = {}
        """Cap and budget that were ordered last, by pod."""
        self.replicas = 0

    def look(self, world: World) -> None:
        if not self.spans:
            return
        before = {name: pair for name, pair in self.set.items() if name in world.engines}
        self.set = {**before, **dict(self._ordered(world))}
        replicas, self.replicas = self.replicas, world.replicas
        if not any(start <= world.now <= end for start, end in self.spans):
            return
        for name, (cap, budget) in self.set.items():
            engine = world.engines.get(name)
            if name in before and engine is not None and before[name] != (cap, budget):
                self._note(world, name, _setting(world, engine, before[name], (cap, budget)))
        if replicas and world.replicas != replicas:
            self._note(world, "replicas", _scaling(world, world.replicas - replicas))

    def _ordered(self, world: World) -> Iterable[tuple[str, tuple[int, int]]]:
        moved = {pod for at, pod, _ in (*world.caps[-64:], *world.budgets[-64:]) if at == world.now}
        for name in moved:
            if name in world.engines:
                yield name, (world.engines[name].cap, world.engines[name].budget)

    def _note(self, world: World, where: str, what: str) -> None:
        if what:
            self.found.append(Wrong(world.now, where, what))


def _setting(world: World, engine: Engine, before: tuple[int, int], after: tuple[int, int]) -> str:
    """Why a change of (cap, budget) was wrong; empty where it was not."""
    target, true = world.objective.itl_s, _true(world, engine)
    if target is None or true is None:
        return ""
    up, down = ([sign * (b - a) > 0 for a, b in zip(before, after, strict=True)] for sign in (1, -1))
    if true > target:
        if up[0] and not down[1]:
            return "cap raised while the objective is missed"
        return "budget raised while the objective is missed" if up[1] and not down[0] else ""
    free = engine.kv < CACHE * engine.profile.kv_tokens
    if down[0] and not up[1] and engine.waiting and free and true < IDLE * target:
        return "cap lowered while requests wait and there is room"
    return ""


def _scaling(world: World, change: int) -> str:
    engines = list(world.engines.values())
    waiting = any(e.waiting for e in engines) or bool(world.homeless)
    if change < 0:
        return "replica removed while requests wait" if waiting else ""
    target, trues = world.objective.itl_s, [_true(world, e) for e in engines]
    held = target is None or all(true is None or true <= target for true in trues)
    idle = bool(engines) and all(len(e.running) < IDLE * e.cap for e in engines)
    whole = len(engines) == world.replicas - change
    return "replica added while nobody waits" if not waiting and held and idle and whole else ""


def _true(world: World, engine: Engine) -> float | None:
    """The declared statistic as this replica's clients saw it lately, in seconds; None without a token, or a
    request that ended.
    """
    lately: list[Token] = []
    for log in (engine.answers,) if world.objective.of_requests else (engine.log, engine.gaps):
        lately += takewhile(lambda token: token[0] > world.now - JUDGED_S, reversed(log))
    window = [(y, n) for _, y, n in lately if n]
    return statistic(window, world.objective.itl_statistic) if window else None
