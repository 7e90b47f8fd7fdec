"""One pod, one tick: from its window to its state, its cap, and what the other rules want to know of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llamaserver.api.enums import TuningMode
from llamaserver.control import kv
from llamaserver.control.cap import NO_RAISE_AFTER_PREEMPTION_S, SLOW_START_SEQS, Move, View, move
from llamaserver.control.history import History, Record, forget_archive, record_of, remember
from llamaserver.control.model import StepModel
from llamaserver.control.objective import MARGIN, QUANTILES, Predictor
from llamaserver.control.state import Learned, PodState
from llamaserver.control.types import Limits, Objective, Setpoint, Verdict
from llamaserver.observe.types import EngineState, NoWindow, Sample, Unusable, Window

CONTEXT_MEMORY_S = 12.0
REVERSAL_S = 120.0
"""A raise that is taken back within this time makes the next one wait."""
FAILED_S, FAILED_WORTH = 600.0, 4.0
"""A cap that failed is left alone for so many times the seconds of evidence against it, up to FAILED_S."""
DISTURBED_PATIENCE_S = 30.0
FIRST_PATIENCE_S, LAST_PATIENCE_S = 240.0, 900.0


@dataclass(frozen=True, slots=True)
class Context:
    """What all pods of one LlamaServer share this tick."""

    objective: Objective
    limits: Limits
    model: StepModel | None
    relief: float
    seed: Learned | None
    peers: Sequence[int]
    """Caps of the other pods, for one that has none yet."""
    now: float

    @property
    def acting(self) -> bool:
        return self.limits.tuning is TuningMode.AUTO and not self.limits.suspended


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod as diagnosis and the slow loop see it. Sequences per engine unless said otherwise."""

    name: str
    window: Window
    settable: bool
    cap: int | None
    best: int | None
    low: int
    high: int | None
    kv_ceiling: float | None
    kv: kv.KvState
    running: int
    limited: bool
    draining: bool
    predictor: Predictor | None
    record: Record | None
    recent: tuple[Record, ...]
    """The pod's records of the last RECENT_S."""

    @property
    def engines(self) -> int:
        return len(self.window.last.engines)


def settable(sample: Sample) -> bool:
    """Whether this pod's cap can be written now."""
    return sample.writable and all(
        e.live_cap == "" and e.max_num_active_seqs is not None and e.max_num_seqs is not None
        for e in sample.engines
    )


def bounds(limits: Limits, sample: Sample) -> tuple[int, int | None]:
    """Smallest and largest cap allowed per engine; the latter None when the pod does not tell its ceiling."""
    ceilings = [e.max_num_seqs for e in sample.engines if e.max_num_seqs is not None]
    if not ceilings:
        return limits.cap_min, limits.cap_max
    high = min(min(ceilings), limits.cap_max if limits.cap_max is not None else min(ceilings))
    return min(limits.cap_min, high), high


def in_force(sample: Sample) -> int | None:
    """The cap the pod's engines run with; the lowest where they differ, None when they do not say."""
    caps = [e.max_num_active_seqs for e in sample.engines if e.max_num_active_seqs is not None]
    return min(caps, default=None)


def without_window(
    ctx: Context, pod: PodState | None, nothing: NoWindow
) -> tuple[PodState | None, Setpoint | None]:
    """A pod that told nothing new: hold. Its known cap is applied again if it can be reached at all."""
    sample = nothing.last
    if sample is None:
        return pod, None
    if pod is None or pod.incarnation != sample.incarnation:
        pod = _born(ctx, pod, sample)
    unreachable = nothing.why in (Unusable.UNREACHABLE, Unusable.ENGINE_SILENT)
    if not (ctx.acting and settable(sample)):
        return pod, None
    if pod.cap is None:
        pod = replace(pod, cap=_first_cap(ctx, pod, sample), changed_at=ctx.now)
    return pod, None if unreachable else _within(ctx, sample, pod.cap)


def with_window(
    ctx: Context, pod: PodState | None, window: Window
) -> tuple[PodState, Setpoint | None, PodFacts, tuple[Verdict, ...]]:
    """A pod with a usable window: learn, look, move."""
    sample = window.last
    if pod is None or pod.incarnation != sample.incarnation:
        pod = _born(ctx, pod, sample)
    asked = (ctx.objective.itl_s, ctx.objective.itl_statistic.value)
    if pod.asked != asked:
        pod = replace(_fresh(pod), asked=asked, dispersion=1.0)
    can = settable(sample)
    if can and (not ctx.acting or pod.cap is None):
        cap = in_force(sample) if not ctx.acting else _first_cap(ctx, pod, sample)
        pod = replace(pod, cap=cap, changed_at=pod.changed_at if not ctx.acting else ctx.now)
    running = max(e.running for e in sample.engines)
    applied = pod.cap is not None and running <= pod.cap + 1 and pod.cap == in_force(sample)
    record = record_of(window)
    pod = _learn(ctx, pod, window, record, applied and ctx.acting)
    predictor = _predictor(ctx, pod)
    if not can or pod.cap is None:
        return pod, None, _facts(ctx, pod, window, predictor, record, None, can), ()
    view = _view(ctx, pod, window, predictor)
    result = move(view)
    facts = _facts(ctx, pod, window, predictor, record, (view, result), can)
    pod = _moved(pod, result, ctx)
    return pod, Setpoint(pod.cap) if ctx.acting else None, facts, result.trail


def _born(ctx: Context, before: PodState | None, sample: Sample) -> PodState:
    """A new life of the engine: what was learned stays, what was measured of the old process goes."""
    if before is not None:
        return replace(
            before,
            incarnation=sample.incarnation,
            history=History(archive=before.history.archive),
            kv=replace(before.kv, generations=0.0, footprint=None, preempted=0.0),
        )
    seed = ctx.seed
    known = kv.KvState() if seed is None else seed.kv()
    return PodState(sample.incarnation, kv=known, context=0.0 if seed is None else seed.context)


def _within(ctx: Context, sample: Sample, cap: int | None) -> Setpoint | None:
    if cap is None:
        return None
    low, high = bounds(ctx.limits, sample)
    return Setpoint(max(low, cap if high is None else min(cap, high)))


def _first_cap(ctx: Context, pod: PodState, sample: Sample) -> int | None:
    """The first cap of a pod never set by this operator: its peers' present one, else what an earlier
    operator learned, else a slow start, which is never below what already runs.
    """
    low, high = bounds(ctx.limits, sample)
    if high is None:
        return None
    fits = kv.ceiling(pod.kv, sample)
    most = high if fits is None else max(low, min(high, math.floor(fits)))
    leased = any(e.lease_expires_in_s is not None for e in sample.engines)
    objective, seed = ctx.objective, ctx.seed
    if ctx.peers:
        return max(low, min(most, sorted(ctx.peers)[len(ctx.peers) // 2]))
    if seed is not None and (known := _from_seed(objective, seed)) is not None:
        return max(low, min(most, known))
    if leased:
        return in_force(sample)
    busy = max(e.running for e in sample.engines)
    # Without a latency to protect, start high; not at the top, for a batch that never moves teaches nothing.
    least = SLOW_START_SEQS if objective.itl_s is not None else max(SLOW_START_SEQS, most // 2)
    return max(low, min(most, max(least, busy)))


def _from_seed(objective: Objective, seed: Learned) -> int | None:
    """The cap an earlier operator found, or the one its model gives for a target that has changed since."""
    target, quantile = objective.itl_s or 0.0, QUANTILES.get(objective.itl_statistic, 0.0)
    same = math.isclose(seed.target_s, target, rel_tol=1e-6) and (seed.quantile == quantile or target == 0.0)
    if seed.cap >= 1.0 and same:
        return int(seed.cap)
    if target == 0.0:
        return None
    slope = seed.model().mean_slope_s(seed.context, seed.prefill, seed.mixed)
    if slope <= 0.0 or seed.context <= 0.0:
        return None
    kappa = seed.kappa if seed.quantile == quantile else max(1.0, seed.kappa)
    return max(1, math.floor((MARGIN * target / kappa - seed.a_s) / slope))


def _learn(ctx: Context, pod: PodState, w: Window, record: Record | None, applied: bool) -> PodState:
    state = kv.observe(pod.kv, w, applied, ctx.now)
    if record is None:
        return replace(pod, kv=state)
    weight = 1.0 - math.exp(-w.dt / CONTEXT_MEMORY_S)
    if record.context > pod.context:
        weight = min(1.0, 2.0 * weight)
    context = record.context if pod.context <= 0.0 else pod.context + weight * (record.context - pod.context)
    before = _predictor(ctx, pod)
    dispersion = pod.dispersion if before is None else before.dispersed(record)
    history = remember(pod.history, record)
    return replace(pod, kv=state, context=context, dispersion=dispersion, history=history)


def _predictor(ctx: Context, pod: PodState) -> Predictor | None:
    if ctx.objective.itl_s is None or ctx.model is None or not pod.history.recent:
        return None
    quantile = QUANTILES.get(ctx.objective.itl_statistic)
    target_s = ctx.objective.itl_s * ctx.relief
    return Predictor(ctx.model, pod.history.all, pod.context, target_s, quantile, pod.dispersion)


def load_of(history: History) -> tuple[float, float]:
    """Prefill tokens, and prefill-carrying steps, per decoded token over the history."""
    records = history.all
    tokens = sum(r.tokens for r in records)
    if tokens <= 0.0:
        return 0.0, 0.0
    return (
        sum(r.prefill * r.tokens for r in records) / tokens,
        sum(r.mixed * r.tokens for r in records) / tokens,
    )


def _view(ctx: Context, pod: PodState, w: Window, predictor: Predictor | None) -> View:
    sample = w.last
    low, high = bounds(ctx.limits, sample)
    assert high is not None and pod.cap is not None
    prefill, mixed = load_of(pod.history)
    seen = pod.kv.preempted_at
    return View(
        itl_wanted=ctx.objective.itl_s is not None,
        predictor=predictor,
        model=ctx.model,
        history=pod.history,
        context=pod.context,
        prefill=prefill,
        mixed=mixed,
        kv=kv.ceiling(pod.kv, sample),
        preempted=seen is not None and ctx.now - seen < NO_RAISE_AFTER_PREEMPTION_S,
        low=low,
        high=high,
        cap=pod.cap,
        running=max(e.running for e in sample.engines),
        waiting=max(_held_back(e) for e in sample.engines),
        now=ctx.now,
        tick_s=w.dt,
        changed_at=pod.changed_at,
        cut_at=pod.cut_at,
        patience_s=pod.patience_s,
        failed=pod.failed if ctx.now < pod.failed_until else None,
    )


def _held_back(engine: EngineState) -> int:
    """Requests waiting for room, leaving out those that wait for something else than the scheduler."""
    return max(0, engine.waiting - engine.waiting_deferred)


def _moved(pod: PodState, result: Move, ctx: Context) -> PodState:
    """The pod after the move. A raise that is soon taken back makes the next one wait, longer each time."""
    now, before = ctx.now, pod.cap
    assert before is not None
    pod = replace(pod, best=result.best)
    if result.shifted:
        pod = replace(_fresh(pod), history=forget_archive(pod.history))
    if not ctx.acting or result.cap == before:
        return pod
    if result.cap > before:
        return replace(pod, cap=result.cap, changed_at=now, raised_at=now)
    patience = pod.patience_s
    breach = next((v for v in result.trail if v.rule == "Breach" and v.fired), None)
    if breach is not None and "undisturbed" in breach.evidence:
        # Not the cap's fault: it may be tried again when the disturbance has passed.
        return replace(
            pod, cap=result.cap, changed_at=now, cut_at=now, patience_s=max(patience, DISTURBED_PATIENCE_S)
        )
    if now - pod.raised_at < REVERSAL_S:
        patience = min(LAST_PATIENCE_S, max(FIRST_PATIENCE_S, 4.0 * patience))
    pod = replace(pod, cap=result.cap, changed_at=now, cut_at=now, patience_s=patience)
    if breach is None:
        return pod
    known = pod.failed if pod.failed is not None and now < pod.failed_until else before
    seconds = sum(r.seconds for r in pod.history.all)
    return replace(pod, failed=min(known, before), failed_until=now + min(FAILED_S, FAILED_WORTH * seconds))


def _fresh(pod: PodState) -> PodState:
    """For when load or objective have changed: old failures say nothing any more."""
    return replace(pod, patience_s=0.0, failed=None, failed_until=-math.inf)


def _facts(
    ctx: Context,
    pod: PodState,
    w: Window,
    predictor: Predictor | None,
    record: Record | None,
    moved: tuple[View, Move] | None,
    can: bool,
) -> PodFacts:
    low, high = bounds(ctx.limits, w.last)
    view, result = moved if moved is not None else (None, None)
    running = max(e.running for e in w.last.engines)
    cap = pod.cap if result is None else result.cap
    return PodFacts(
        name=w.pod,
        window=w,
        settable=can,
        cap=cap if cap is not None else in_force(w.last),
        best=None if result is None else result.best,
        low=low,
        high=high,
        kv_ceiling=kv.ceiling(pod.kv, w.last),
        kv=pod.kv,
        running=running,
        limited=view.limited if view is not None else False,
        draining=view.draining if view is not None else False,
        predictor=predictor,
        record=record,
        recent=pod.history.recent,
    )
