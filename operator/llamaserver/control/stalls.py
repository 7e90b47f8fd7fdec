"""Engines that hang: they answered just now, have work, and have not got on for longer than any step takes.

A step is the unit, for between two steps every engine says something new, also in the middle of a prompt of
any length. How long the longest step may take is known from the step model as soon as there is one: a full
batch, a full KV cache and a whole prefill budget; without chunked prefill a whole prompt.
"""

from __future__ import annotations

from llamaserver.control.facts import Facts
from llamaserver.control.model import StepModel
from llamaserver.control.types import StalledEngine
from llamaserver.observe.types import EngineState, Sample, Still

GRACE_S = 120.0
"""Even where steps are short: a first request may have kernels compiled that no warm-up has met."""
LONGEST_GRACE_S = 3600.0
STEPS = 4.0
"""So many times the longest step that the model foretells. It was learned from shorter ones, and attention
within a chunk grows with its square.
"""
_WHOLE_PROMPTS = "ChunkedPrefillOff"


def stalled_engines(facts: Facts) -> tuple[StalledEngine, ...]:
    """One for each pod whose engine hangs, the longest first."""
    told = [(window.pod, window.still, window.last) for window in (p.window for p in facts.pods)]
    told_nothing = [(nothing.pod, nothing.still, nothing.last) for nothing in facts.blind]
    found = [
        _judged(pod, still, last, grace_s(facts.model, last))
        for pod, still, last in (*told, *told_nothing)
        if still is not None
    ]
    hang = [engine for engine in found if engine.still_s >= engine.grace_s]
    return tuple(sorted(hang, key=lambda engine: (-engine.still_s, engine.pod)))


def moving(facts: Facts) -> frozenset[str]:
    """Pods of which two answers show that no engine of theirs stands still in front of work."""
    return frozenset(pod.window.pod for pod in facts.pods if pod.window.still is None)


def grace_s(model: StepModel | None, sample: Sample | None) -> float:
    """Seconds that an engine may stand still without being taken for one that hangs."""
    if model is None or sample is None:
        return GRACE_S
    longest = max((_longest_step_s(model, engine) for engine in sample.engines), default=0.0)
    return min(max(GRACE_S, STEPS * longest), LONGEST_GRACE_S)


def _longest_step_s(model: StepModel, engine: EngineState) -> float:
    token_s, carrying_s = model.prefill_at_most()
    prompt = engine.max_num_batched_tokens or 0
    if engine.live_budget == _WHOLE_PROMPTS:
        prompt = max(prompt, engine.max_model_len or 0)
    decode = model.a_s + model.b_s * (engine.max_num_seqs or 0) + model.g_s * (engine.kv_capacity_tokens or 0)
    return decode + max(0.0, token_s) * prompt + max(0.0, carrying_s)


def _judged(pod: str, still: Still, last: Sample | None, grace: float) -> StalledEngine:
    several = last is not None and len(last.engines) > 1
    return StalledEngine(
        pod=pod,
        incarnation=still.incarnation,
        still_s=still.until - still.since,
        grace_s=grace,
        answers=still.answers,
        running=still.running,
        waiting=still.waiting,
        silent=still.silent,
        doubt=still.doubt,
        witnessed=still.witnessed,
        engine=still.engine if several and not still.silent else None,
    )
