"""One pod, one tick: from its window to its state, its cap, and what the other rules want to know of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from llamaserver.control import answers, kv
from llamaserver.control.cap import (
    FORECAST_PATIENCE_S,
    NO_RAISE_AFTER_PREEMPTION_S,
    Move,
    View,
)
from llamaserver.control.context import Context, bounds, budget_range, in_force, settable
from llamaserver.control.first import begun, first_kappa
from llamaserver.control.history import History, Record, forget_archive, record_of, remember
from llamaserver.control.knobs import advised, move, rare
from llamaserver.control.model import StepModel
from llamaserver.control.objective import QUANTILES, Predictor
from llamaserver.control.state import PodState
from llamaserver.control.types import Setpoint, Verdict
from llamaserver.observe.types import NoWindow, Sample, Unusable, Window

CONTEXT_MEMORY_S = 12.0
REVERSAL_S = 120.0
"""A raise that is taken back within this time makes the next one wait."""
FAILED_S, FAILED_WORTH = 600.0, 4.0
"""A cap that failed is left alone for so many times the seconds of evidence against it, up to FAILED_S."""
DISTURBED_PATIENCE_S = 30.0
FIRST_PATIENCE_S, LAST_PATIENCE_S = 240.0, 900.0
SHARES_PATIENCE_S = 120.0
"""How long no raise is tried after a cut that left prefill its share, and twice as long after each further
one. A change of the load ends it, and so does a tail that has become CALMER.
"""
CALMER = 0.9
RARE_S = 60.0
"""Prompts have to be rare for so long before the prefill budget is given back."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the sequences of a pod are like."""

    context: float
    """Resident tokens per decoding sequence."""
    prefill: float
    """Prefill tokens per decoded token."""
    mixed: float
    """Prefill-carrying steps per decoded token."""

    def tokens_per_s(self, model: StepModel, sequences: float) -> float:
        """Decoded tokens per second of an engine that runs so many sequences and replaces those that end."""
        step_s = model.decode_s(sequences, self.context) + model.d_s * self.prefill * sequences
        return sequences / (step_s + model.c_s * min(1.0, self.mixed * sequences))


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
    budget: int | None
    """The prefill budget wanted beside the cap; None where it stays at the engine's start value."""
    advised: Setpoint | None
    """Both knobs for an engine that is only looked at; None where the cap alone does as well."""
    work: Work | None
    """None while no sequence was seen."""
    raised_at: float = -math.inf
    """When its cap was raised last."""

    @property
    def recommended(self) -> Setpoint | None:
        """What to run an engine with that is only looked at; None while nothing is known."""
        return self.advised or (None if self.best is None else Setpoint(self.best))

    @property
    def engines(self) -> int:
        return len(self.window.last.engines)


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
        pod = begun(ctx, pod, sample)
    return pod, None if unreachable else _within(ctx, sample, pod)


def with_window(
    ctx: Context, pod: PodState | None, window: Window
) -> tuple[PodState, Setpoint | None, PodFacts, tuple[Verdict, ...]]:
    """A pod with a usable window: learn, look, move."""
    sample = window.last
    if pod is None or pod.incarnation != sample.incarnation:
        pod = _born(ctx, pod, sample)
    asked = ctx.asked
    if pod.asked != asked:
        pod = replace(_fresh(pod), asked=asked, dispersion=1.0, tail=None, kappa=None)
    can = settable(sample)
    if can and (not ctx.acting or pod.cap is None):
        pod = begun(ctx, pod, sample) if ctx.acting else replace(pod, cap=in_force(sample), budget=None)
    running = max(e.running for e in sample.engines)
    applied = pod.cap is not None and running <= pod.cap + 1 and pod.cap == in_force(sample)
    record = record_of(window)
    pod = _answered(ctx, _learn(ctx, pod, window, record, applied and ctx.acting), window)
    pod = replace(pod, budget=_takes(ctx, pod.budget, sample, can), rare_since=_rare_since(ctx, pod, sample))
    predictor = _predictor(ctx, pod)
    if not can or pod.cap is None:
        return pod, None, _facts(ctx, pod, window, predictor, record, None, can), ()
    view = _view(ctx, pod, window, predictor)
    pod = replace(pod, advised=None if ctx.acting else advised(view, pod.advised))
    result = move(view)
    if predictor is None and ctx.of_a_tail:
        result = replace(result, budget=pod.budget)  # nothing was measured that could speak against it
    facts = _facts(ctx, pod, window, predictor, record, (view, result), can)
    pod = _moved(pod, view, result, ctx, kv.changed(pod.kv, sample))
    return pod, Setpoint(pod.cap, pod.budget) if ctx.acting else None, facts, result.trail


def _born(ctx: Context, before: PodState | None, sample: Sample) -> PodState:
    """A new life of the engine: what was learned stays, what was measured of the old process goes."""
    if before is not None:
        return replace(
            before,
            incarnation=sample.incarnation,
            history=History(archive=before.history.archive),
            answers=replace(before.answers, spans=()),
            kv=replace(before.kv, generations=0.0, footprint=None, preempted=0.0, held=0.0),
        )
    seed = ctx.seed
    known, context = (kv.KvState(), 0.0) if seed is None else (seed.kv(), seed.context)
    return PodState(sample.incarnation, kv=known, context=context, usual_context=context)


def _within(ctx: Context, sample: Sample, pod: PodState) -> Setpoint | None:
    if pod.cap is None:
        return None
    low, high = bounds(ctx.limits, sample)
    cap, takes = max(low, pod.cap if high is None else min(pod.cap, high)), budget_range(ctx.limits, sample)
    if pod.budget is None or takes is None:
        return Setpoint(cap)
    return Setpoint(cap, takes.of(cap, takes.chunk(pod.cap, pod.budget)))


def _takes(ctx: Context, budget: int | None, sample: Sample, can: bool) -> int | None:
    """The budget, where this engine can still be given it. One that can be given nothing for now, for its
    tuner does not answer, says nothing about it: it is kept like the cap, and given when the tuner is back.
    """
    return budget if not can or budget_range(ctx.limits, sample) is not None else None


def _rare_since(ctx: Context, pod: PodState, sample: Sample) -> float | None:
    """Since when prompts are too rare for the percentile to see them; None while they are not."""
    if pod.cap is None:
        return None
    takes, output = budget_range(ctx.limits, sample), pod.kv.output
    prompt = load_of(pod.history)[0] * (output or 0.0)
    steps = 1.0 if takes is None else max(1.0, prompt / takes.start)
    if not rare(pod.cap, output, ctx.quantile, steps):
        return None
    return ctx.now if pod.rare_since is None else pod.rare_since


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
    return replace(
        pod,
        kv=state,
        context=context,
        usual_context=_usual_context(pod.usual_context, record, w),
        dispersion=dispersion,
        history=history,
    )


def _answered(ctx: Context, pod: PodState, w: Window) -> PodState:
    """The pod with the requests that have finished, and what they say of kappa."""
    if not ctx.objective.of_requests or ctx.objective.itl_s is None:
        return pod
    which, output = ctx.objective.itl_statistic, pod.kv.output
    pod = replace(pod, answers=answers.follow(pod.answers, w, output))
    if not pod.history.recent:
        return pod
    first = first_kappa(ctx, pod)
    if first is None:
        first = answers.bound(pod.history.all, which, output)
    found = answers.kappa(pod.answers, which, first)
    held = pod.kappa is not None and abs(found - pod.kappa) <= answers.HELD * pod.kappa
    return pod if held else replace(pod, kappa=found)


def _usual_context(before: float, record: Record, w: Window) -> float:
    """Resident tokens per sequence, followed as fast as those that run are replaced: few sequences of very
    different lengths scatter much, and each generation anew.
    """
    if before <= 0.0:
        return record.context
    replaced = w.dt / CONTEXT_MEMORY_S if w.finished is None else w.finished / max(1, w.running)
    return before + (1.0 - math.exp(-replaced)) * (record.context - before)


def _predictor(ctx: Context, pod: PodState) -> Predictor | None:
    if ctx.objective.itl_s is None or ctx.model is None or not pod.history.recent:
        return None
    target_s = ctx.objective.itl_s * ctx.relief
    if ctx.objective.of_requests:
        kappa = pod.kappa or 1.0
        return Predictor(
            ctx.model, pod.history.all, pod.context, target_s / kappa, None, pod.dispersion, kappa
        )
    quantile = QUANTILES.get(ctx.objective.itl_statistic)
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
        acting=ctx.acting,
        itl_wanted=ctx.objective.itl_s is not None,
        predictor=predictor,
        model=ctx.model,
        history=pod.history,
        context=pod.context,
        usual_context=pod.usual_context,
        prefill=prefill,
        mixed=mixed,
        prompt_cv=kv.prompt_cv(pod.kv),
        kv=kv.ceiling(pod.kv, sample),
        preempted=seen is not None and ctx.now - seen < NO_RAISE_AFTER_PREEMPTION_S,
        low=low,
        high=high,
        cap=pod.cap,
        running=max(e.running for e in sample.engines),
        waiting=max(e.waiting_for_room for e in sample.engines),
        now=ctx.now,
        tick_s=w.dt,
        changed_at=pod.changed_at,
        cut_at=pod.cut_at,
        patience_s=pod.patience_s,
        before_kv=pod.before_kv,
        failed=pod.failed if ctx.now < pod.failed_until else None,
        budgets=budget_range(ctx.limits, sample),
        budget=pod.budget,
        tail=pod.tail,
        calmer=pod.tail is not None and pod.cut_tail is not None and pod.tail < CALMER * pod.cut_tail,
        rare=pod.rare_since is not None and ctx.now - pod.rare_since >= RARE_S,
        of_tail=ctx.of_a_tail,
        of_requests=ctx.objective.of_requests,
        answered=answers.known(pod.answers, ctx.objective.itl_statistic),
    )


def _moved(pod: PodState, view: View, result: Move, ctx: Context, other_lengths: bool) -> PodState:
    """The pod after the move. A raise that is soon taken back makes the next one wait, longer each time.

    With requests of `other_lengths` the cache holds another number of them, which speaks against no raise;
    nor does a forecast that wavers, as long as nobody is preempted.
    """
    now, before = ctx.now, pod.cap
    assert before is not None
    if any(v.rule == "Shares" and v.fired for v in result.trail):
        pod = replace(pod, cut_tail=result.tail)
    pod = replace(pod, best=result.best, tail=result.tail if result.tail is not None else pod.tail)
    if ctx.acting:
        other = (result.budget is None) != (pod.budget is None)
        pod = replace(pod, budget=result.budget)
        if other:  # answers are another kind of uneven where prefill is spread
            pod = replace(pod, answers=answers.doubted(pod.answers, ctx.objective.itl_statistic))
    if result.shifted:
        doubted = answers.doubted(pod.answers, ctx.objective.itl_statistic)
        pod = replace(_fresh(pod), history=forget_archive(pod.history), answers=doubted)
    if not ctx.acting or result.cap == before:
        return pod
    if result.cap > before:
        return replace(pod, cap=result.cap, changed_at=now, raised_at=now, before_kv=None)
    patience, taken_back = pod.patience_s, pod.raised_at > pod.cut_at
    memory = any(v.rule == "KVCeiling" and v.fired for v in result.trail)
    pod = replace(pod, before_kv=max(before, pod.before_kv or 0) if memory else None)
    if memory and other_lengths:
        return replace(_fresh(pod), cap=result.cap, changed_at=now, cut_at=now, raised_at=-math.inf)
    breach = next((v for v in result.trail if v.rule == "Breach" and v.fired), None)
    if any(v.fired and "undisturbed" in v.evidence for v in result.trail):
        # Not the cap's fault: it may be tried again when the disturbance has passed.
        return replace(
            pod, cap=result.cap, changed_at=now, cut_at=now, patience_s=max(patience, DISTURBED_PATIENCE_S)
        )
    if memory and not view.preempted:
        again = 2.0 * patience if taken_back and now - pod.raised_at < REVERSAL_S else patience
        patience = min(LAST_PATIENCE_S, max(again, FORECAST_PATIENCE_S))
        return replace(pod, cap=result.cap, changed_at=now, cut_at=now, patience_s=patience)
    if any(v.rule == "Shares" and v.fired for v in result.trail):
        patience = min(LAST_PATIENCE_S, max(SHARES_PATIENCE_S, 2.0 * patience if taken_back else patience))
    if taken_back and now - pod.raised_at < REVERSAL_S:
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
        budget=None if result is None else result.budget,
        advised=pod.advised,
        work=Work(pod.context, *load_of(pod.history)) if pod.context > 0.0 else None,
        raised_at=pod.raised_at,
    )
