"""The cause that is about prefill: prompts mixed into steps make the tail, or keep the cap low."""

from __future__ import annotations

from llamaserver.control.causes.finding import Finding
from llamaserver.control.context import budget_obstacle
from llamaserver.control.facts import Facts
from llamaserver.control.objective import MARGIN, Predictor
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import DemandState
from llamaserver.control.types import Cause
from llamaserver.control.wording import ms

CRIPPLED = 4.0
"""Decode steps alone would allow so many times the cap that prefill leaves."""


def prefill_interference(facts: Facts, _: DemandState) -> Finding | str:
    """Prefill-carrying steps alone break a percentile that decode steps would hold, or cripple the cap."""
    for pod in facts.keeping_up:
        p, record = pod.predictor, pod.record
        if p is None or p.quantile is None or record is None or pod.best is None:
            continue
        if pod.budget is not None and not _gives_out(pod, p):
            continue  # the budget keeps prefill to what the target leaves it
        decode = p.model.decode_s(record.batch, record.context)
        if decode > 0.9 * p.target_s or p.over(pod.recent).from_prefill() < 0.5:
            continue
        tail = record.share >= 1.0 - p.quantile
        if tail and misses(p, pod.low):
            return _interference(facts, pod, p, decode, "No cap alone holds the objective.")
        if tail and facts.missed and pod.running <= pod.best:
            return _interference(facts, pod, p, decode, "A lower cap would cost throughput.")
        alone = without_prefill(pod)
        if alone is not None and alone >= CRIPPLED * pod.best and pod.limited:
            tail_told = f"They keep the cap at {pod.best}; decoding alone would allow {int(alone)}."
            return _interference(facts, pod, p, decode, tail_told)
    return "the tail is not made by prefill, or the objective holds"


def _gives_out(pod: PodFacts, p: Predictor) -> bool:
    """Whether even the smallest prefill budget beside the lowest cap misses the objective."""
    return pod.cap == pod.low and misses(p, pod.low)


def misses(p: Predictor, low: int) -> bool:
    return p.figure(low).ratio > 1.0


def without_prefill(pod: PodFacts) -> float | None:
    """The cap that decode steps alone would allow, within ceiling and cache; None while unknown, and where
    the prefill budget already makes the room.
    """
    p = pod.predictor
    if p is None or p.quantile is None or pod.high is None or p.model.slope_s(p.context) <= 0.0:
        return None
    if pod.budget is not None:
        return None
    alone = (MARGIN * p.target_s - p.model.a_s) / p.model.slope_s(p.context)
    return min(alone, float(pod.high), pod.kv_ceiling if pod.kv_ceiling is not None else alone)


def _interference(facts: Facts, pod: PodFacts, p: Predictor, decode: float, told: str) -> Finding:
    record, model, target = pod.record, p.model, p.target_s
    assert record is not None
    room_s = MARGIN * target - decode - max(0.0, model.c_s)
    budget = int(record.batch + room_s / max(1e-12, model.d_s))
    evidence: dict[str, float | int | str] = {
        "pod": pod.name,
        "prefill_share": round(record.share, 3),
        "decode_step_ms": ms(decode),
        "target_ms": ms(target),
        "budget": budget,
    }
    ceiling = pod.high if pod.high is not None else int(record.batch)
    if budget_kept(facts, pod):
        advice = "Set spec.tuning.prefillBudget: Auto: this engine's budget can be moved while it runs."
    elif room_s > 0.0 and budget >= (pod.window.last.engines[0].min_num_scheduled_tokens or 1):
        advice = (
            f"Set engine.maxNumBatchedTokens to about {max(16, budget // 16 * 16)}, so that a step's "
            f"prefill takes at most {ms(room_s)} ms (it must not be below engine.maxNumSeqs, now "
            f"{ceiling}), or put prefill on other pods."
        )
    else:
        advice = (
            "Decode steps leave no room for prefill at this target: relax it, or put prefill on other pods."
        )
    if word := budget_obstacle(pod.window.last):
        advice += f" The budget cannot be moved live here: {word}."
    share = f": {100 * record.share:.0f} % of its tokens come from them" if record.share > 0.0 else ""
    message = (
        f"Steps that carry prefill break the {_percentile(p)} of {pod.name}{share}. Steps that only decode "
        f"take {ms(decode)} ms, against a target of {ms(target)} ms. {told}"
    )
    return Finding(Cause.PREFILL_INTERFERENCE, message, advice, evidence)


def budget_kept(facts: Facts, pod: PodFacts) -> bool:
    """Whether the prefill budget could be moved and only the user's word keeps it where it is."""
    live = all(e.live_budget == "" for e in pod.window.last.engines)
    return live and not facts.limits.budget_moves


def _percentile(p: Predictor) -> str:
    return f"p{100 * (p.quantile or 0.0):.0f}"


def more_room(facts: Facts, otherwise: str) -> str:
    """Where prefill is what keeps the cap low, smaller prefill chunks are the cheaper way to capacity."""
    for pod in facts.pods:
        alone = without_prefill(pod)
        if alone is not None and pod.best is not None and alone >= 1.5 * pod.best:
            cure = (
                "spec.tuning.prefillBudget: Auto"
                if budget_kept(facts, pod)
                else "a smaller engine.maxNumBatchedTokens"
            )
            hint = (
                f"Steps that carry prefill keep the cap at {pod.best}; decoding alone would allow "
                f"{int(alone)}: {cure} makes room without another replica."
            )
            return f"{hint} {otherwise}".strip()
    return otherwise
