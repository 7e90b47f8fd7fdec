"""The first setpoint of a pod that this operator has not set before: from its peers, from what an earlier
operator learned, from a lease that still runs, or a slow start.
"""

from __future__ import annotations

import math
from dataclasses import replace

from llamaserver.control import joint, kv
from llamaserver.control.answers import enough
from llamaserver.control.cap import SLOW_START_SEQS
from llamaserver.control.context import Context, bounds, budget_range, in_force
from llamaserver.control.objective import MARGIN
from llamaserver.control.state import Learned, PodState
from llamaserver.observe.types import Sample


def begun(ctx: Context, pod: PodState, sample: Sample) -> PodState:
    """The pod with the first setpoint of this operator."""
    cap = _first_cap(ctx, pod, sample)
    return replace(
        pod,
        cap=cap,
        budget=_first_budget(ctx, sample, cap),
        tail=_first_tail(ctx),
        asked=ctx.asked,
        changed_at=ctx.now,
    )


def _first_tail(ctx: Context) -> float | None:
    """The peers' tail, else the one that an earlier operator learned for this quantile."""
    known = [p.tail for p in ctx.peers if p.tail is not None and p.asked == ctx.asked]
    if known:
        return sorted(known)[len(known) // 2]
    seed = ctx.seed
    return seed.tail if seed is not None and ctx.learned_for_this and seed.tail > 0.0 else None


def first_kappa(ctx: Context, pod: PodState) -> float | None:
    """What to believe of kappa before it was measured here: what peers have measured, else what an earlier
    operator learned for this statistic of requests; None where nobody knows.
    """
    others = (p for p in ctx.peers if p.incarnation != pod.incarnation and p.asked == ctx.asked)
    least = enough(ctx.objective.itl_statistic)
    known = [p.kappa for p in others if p.kappa is not None and p.answers.requests >= least]
    if known:
        return sorted(known)[len(known) // 2]
    seed = ctx.seed
    return seed.kappa if seed is not None and ctx.learned_for_this and seed.kappa > 1.0 else None


def _first_budget(ctx: Context, sample: Sample, cap: int | None) -> int | None:
    """The prefill budget to go with the first cap: the peers' present one, else that of a lease that still
    runs, else what the earlier operator's model leaves beside the cap if it used the budget too.
    """
    takes, target_s, seed = budget_range(ctx.limits, sample), ctx.objective.itl_s, ctx.seed
    if takes is None or cap is None or target_s is None or not ctx.of_a_tail:
        return None
    if ctx.peers:
        peer = next(p for p in ctx.peers if p.cap == _middle_peer(ctx))
        if peer.budget is None or peer.cap is None:
            return None
        return takes.of(cap, takes.chunk(peer.cap, peer.budget))
    wanted = [
        e.wanted_num_scheduled_tokens
        for e in sample.engines
        if e.lease_expires_in_s is not None and e.wanted_num_scheduled_tokens is not None
    ]
    if wanted and min(wanted) < takes.start:
        return takes.of(cap, takes.chunk(in_force(sample) or cap, min(wanted)))
    tail = _first_tail(ctx)
    if seed is None or tail is None:
        return None
    step_s = joint.planned_s(target_s, tail, ctx.objective.of_requests)
    plan = joint.Plan(seed.model(), seed.context, seed.prefill, step_s)
    return takes.of(cap, plan.chunk(cap))


def _middle_peer(ctx: Context) -> int:
    caps = sorted(p.cap for p in ctx.peers if p.cap is not None)
    return caps[len(caps) // 2]


def _first_cap(ctx: Context, pod: PodState, sample: Sample) -> int | None:
    """The first cap of a pod never set by this operator: its peers' present one, else what an earlier
    operator learned, else a slow start, which is never below what already runs.
    """
    low, high = bounds(ctx.limits, sample)
    if high is None:
        return None
    fits = kv.ceiling(pod.kv, sample)
    most = high if fits is None else max(low, min(high, math.floor(fits)))
    seed = ctx.seed
    if ctx.peers:
        return max(low, min(most, _middle_peer(ctx)))
    if seed is not None and (known := _from_seed(ctx, seed)) is not None:
        return max(low, min(most, known))
    if any(e.lease_expires_in_s is not None for e in sample.engines):
        return in_force(sample)
    busy = max(e.running for e in sample.engines)
    return max(low, min(most, max(_slow_start(ctx, pod, sample, most), busy)))


def _slow_start(ctx: Context, pod: PodState, sample: Sample, most: int) -> int:
    """Without a latency to protect, start high; not at the top, for a batch that never moves teaches nothing.

    Nor higher than the cache holds whatever comes, while the lengths of no request are known: what the first
    tick admits runs to its end, and the first look at it comes early enough to admit more.
    """
    if ctx.objective.itl_s is not None:
        return SLOW_START_SEQS
    high, worst = most // 2, kv.fitting_at_worst(sample)
    if worst is not None and kv.expected_footprint(pod.kv, sample) is None:
        high = min(high, math.floor(worst))
    return max(SLOW_START_SEQS, high)


def _from_seed(ctx: Context, seed: Learned) -> int | None:
    """The cap an earlier operator found, or the one its model gives for a target that has changed since."""
    target = ctx.objective.itl_s or 0.0
    same = math.isclose(seed.target_s, target, rel_tol=1e-6) and (ctx.learned_for_this or target == 0.0)
    if seed.cap >= 1.0 and same:
        return int(seed.cap)
    if target == 0.0:
        return None
    slope = seed.model().mean_slope_s(seed.context, seed.prefill, seed.mixed)
    if slope <= 0.0 or seed.context <= 0.0:
        return None
    kappa = seed.kappa if ctx.learned_for_this else max(1.0, seed.kappa)
    return max(1, math.floor((MARGIN * target / kappa - seed.a_s) / slope))
