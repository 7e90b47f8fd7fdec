"""Causes that are about latency: out of reach, held up from outside, or the batch is too large."""

from __future__ import annotations

from llamaserver.control import kv
from llamaserver.control.causes.finding import Finding
from llamaserver.control.causes.prefill import misses, more_room
from llamaserver.control.facts import Facts
from llamaserver.control.objective import MARGIN
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import DemandState
from llamaserver.control.types import Cause
from llamaserver.control.wording import ms, ms_at_least, reachable_s


def infeasible(facts: Facts, _: DemandState) -> Finding | str:
    if facts.observed.itl_s is None:
        return "no latency was measured lately; what was learned before is no finding of today"
    for pod in facts.keeping_up:
        p, model, target = pod.predictor, facts.model, facts.objective.itl_s
        if p is None or model is None or target is None or not model.trusted(p.context):
            continue
        if not misses(p, pod.low) or p.figure(pod.low, -2.0).ratio <= 1.0:
            continue
        if p.quantile is not None and model.decode_s(pod.low, p.context) <= 0.9 * p.target_s:
            continue  # the steps would do; what breaks the tail is another cause
        single, least = model.decode_s(1.0, p.context), ms_at_least(p.kappa * reachable_s(p, pod.low))
        return Finding(
            Cause.SLO_INFEASIBLE,
            f"Even {pod.low} sequence{'s' if pod.low > 1 else ''} at a time would miss the target of "
            f"{ms(target)} ms: a step with one sequence takes {ms(single)} ms. The smallest target within "
            f"reach is {least} ms. More replicas do not help.",
            f"Set slo.interTokenLatency.target to {least}ms or more, or use a faster accelerator, tensor "
            "parallelism, quantisation or a smaller model.",
            {
                "pod": pod.name,
                "itl_of_one_ms": ms(single),
                "reachable_ms": least,
                "target_ms": ms(target),
            },
        )
    return "the objective is within reach, or the model is not sure"


def disturbed(facts: Facts, _: DemandState) -> Finding | str:
    """A percentile missed by steps that are slow for no reason in the engine."""
    for pod in facts.keeping_up:
        p, record = pod.predictor, pod.record
        if not facts.missed or p is None or p.quantile is None or record is None or pod.high is None:
            continue
        recent = p.over(pod.recent)
        enough = recent.undisturbed(pod.low, pod.high)
        beyond = recent.figure(record.batch).ratio * (1.0 - p.quantile)
        if (
            enough is None
            or pod.running > enough
            or beyond <= 1.0 - p.quantile
            or recent.from_prefill() >= 0.5
        ):
            continue
        decode = p.model.decode_s(record.batch, record.context)
        if decode > 0.9 * p.target_s:
            continue
        return Finding(
            Cause.DISTURBED,
            f"{100 * beyond:.0f} % of {pod.name}'s tokens take longer than {ms(p.target_s)} ms, although a "
            f"step of {pod.running} sequences takes {ms(decode)} ms: something outside of the engine holds "
            "its steps up. Fewer sequences would not help, so the cap is not cut for it.",
            "Look for neighbours on the node, CPU limits that throttle, and clocks that were lowered; give "
            "the pod processors and accelerators of its own.",
            {
                "pod": pod.name,
                "beyond": round(beyond, 3),
                "decode_step_ms": ms(decode),
                "target_ms": ms(p.target_s),
                "running": pod.running,
            },
        )
    return "the tail is what batch and prefill make it, or the objective holds"


def over_batched(facts: Facts, _: DemandState) -> Finding | str:
    if not facts.missed:
        return "the latency objective holds, or none is declared"
    target = facts.objective.itl_s or 0.0
    seen = facts.observed.itl_s or 0.0
    for pod in facts.keeping_up:
        best = pod.best if pod.best is not None else _best_by_mean(facts, pod, seen)
        if best is not None and pod.running <= best and not pod.draining:
            continue
        told = f"about {best}" if best is not None else "fewer"
        drain = " Running sequences finish first, then the latency follows." if pod.draining else ""
        manual = more_room(facts, "") if pod.settable else f"Set engine.maxNumSeqs to {told}."
        return Finding(
            Cause.OVER_BATCHED,
            f"{pod.name} runs {pod.running} sequences at once, and {told} hold the objective: "
            f"{facts.objective.itl_named} is {ms(seen)} ms against {ms(target)} ms.{drain}",
            manual,
            {
                "pod": pod.name,
                "running": pod.running,
                "cap": pod.cap if pod.cap is not None else "unknown",
                "fitting": best if best is not None else "unknown",
                "itl_ms": ms(seen),
                "target_ms": ms(target),
            },
        )
    return "the objective is missed, but no pod runs more than it should: a passing disturbance"


def _best_by_mean(facts: Facts, pod: PodFacts, seen: float) -> int | None:
    """Without exact figures: the batch at which the mean, scaled by today's statistic over mean, meets the
    target.
    """
    model, target, mean = facts.model, facts.objective.itl_s, facts.observed.itl_mean_s
    capacity = kv.capacity_tokens(pod.window.last)
    if model is None or target is None or not mean or seen <= 0.0 or not pod.window.running:
        return None
    context = pod.window.kv_usage * (capacity or 0) * pod.engines / pod.window.running
    slope = model.slope_s(context)
    if slope <= 0.0 or not model.trusted(context):
        return None
    return max(1, int((MARGIN * target * mean / seen - model.a_s) / slope))
