"""Diagnosis against what was brought about: every cause on the plant, with several seeds.

A case makes one cause true and keeps it so. Judged is every tick from the case's `since` on at which it is
true (`when`, from what the plant knows and the law does not): the cause that was named is right or it is not.
`confusion.<true>.<named>` counts ticks over all cases and seeds, `by_cause` is the share that was right, and
`accuracy` the mean of these, so that each cause weighs the same.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from llamaserver.api.enums import ScalingMode, Statistic, TuningMode
from llamaserver.control import Cause, Limits, Objective
from llamaserver.observe import Failure, Sample, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.clients import statistic
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.faults import Straggler
from llamaserver.simulate.lengths import chat
from llamaserver.simulate.profiles import CPU_24M, H100_8B
from llamaserver.simulate.world import World

OFF = Limits(tuning=TuningMode.OFF)
FIXED = Limits(scaling=ScalingMode.FIXED)
SMALL_CPU, SMALL_H100 = replace(CPU_24M, kv_tokens=4000), replace(H100_8B, kv_tokens=60_000)
CPU_20, CPU_P95 = Objective(0.020, Statistic.MEAN), Objective(0.020, Statistic.P95)
H100_25 = Objective(0.025, Statistic.MEAN)
QUEUES_20, QUEUES_25 = replace(CPU_20, queue_s=0.5), replace(H100_25, queue_s=0.5)
UP_TO_6 = Limits(replicas_min=3, replicas_max=6)
SLOW = (Straggler(40.0, math.inf, 1.6),)


def always(_: World, __: float) -> bool:
    return True


@dataclass(frozen=True)
class Illness:
    """How one cause is brought about."""

    cause: Cause
    make: Callable[[int], World]
    until: float
    since: float
    when: Callable[[World, float], bool] = always
    at: float = 0.0
    """When `change` is made, after a healthy time."""
    change: Callable[[World], None] | None = None


def cpu(
    objective: Objective, streams: int, limits: Limits | None = None, *, after: float = 0.0, **more: Any
) -> Callable[[int], World]:
    """So many clients, from `after` on."""

    def load(t: float) -> float:
        return streams if t > after else 0

    return lambda seed: World(objective, limits or Limits(), streams=load, seed=seed, **more)


def h100(
    objective: Objective, streams: int, limits: Limits | None = None, **more: Any
) -> Callable[[int], World]:
    settings = {"profile": H100_8B, "lengths": chat, **more}
    return cpu(objective, streams, limits, **settings)


def brief(rng: random.Random, _: float) -> tuple[int, int]:
    """Short answers to long prompts."""
    return rng.choice((64, 128, 256)), rng.randint(20, 60)


def decoding(rng: random.Random, _: float) -> tuple[int, int]:
    """Long answers to short prompts."""
    return rng.randint(24, 40), rng.randint(200, 400)


def deferring(world: World) -> None:
    """From now on requests wait for something that is neither cap nor cache."""

    def view(name: str, engine: Engine, now: float) -> Sample | Failure:
        said = json.loads(speech.snapshot(engine))
        said["engines"][0].update(waiting=30, waiting_deferred=28)
        return parse_snapshot(json.dumps(said).encode(), now, f"{name}/0")

    world.views["pod-1"] = view


def standing(world: World) -> None:
    world.engines["pod-1"].run_until = lambda until: None  # type: ignore[method-assign]


def away(world: World) -> None:
    world.unreachable.add("pod-1")


def sticking(world: World) -> None:
    """From now on most sessions stick to one replica, and each of the others has half as many as is fair."""
    hot, *others = world.engines.values()
    shares = [(hot, len(world.engines) - 0.5 * len(others)), *((engine, 0.5) for engine in others)]
    for engine, share in shares:
        engine.load = _share_of(engine.load, share)  # type: ignore[method-assign]


def _share_of(load: Callable[..., None], share: float) -> Callable[..., None]:
    def taken(*, streams: int = 0, rate: float = 0.0) -> None:
        load(streams=round(share * streams), rate=share * rate)

    return taken


def missed(world: World, t: float) -> bool:
    """Whether clients saw the objective missed in the 10 s before."""
    window = [(y, n) for at, y, n in world.tokens(t - 10.0) if at <= t]
    return bool(window) and statistic(window, world.objective.itl_statistic) > (world.objective.itl_s or 0.0)


def rising(world: World, t: float) -> bool:
    """Whether the cap is still below seven tenths of where it came to rest."""
    caps = [cap for at, _, cap in world.caps if at <= t]
    return bool(caps) and caps[-1] < 0.7 * world.engines["pod-1"].cap


ILLNESSES = (
    Illness(Cause.HEALTHY, cpu(CPU_20, 5), 120, 30),
    Illness(Cause.HEALTHY, h100(H100_25, 24), 120, 30),
    Illness(Cause.IDLE, cpu(CPU_20, 0), 60, 10),
    Illness(Cause.OVER_BATCHED, cpu(CPU_20, 36, OFF), 120, 30),
    Illness(Cause.OVER_BATCHED, h100(H100_25, 280, OFF), 120, 60),
    Illness(Cause.AT_CAPACITY, cpu(CPU_20, 36, FIXED), 150, 60),
    Illness(Cause.AT_CAPACITY, h100(H100_25, 280, FIXED), 200, 120),
    Illness(Cause.CAPACITY_EXHAUSTED, cpu(CPU_20, 36), 180, 100),
    Illness(Cause.CAPACITY_EXHAUSTED, h100(H100_25, 280), 240, 160),
    Illness(Cause.CAP_LIMITED, h100(H100_25, 280, after=10.0), 120, 16, rising),
    Illness(Cause.CAP_LIMITED, cpu(Objective(0.028, Statistic.MEAN), 36, after=6.0), 120, 12, rising),
    Illness(Cause.KV_PRESSURE, cpu(Objective(None), 36, OFF, profile=SMALL_CPU), 150, 60),
    Illness(
        Cause.KV_PRESSURE,
        h100(Objective(None), 200, OFF, profile=SMALL_H100),
        150,
        60,
    ),
    Illness(
        Cause.KV_PRESSURE,
        cpu(Objective(0.060, Statistic.MEAN), 36, profile=SMALL_CPU),
        200,
        100,
    ),
    Illness(Cause.SLO_INFEASIBLE, cpu(Objective(0.004, Statistic.MEAN), 36), 150, 60),
    Illness(Cause.SLO_INFEASIBLE, h100(Objective(0.004, Statistic.P50), 60), 150, 60),
    Illness(
        Cause.PREFILL_INTERFERENCE,
        cpu(Objective(0.025, Statistic.P99), 36, lengths=brief, live_budget="ChunkedPrefillOff"),
        200,
        110,
    ),
    Illness(Cause.DISTURBED, cpu(CPU_P95, 36, lengths=decoding, stalls=0.2), 260, 60, missed),
    Illness(Cause.STRAGGLER, cpu(CPU_20, 24, FIXED, replicas=3, faults=SLOW), 240, 100),
    Illness(Cause.STRAGGLER, cpu(CPU_P95, 90, FIXED, replicas=3, faults=SLOW), 240, 100),
    Illness(Cause.STRAGGLER, h100(H100_25, 80, FIXED, replicas=2, faults=SLOW), 240, 100),
    Illness(
        Cause.ROUTING_IMBALANCE, cpu(QUEUES_20, 36, UP_TO_6, replicas=3), 240, 120, at=40, change=sticking
    ),
    Illness(
        Cause.ROUTING_IMBALANCE,
        h100(QUEUES_25, 300, UP_TO_6, replicas=3),
        300,
        200,
        at=40,
        change=sticking,
    ),
    Illness(Cause.ADMISSION_ELSEWHERE, cpu(CPU_20, 8), 110, 52, at=40, change=deferring),
    Illness(Cause.STALLED, cpu(CPU_20, 8), 220, 166, at=40, change=standing),
    Illness(Cause.STALE, cpu(CPU_20, 8), 110, 46, at=40, change=away),
    Illness(Cause.STALE, h100(H100_25, 24), 110, 46, at=40, change=away),
)


def named(illness: Illness, seed: int) -> Counter[str]:
    """How often each cause was named while this one was true."""
    world = illness.make(seed)
    if illness.change is not None:
        illness.change(world.run(illness.at))
    world.run(illness.until)
    return Counter(
        d.diagnosis.cause.value for t, d in world.decisions if t >= illness.since and illness.when(world, t)
    )


def diagnosis(seeds: Sequence[int]) -> dict[str, Any]:
    confusion: dict[str, Counter[str]] = {}
    for illness in ILLNESSES:
        for seed in seeds:
            confusion.setdefault(illness.cause.value, Counter()).update(named(illness, seed))
    by_cause = {true: said[true] / said.total() for true, said in confusion.items()}
    return {
        "accuracy": fmean(by_cause.values()),
        "by_cause": by_cause,
        "confusion": {true: dict(said) for true, said in confusion.items()},
        "seeds": list(seeds),
    }
