"""What came of a run, in the figures that people judge by."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

from llamaserver.control.objective import JUDGED_S
from llamaserver.simulate.clients import Token, quantiles, reversals
from llamaserver.simulate.profiles import Profile
from llamaserver.simulate.recovery import queue_windows, recovery_s
from llamaserver.simulate.world import World

SETTLE_S = 20.0
"""What comes before is not judged: nobody knows a load that has not begun."""


@dataclass(frozen=True)
class Moment:
    """The settings at one time, means over the replicas that serve, and what these have in hand together."""

    at: float
    cap: float
    budget: float
    replicas: int
    running: int
    waiting: int


@dataclass(frozen=True)
class Outcome:
    """Figures of one run from SETTLE_S on; times in seconds. NaN where nothing was measured."""

    violated_window_share: float
    """Of windows of 10 s, or what was asked for; NaN without an objective."""
    itl_p50_s: float
    itl_p95_s: float
    itl_p99_s: float
    tokens_per_s: float
    """Output tokens, of all replicas."""
    goodput: float
    """Output tokens per second that were made in windows which held the objective, first tokens left out."""
    ttft_p50_s: float
    ttft_p95_s: float
    """Over all requests; one that still waits at the end counts with its age."""
    queue_p95_s: float
    """From arrival to admission; likewise."""
    gpu_hours: float
    """Of the whole run, start and drain of replicas included; `gpu_seconds` is the same."""
    gpu_seconds: float
    cap_changes: float
    """Changes of a cap or a budget, of all replicas."""
    cap_changes_per_min: float
    """Changes of a cap alone, per minute of a replica that serves."""
    cap_reversals_per_10min: float
    """How often a cap turned from rising to falling or back, per ten minutes of a replica that serves."""
    replica_changes: float
    replica_reversals: float
    """How often their number turned from rising to falling or back."""
    preemptions: float
    waiting_at_end: float
    dropped: float
    """Requests whose answer was broken off by the end of their replica. Nobody gives up waiting."""
    refused: float
    """Requests longer than the model allows. They are in no other figure."""
    prefix_hit_share: float
    """Of the prompt tokens that were looked up in a prefix cache; 0 without one."""
    wrong_actions: float
    """Actions in the wrong direction while something was broken, see simulate/wrongs.py."""
    recovery_s: float | None
    """From the step of the demand until the latency objective holds again, see simulate/recovery.py. None
    where there was no step, or nothing to recover.
    """
    queue_recovery_s: float | None
    """The same until the queue is what it was before the step."""


FIGURES = tuple(f.name for f in fields(Outcome))


@dataclass(frozen=True)
class Traced:
    """An outcome with what a plot needs."""

    outcome: Outcome
    windows: Sequence[tuple[float, float]]
    """(end of the window, the declared statistic in seconds)."""
    moments: Sequence[Moment]
    itl_mean_s: float
    """Over all tokens from SETTLE_S on; NaN without one."""


def judged(
    world: World,
    moments: Sequence[Moment],
    profile: Profile,
    wrong_actions: float = 0.0,
    window_s: float = JUDGED_S,
    step_s: float | None = None,
) -> Traced:
    """The figures of a world that has run, the objective judged over windows of `window_s`; `step_s` is when
    the load stepped up.
    """
    target = world.objective.itl_s
    tokens = world.tokens(SETTLE_S)
    seen = world.judged(SETTLE_S, window_s)
    good = _good(tokens, seen, target)
    p50, p95, p99 = quantiles([(y, n) for _, y, n in tokens], (0.5, 0.95, 0.99))
    firsts = [wait for e in world.ever() for t, wait in e.waits if t > SETTLE_S]
    waiting = [s for e in world.ever() for s in e.waiting if s.generated == 0]
    queued = [wait for e in world.ever() for t, wait in e.queued if t > SETTLE_S]
    unadmitted = [s for e in world.ever() for s in e.waiting if not s.admitted]
    queue = quantiles([(w, 1) for w in (*queued, *(world.now - s.arrived for s in unadmitted))], (0.95,))
    ttft = quantiles([(w, 1) for w in (*firsts, *(world.now - s.arrived for s in waiting))], (0.5, 0.95))
    seconds = world.now - SETTLE_S
    missed = math.nan if target is None or not seen else fmean(value > target for _, value in seen)
    return Traced(
        outcome=Outcome(
            violated_window_share=missed,
            itl_p50_s=p50,
            itl_p95_s=p95,
            itl_p99_s=p99,
            tokens_per_s=(sum(n for _, _, n in tokens) + len(firsts)) / seconds
            if seconds > 0.0
            else math.nan,
            goodput=good / seconds if seconds > 0.0 else math.nan,
            ttft_p50_s=ttft[0],
            ttft_p95_s=ttft[1],
            queue_p95_s=queue[0],
            gpu_hours=world.replica_s * profile.gpus / 3600,
            gpu_seconds=world.replica_s * profile.gpus,
            cap_changes=len({(t, pod) for t, pod, _ in (*world.caps, *world.budgets)}),
            cap_changes_per_min=_per_minute(world, moments),
            cap_reversals_per_10min=_turns(world, moments),
            replica_changes=len(world.scales),
            replica_reversals=reversals([world.first_replicas, *(n for _, n in world.scales)]),
            preemptions=sum(e.preempted_ever for e in world.ever()),
            waiting_at_end=len(waiting),
            dropped=world.broken,
            refused=sum(e.refused_ever for e in world.ever()),
            prefix_hit_share=_hit_share(world),
            wrong_actions=wrong_actions,
            recovery_s=_recovery_s(world, seen, step_s, window_s),
            queue_recovery_s=_queue_recovery_s(world, moments, step_s),
        ),
        windows=seen,
        moments=moments,
        itl_mean_s=sum(y * n for _, y, n in tokens) / sum(n for *_, n in tokens) if tokens else math.nan,
    )


def _good(tokens: Sequence[Token], seen: Sequence[tuple[float, float]], target: float | None) -> int:
    """Tokens that were made in windows which held the target."""
    ends = [at for at, _ in seen]
    held = [target is None or value <= target for _, value in seen]
    # A token at the very end of a window is of that window.
    of = [(bisect_left(ends, t), n) for t, _, n in tokens]
    return sum(n for i, n in of if i < len(held) and held[i])


def _recovery_s(
    world: World, seen: Sequence[tuple[float, float]], step_s: float | None, window_s: float
) -> float | None:
    target = world.objective.itl_s
    if step_s is None or target is None:
        return None
    return recovery_s([(at, value <= target) for at, value in seen], step_s, window_s, world.now)


def _queue_recovery_s(world: World, moments: Sequence[Moment], step_s: float | None) -> float | None:
    if step_s is None:
        return None
    queued = (admission for e in world.ever() for admission in e.queued)
    waiting = [(m.at, m.waiting) for m in moments]
    found = queue_windows(queued, waiting, (SETTLE_S, step_s, world.now), JUDGED_S)
    return recovery_s(found, step_s, JUDGED_S, world.now)


def _per_minute(world: World, moments: Sequence[Moment]) -> float:
    """Cap changes after SETTLE_S per minute of serving replicas."""
    served_s = _served_s(world, moments)
    changes = sum(at > SETTLE_S for at, _, _ in world.caps)
    return 60.0 * changes / served_s if served_s > 0.0 else math.nan


def _turns(world: World, moments: Sequence[Moment]) -> float:
    """Reversals of caps after SETTLE_S per ten minutes of serving replicas."""
    served_s = _served_s(world, moments)
    turns = sum(reversals(world.changes(SETTLE_S, pod)) for pod in {pod for _, pod, _ in world.caps})
    return 600.0 * turns / served_s if served_s > 0.0 else math.nan


def _served_s(world: World, moments: Sequence[Moment]) -> float:
    """Seconds that replicas served after SETTLE_S, together."""
    return sum(m.replicas for m in moments if m.at > SETTLE_S) * world.tick_s


def _hit_share(world: World) -> float:
    return sum(e.prefix_hits for e in world.ever()) / max(1, sum(e.prefix_queries for e in world.ever()))


def mean_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The mean of each figure over several seeds, of those that have it."""
    return Outcome(**{name: _mean([getattr(o, name) for o in outcomes]) for name in FIGURES})


def _mean(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
