"""What goes wrong in a cluster, and when: each fault begins and ends at its time, in virtual time.

A fault meets the replica that has served longest.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from llamaserver.observe import Failure, Sample, Unusable, parse_exposition, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import slower
from llamaserver.simulate.world import View, World


@dataclass(frozen=True)
class PodKilled:
    """A replica is gone, with all that it had in hand; clients ask again, another one starts."""

    at: float
    until: float

    def begin(self, world: World) -> None:
        world.kill(_oldest(world))

    def end(self, world: World) -> None:
        """What was lost is lost."""


@dataclass(frozen=True)
class EngineRestarted:
    """The engine of a replica ends, with all that it had in hand, and starts again by itself in the same pod:
    its counters at zero, nothing set. Clients ask again. It serves after a start, which may be after `until`.
    """

    at: float
    until: float

    def begin(self, world: World) -> None:
        world.restart(_oldest(world))

    def end(self, world: World) -> None:
        """It comes back when it comes back."""


@dataclass(frozen=True)
class Straggler:
    """A replica whose steps take `factor` times as long."""

    at: float
    until: float
    factor: float = 1.6

    def begin(self, world: World) -> None:
        engine = world.engines[_oldest(world)]
        engine.profile = slower(engine.profile, self.factor)

    def end(self, world: World) -> None:
        for engine in world.ever():
            engine.profile = world.profile


@dataclass(frozen=True)
class SlowStart:
    """Replicas that are started meanwhile take `seconds` until they are ready; nobody is told."""

    at: float
    until: float
    seconds: float

    def begin(self, world: World) -> None:
        world.starts_s = self.seconds

    def end(self, world: World) -> None:
        world.starts_s = None


@dataclass(frozen=True)
class _Seen:
    """A fault of what is seen of one pod."""

    at: float
    until: float

    def begin(self, world: World) -> None:
        name = _oldest(world)
        world.views[name] = self.view()

    def end(self, world: World) -> None:
        world.views.clear()

    def view(self) -> View:
        raise NotImplementedError


@dataclass(frozen=True)
class Silent(_Seen):
    """A replica serves and cannot be asked."""

    def view(self) -> View:
        return lambda _, __, now: Failure(now, Unusable.UNREACHABLE, "no answer within the deadline")


@dataclass(frozen=True)
class Stale(_Seen):
    """A replica tells what was `lag_s` ago, as behind a cache; infinite for the same all the time. Its own
    clock is as old as the rest.
    """

    lag_s: float = math.inf

    def view(self) -> View:
        said = deque[tuple[float, bytes]]()

        def stale(name: str, engine: Engine, now: float) -> Sample | Failure:
            if not said or math.isfinite(self.lag_s):
                said.append((now, speech.snapshot(engine)))
            while len(said) > 1 and said[1][0] <= now - self.lag_s:
                said.popleft()
            return parse_snapshot(said[0][1], now, f"{name}/0")

        return stale


@dataclass(frozen=True)
class TunerLost(_Seen):
    """A replica without its tuner: `/metrics` alone, nothing can be set, and what is set lapses."""

    def view(self) -> View:
        return lambda name, engine, now: parse_exposition(speech.metrics(engine), now, f"{name}/0")


def _oldest(world: World) -> str:
    return next(iter(world.engines))
