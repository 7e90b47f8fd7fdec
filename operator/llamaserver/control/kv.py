"""How many sequences the KV cache holds without preempting.

A running sequence occupies its prompt and what it has generated so far. With M of them at random points of
their lives the cache needs M psi on average, psi being the mean footprint, and scatters around it with about
half a footprint per sequence; two standard deviations of room give  M psi (1 + 0.8/sqrt(M)) <= C, solved for
M.

psi is measured (used tokens / running). Right after a burst all sequences are young and the measurement is
too small, so until two generations have passed the forecast prompt + 0.7 output from the lengths of finished
requests counts too (0.7: long outputs are met more often than short ones). Sharing of prefixes makes the
physical footprint smaller than the logical one; their measured ratio is applied to the forecast.

Preemptions say that the estimate is wrong: each window with some cuts a trust factor, which returns slowly,
and more slowly still beyond the level at which preemptions last began.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from llamaserver.observe.types import Sample, Window

ROOM = 0.8
FORECAST_OUTPUT = 0.7
REQUESTS_REMEMBERED = 64.0
FOOTPRINT_MEMORY_S = 20.0
CUT = 0.95
TOLERATED = 0.05
"""Preemptions per running sequence, fading over PREEMPTION_MEMORY_S, that a busy cache may show."""
PREEMPTION_MEMORY_S = 10.0
TRUST_MIN = 0.3
CLEAN_S = 60.0
RECOVERY_PER_S = 0.005
BEYOND_ONSET_PER_S = 0.01 / 60.0
ONSET_SHARE = 0.97


@dataclass(frozen=True, slots=True)
class KvState:
    """What is known of one pod's use of its KV cache. Lengths in tokens; None while unknown."""

    prompt: float | None = None
    output: float | None = None
    footprint: float | None = None
    """Physical tokens per running sequence."""
    sharing: float = 1.0
    """Physical tokens per logical token."""
    generations: float = 0.0
    """Finished requests per running sequence since the engine was last idle."""
    trust: float = 1.0
    onset: float = 1.0
    preempted_at: float | None = None
    preempted: float = 0.0
    """Preemptions per running sequence, fading over PREEMPTION_MEMORY_S."""


def capacity_tokens(sample: Sample) -> int | None:
    """KV tokens of the pod's smallest engine; None when unknown."""
    known = [e.kv_capacity_tokens for e in sample.engines]
    return None if not known or None in known else min(c for c in known if c is not None)


def expected_footprint(state: KvState) -> float | None:
    """Physical tokens a running sequence takes in the long run; None while nothing is known."""
    forecast = None
    if state.prompt is not None and state.output is not None:
        forecast = state.sharing * (state.prompt + FORECAST_OUTPUT * state.output)
    if state.footprint is None or forecast is None:
        return forecast if state.footprint is None else state.footprint
    settled = min(1.0, state.generations / 2.0)
    return settled * state.footprint + (1.0 - settled) * max(state.footprint, forecast)


def fitting(capacity: float, footprint: float) -> float:
    """The M that solves M psi (1 + ROOM/sqrt(M)) = C."""
    room = capacity / max(1.0, footprint)
    return ((math.sqrt(ROOM * ROOM + 4.0 * room) - ROOM) / 2.0) ** 2


def ceiling(state: KvState, sample: Sample) -> float | None:
    """Sequences per engine that fit, trust included; None while capacity or footprint is unknown."""
    capacity, footprint = capacity_tokens(sample), expected_footprint(state)
    if capacity is None or footprint is None or footprint <= 0.0:
        return None
    return max(1.0, state.trust * fitting(capacity, footprint))


def observe(state: KvState, window: Window, in_force: bool, now: float) -> KvState:
    """The state after one window. Preemptions only speak against a ceiling that is `in_force`: applied, and
    drained.
    """
    return _preemptions(_footprint(_lengths(state, window), window), window, in_force, now)


def _lengths(state: KvState, w: Window) -> KvState:
    if state.prompt is None:
        return _lifetime(state, w.last)
    if not w.finished or w.finished_prompt_tokens is None or w.finished_generation_tokens is None:
        return state
    weight = 1.0 - math.exp(-w.finished / REQUESTS_REMEMBERED)
    output = state.output if state.output is not None else w.finished_generation_tokens / w.finished
    return replace(
        state,
        prompt=state.prompt + weight * (w.finished_prompt_tokens / w.finished - state.prompt),
        output=output + weight * (w.finished_generation_tokens / w.finished - output),
    )


def _lifetime(state: KvState, sample: Sample) -> KvState:
    """Mean lengths over the engine's life, when nothing better is known yet."""
    prompt, output = sample.finished_prompt_tokens, sample.finished_generation_tokens
    if not sample.finished or prompt is None or output is None:
        return state
    return replace(state, prompt=prompt / sample.finished, output=output / sample.finished)


def _footprint(state: KvState, w: Window) -> KvState:
    capacity = capacity_tokens(w.last)
    if capacity is None or w.running == 0:
        return replace(state, generations=0.0) if w.running == 0 else state
    state = replace(state, generations=min(8.0, state.generations + (w.finished or 0) / w.running))
    used = sum(e.kv_usage * (e.kv_capacity_tokens or 0) for e in w.last.engines)
    now = used / w.running
    if now <= 0.0:
        return state
    if state.footprint is None:
        state = replace(state, footprint=now)
    else:
        weight = 1.0 - math.exp(-w.dt / FOOTPRINT_MEMORY_S)
        state = replace(state, footprint=state.footprint + weight * (now - state.footprint))
    decode, mixed = w.decode_steps, w.mixed_steps
    if decode is None or mixed is None or decode.B + mixed.B == 0 or w.running < 4:
        return state
    logical = (decode.K + mixed.K) / (decode.B + mixed.B)
    if logical <= 0.0:
        return state
    ratio = min(1.25, max(0.05, now / logical))
    weight = 1.0 - math.exp(-w.dt / FOOTPRINT_MEMORY_S)
    return replace(state, sharing=state.sharing + weight * (ratio - state.sharing))


def _preemptions(state: KvState, w: Window, in_force: bool, now: float) -> KvState:
    faded = state.preempted * math.exp(-w.dt / PREEMPTION_MEMORY_S)
    state = replace(state, preempted=faded + w.preemptions / max(1, w.running))
    if w.preemptions > 0:
        state = replace(state, preempted_at=now)
        if not in_force or state.preempted <= TOLERATED:
            return state
        trust = max(TRUST_MIN, CUT * state.trust)
        return replace(state, onset=min(state.onset, state.trust), trust=trust, preempted=0.0)
    if state.trust >= 1.0 or state.preempted_at is None or now - state.preempted_at < CLEAN_S:
        return state
    pace = RECOVERY_PER_S if state.trust < ONSET_SHARE * state.onset else BEYOND_ONSET_PER_S
    trust = min(1.0, state.trust + pace * w.dt)
    return replace(state, trust=trust, onset=1.0 if trust >= 1.0 else state.onset)


def needed(sequences: float, footprint: float) -> float:
    """Tokens of cache that `sequences` need: the other direction of `fitting`."""
    return sequences * footprint * (1.0 + ROOM / math.sqrt(max(1.0, sequences)))
