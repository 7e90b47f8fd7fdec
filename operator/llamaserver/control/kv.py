"""How many sequences the KV cache holds without preempting.

A running sequence occupies its prompt and what it has generated so far. With M of them at random points of
their lives the cache needs M psi on average, psi being the mean footprint, and scatters around it with about
half a footprint per sequence; two standard deviations of room give  M psi (1 + 0.8/sqrt(M)) <= C, solved for
M.

What psi will be is forecast from the requests that run and wait now, before any of them has finished: prompt
+ 0.7 output, where 0.7 stands for long outputs being met more often than short ones, and output is their
max_tokens times the stop ratio, the share of max_tokens that requests really generate. It is learned from
those that finish. Sharing of prefixes makes the physical footprint smaller than the logical one; their
measured ratio is applied. While the load stays what it is, measured footprints (used tokens / running)
correct the forecast; a load that changes is forecast with the correction that the old one taught.

Whoever sets no max_tokens may fill the model. That is no forecast: believed, it would leave a batch of one.
Such requests are taken to generate what finished ones did, and at first twice what they have generated.

A tuner that tells no lengths leaves the older way: psi is measured, and as right after a burst all sequences
are young, prompt + 0.7 output of finished requests counts too until two generations have passed.

Preemptions say that the estimate is wrong: each window with some cuts a trust factor, which returns slowly,
and more slowly still beyond the level at which preemptions last began.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from llamaserver.observe.types import Lengths, Load, Sample, Window

ROOM = 0.8
FORECAST_OUTPUT = 0.7
REQUESTS_REMEMBERED = 64.0
DOUBTED_REQUESTS, LEARNED_REQUESTS = 2.0, 8.0
"""For how many finished requests it counts that all generate what they may, while nothing is known; and the
stop ratio that an earlier operator learned.
"""
DOUBT_FADES_REQUESTS = 8.0
DOUBLED = 2.0
FITTED_MIN, FITTED_MAX = 0.5, 1.5
ALIKE, ALIKE_SIGMAS = 0.15, 2.5
"""Relative difference from what is usual that is none, and how many standard deviations of the mean of those
that run and wait chance alone may make.
"""
FOOTPRINT_MEMORY_S = 20.0
CUT = 0.95
TOLERATED, TOLERATED_COUNT = 0.05, 1.5
"""Preemptions per running sequence, fading over PREEMPTION_MEMORY_S, that a busy cache may show; and how many
it may in any case, for in a small batch a single one is more than that.
"""
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
    prompt_variance: float = 0.0
    output_variance: float = 0.0
    """Of the lengths of finished requests, tokens squared; 0 until some have finished."""
    footprint: float | None = None
    """Physical tokens per running sequence."""
    sharing: float = 1.0
    """Physical tokens per logical token."""
    fitted: float = 1.0
    """The measured footprint over the forecast one, learned over generations."""
    usual: float | None = None
    """Tokens that requests of the last generations came with: prompt and what they may generate."""
    seed: float | None = None
    """The stop ratio that an earlier operator learned."""
    doubt: float | None = None
    """Tokens for which the ratio believed at the start still counts; None before bounded requests were seen.
    """
    allowed: float = 0.0
    generated: float = 0.0
    ended: float = 0.0
    """Tokens of bounded requests, fading as they finish: what those that finished were allowed, what all have
    generated meanwhile, and what those that finished have.
    """
    taught: float = 0.0
    """Finished requests per running sequence that the stop ratio was learned from."""
    held: float = 0.0
    """What those that have not finished have generated so far."""
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


def stop_ratio(state: KvState) -> float:
    """Which share of their max_tokens bounded requests generate; all of it while nothing is known.

    It is what those that finished tell. The first to finish are the short ones, though, and alone they would
    promise that all are: until two generations have taught it, what all have generated counts over what those
    that finished were allowed. That begins too high, and in the long run as much is generated as finishes.
    """
    believed = 1.0 if state.seed is None else state.seed
    doubt = state.doubt or 0.0
    if state.allowed + doubt <= 0.0:
        return believed
    told, made = ((n + doubt * believed) / (state.allowed + doubt) for n in (state.ended, state.generated))
    unsure = 1.0 - min(1.0, state.taught / 2.0)
    return min(1.0, told + unsure * max(0.0, min(1.0, made) - told))


def expected_footprint(state: KvState, sample: Sample) -> float | None:
    """Physical tokens a running sequence takes in the long run; None while nothing is known."""
    present = _steadied(state, sample)
    settled = min(1.0, state.generations / 2.0)
    if present is not None:
        forecast = state.fitted * present
        return forecast if state.footprint is None else max(forecast, (1.0 - settled) * state.footprint)
    past = _forecast_of_finished(state)
    if state.footprint is None or past is None:
        return past if state.footprint is None else state.footprint
    return settled * state.footprint + (1.0 - settled) * max(state.footprint, past)


def prompt_cv(state: KvState) -> float:
    """Standard deviation of the lengths of finished requests' prompts, over their mean; 0 while unknown."""
    return math.sqrt(state.prompt_variance) / state.prompt if state.prompt else 0.0


def _forecast_of_finished(state: KvState) -> float | None:
    if state.prompt is None or state.output is None:
        return None
    return state.sharing * (state.prompt + FORECAST_OUTPUT * state.output)


def _forecast_of_present(state: KvState, sample: Sample) -> float | None:
    """The footprint of what runs and waits now, before any of it has finished."""
    loads = _loads(sample)
    if loads is None:
        return None
    bounded, unbounded = _bounded(loads), _unbounded(loads)
    requests = bounded.requests + unbounded.requests
    output = max(stop_ratio(state) * bounded.max_tokens, float(bounded.generated_tokens))
    if unbounded.requests:
        output += _output_of_unbounded(state, unbounded)
    if not requests:
        return None
    prompt = bounded.prompt_tokens + unbounded.prompt_tokens
    return state.sharing * (prompt + FORECAST_OUTPUT * output) / requests


def _output_of_unbounded(state: KvState, unbounded: Lengths) -> float:
    """Their max_tokens is the model's length and promises nothing; believed, it would leave a batch of one.

    They are taken to generate what finished requests did. Before a generation has finished, those were short;
    till then, who has generated so much is taken to be half-way.
    """
    known = unbounded.requests * (state.output or 0.0)
    ahead = DOUBLED if state.generations < 1.0 else 1.0
    return max(known, ahead * unbounded.generated_tokens)


def _loads(sample: Sample) -> list[Load] | None:
    """The lengths of what runs and waits, of all engines; None where they are of no use, because nobody says
    what becomes of a limit.
    """
    if sample.bounded_max_tokens is None or sample.bounded_generation_tokens is None:
        return None
    known = [e.load for e in sample.engines if e.load is not None]
    return known if known and len(known) == len(sample.engines) else None


def _bounded(loads: list[Load]) -> Lengths:
    return _sum([part for load in loads for part in (load.running, load.waiting)])


def _unbounded(loads: list[Load]) -> Lengths:
    return _sum([part for load in loads for part in (load.running_unbounded, load.waiting_unbounded)])


def _sum(parts: list[Lengths]) -> Lengths:
    return Lengths(
        sum(p.requests for p in parts),
        sum(p.prompt_tokens for p in parts),
        sum(p.generated_tokens for p in parts),
        sum(p.max_tokens for p in parts),
    )


def changed(state: KvState, sample: Sample) -> bool:
    """Whether what runs and waits is of another length than it was for the last generations."""
    asked = _asked(state, sample)
    return asked is not None and _unlike(state, sample, asked)


def _steadied(state: KvState, sample: Sample) -> float | None:
    """The forecast of the present, without the chance of who runs and waits just now: as long as requests are
    of the usual length, of that length."""
    present, asked = _forecast_of_present(state, sample), _asked(state, sample)
    if present is None or not asked or state.usual is None or _unlike(state, sample, asked):
        return present
    return present * state.usual / asked


def _unlike(state: KvState, sample: Sample, asked: float) -> bool:
    """Whether the mean of those that run and wait is further off what is usual than chance would make it."""
    loads = _loads(sample)
    if state.usual is None or loads is None:
        return False
    requests = max(1, _bounded(loads).requests + _unbounded(loads).requests)
    variance = state.prompt_variance + FORECAST_OUTPUT**2 * state.output_variance
    chance = ALIKE_SIGMAS * math.sqrt(variance / requests)
    return abs(asked - state.usual) > max(ALIKE * state.usual, chance)


def _asked(state: KvState, sample: Sample) -> float | None:
    """Tokens that a request which runs or waits comes with, whatever share of them requests generate."""
    return _forecast_of_present(replace(state, sharing=1.0, seed=1.0, doubt=0.0, allowed=0.0), sample)


def fitting(capacity: float, footprint: float) -> float:
    """The M that solves M psi (1 + ROOM/sqrt(M)) = C."""
    room = capacity / max(1.0, footprint)
    return ((math.sqrt(ROOM * ROOM + 4.0 * room) - ROOM) / 2.0) ** 2


def ceiling(state: KvState, sample: Sample) -> float | None:
    """Sequences per engine that fit, trust included; None while capacity or footprint is unknown."""
    capacity, footprint = capacity_tokens(sample), expected_footprint(state, sample)
    if capacity is None or footprint is None or footprint <= 0.0:
        return None
    return max(1.0, state.trust * fitting(capacity, footprint))


def fitting_at_worst(sample: Sample) -> float | None:
    """Sequences per engine that fit however long they get; None while capacity or model length is unknown."""
    capacity = capacity_tokens(sample)
    longest = [e.max_model_len for e in sample.engines if e.max_model_len]
    if capacity is None or len(longest) < len(sample.engines):
        return None
    return fitting(capacity, max(longest))


def observe(state: KvState, window: Window, in_force: bool, now: float) -> KvState:
    """The state after one window. Preemptions only speak against a ceiling that is `in_force`: applied, and
    drained.
    """
    learned = _stops(_lengths(state, window), window)
    return _preemptions(_fitted(_footprint(learned, window), window), window, in_force, now)


def _lengths(state: KvState, w: Window) -> KvState:
    if state.prompt is None:
        return _lifetime(state, w.last)
    if not w.finished or w.finished_prompt_tokens is None or w.finished_generation_tokens is None:
        return state
    weight = 1.0 - math.exp(-w.finished / REQUESTS_REMEMBERED)
    output = state.output if state.output is not None else w.finished_generation_tokens / w.finished
    prompt_off = w.finished_prompt_tokens / w.finished - state.prompt
    output_off = w.finished_generation_tokens / w.finished - output
    # The mean of n scatters by the n-th part of the variance of one.
    return replace(
        state,
        prompt=state.prompt + weight * prompt_off,
        output=output + weight * output_off,
        prompt_variance=state.prompt_variance + weight * (w.finished * prompt_off**2 - state.prompt_variance),
        output_variance=state.output_variance + weight * (w.finished * output_off**2 - state.output_variance),
    )


def _lifetime(state: KvState, sample: Sample) -> KvState:
    """Mean lengths over the engine's life, when nothing better is known yet."""
    prompt, output = sample.finished_prompt_tokens, sample.finished_generation_tokens
    if not sample.finished or prompt is None or output is None:
        return state
    return replace(state, prompt=prompt / sample.finished, output=output / sample.finished)


def _stops(state: KvState, w: Window) -> KvState:
    """Learn which share of their max_tokens requests generate."""
    loads = _loads(w.last)
    if loads is None or w.bounded_max_tokens is None or w.bounded_generation_tokens is None:
        return state
    bounded = _bounded(loads)
    if state.doubt is None:
        return _first_stops(state, w.last, bounded)
    kept = math.exp(-(w.finished or 0) / REQUESTS_REMEMBERED)
    held, ended = float(bounded.generated_tokens), float(w.bounded_generation_tokens)
    return replace(
        state,
        taught=min(2.0, state.taught + (w.finished or 0) / max(1, w.running)),
        doubt=state.doubt * math.exp(-(w.finished or 0) / DOUBT_FADES_REQUESTS),
        allowed=kept * state.allowed + w.bounded_max_tokens,
        generated=max(0.0, kept * state.generated + ended + held - state.held),
        ended=kept * state.ended + ended,
        held=held,
    )


def _first_stops(state: KvState, sample: Sample, bounded: Lengths) -> KvState:
    """What the engine's life says, and what was believed before."""
    allowed, ended = sample.bounded_max_tokens, sample.bounded_generation_tokens
    if not bounded.requests or allowed is None or ended is None:
        return state
    each, held = bounded.max_tokens / bounded.requests, float(bounded.generated_tokens)
    kept = min(1.0, REQUESTS_REMEMBERED * each / max(1, allowed))
    running = sum(e.running for e in sample.engines)
    new = state.seed is None
    return replace(
        state,
        doubt=each * (DOUBTED_REQUESTS if new else LEARNED_REQUESTS),
        taught=min(2.0, (sample.finished or 0) / max(1, running)) if new else 2.0,
        allowed=kept * allowed,
        generated=kept * (ended + held),
        ended=kept * ended,
        held=held,
    )


def _fitted(state: KvState, w: Window) -> KvState:
    """Learn how far off the forecast is: as fast as requests finish, after the first generation, and while
    the load is what it was for a generation or two. Young sequences of a new kind take less than they will.
    """
    asked, footprint = _asked(state, w.last), state.footprint
    if not asked or footprint is None or w.running == 0:
        return state
    weight = 1.0 - math.exp(-(w.finished or 0) / (2.0 * w.running))
    usual = asked if state.usual is None else state.usual + weight * (asked - state.usual)
    state = replace(state, usual=usual)
    present = _steadied(state, w.last)
    if not present or state.generations < 1.0 or _unlike(state, w.last, asked):
        return state
    ratio = min(FITTED_MAX, max(FITTED_MIN, footprint / present))
    return replace(state, fitted=state.fitted + weight * (ratio - state.fitted))


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
        if not in_force or state.preempted <= max(TOLERATED, TOLERATED_COUNT / max(1, w.running)):
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
