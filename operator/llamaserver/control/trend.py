"""What is known of a fleet whose caps cannot be moved: how its latency has gone with the streams it decoded.

Nothing is needed but the inter-token latencies of plain /metrics. A window in which the latencies of all
outputs add up to S seconds, in T seconds of an engine, had S/T streams decoding on average, whatever the
gauges said at its ends; and their mean is S over the number of outputs. An hour of such pairs, fading, gives
the line

    mean latency = rest + slope x streams,

and the declared statistic follows it by the factor that it has now. A line says what fewer streams would give
only where streams have come and gone: an engine that was full all the time has one point and no slope. Then
nothing is said, rather than guessed, for what follows is a restart.
"""

from __future__ import annotations

import math
from dataclasses import replace

from llamaserver.control.facts import FULL_SHARE, Facts
from llamaserver.control.kv import capacity_tokens
from llamaserver.control.line import Load
from llamaserver.control.objective import MARGIN
from llamaserver.control.state import Spell, Trend
from llamaserver.control.types import Found
from llamaserver.control.wording import ms
from llamaserver.observe.types import Source, Window

LOAD_S = 600.0
"""Over how long the kind of load is averaged."""
LEVEL_S = 120.0
"""Over how long the latency is averaged: a restart is not for what comes and goes within minutes."""
AT_EASE = 0.9
"""An objective holds for sure below this share of its target."""
ENOUGH_S = 300.0
DOUBT = 0.1
"""Most standard error of the latency at the wanted number, as a share of what is allowed."""
GAP_S, TOLERANCE_S = 120.0, 20.0
"""A spell is over when nothing was measured for the one, or something else was for the other."""
HERE_TO_STAY = frozenset({"CustomScheduler", "EncoderDecoder", "PipelineParallel", "PrefillRole"})
"""Why an engine's cap cannot be moved: for what it was started with, so only another start changes it."""


def follow(trend: Trend, facts: Facts) -> Trend:
    """The trend after one tick; nothing but when caps were moved live is kept where no restart is allowed.

    While pods come and go nothing is learned nor judged: the old are not what is declared, and the few that
    are left, or are up already, carry the load of all.
    """
    asked = (facts.objective.itl_s, facts.objective.itl_named, facts.limits.rolling)
    live = any(pod.settable for pod in facts.pods)
    live_at = facts.now if live else trend.live_at
    if facts.limits.started is None or trend.asked[2] != asked[2]:
        trend = Trend(asked=asked, live_at=live_at)
    if facts.limits.started is None:
        return trend
    trend = replace(trend, live_at=live_at)
    if trend.asked != asked or live or not facts.fleet.settled:
        trend = replace(trend, missed=None, starved=None)
    if trend.asked != asked or not facts.fleet.settled:
        trend = replace(trend, asked=asked, statistic_s=None, mean_s=None)
    return _measured(trend, facts) if facts.fleet.settled else trend


def _measured(trend: Trend, facts: Facts) -> Trend:
    """The trend with what this tick has measured of a fleet that is settled."""
    started = facts.limits.started or 0
    for pod in facts.pods:
        trend = _with(trend, pod.window)
    trend = _levelled(trend, facts)
    level = _level(trend, facts)
    full = bool(facts.pods) and all(pod.running >= FULL_SHARE * started for pod in facts.pods)
    missed = starved = None
    if level is not None:
        missed = level > 1.0
        starved = level <= AT_EASE and full and facts.waiting > 0 and not facts.can_grow
    return replace(
        trend,
        missed=_spell(trend.missed, missed, facts.now),
        starved=_spell(trend.starved, starved, facts.now),
    )


def found(trend: Trend, facts: Facts) -> Found | None:
    """What to choose a restart by; None where none is allowed or no engine tells anything."""
    started = facts.limits.started
    if started is None or not facts.pods:
        return None
    wanted, reason = _wanted(trend, facts)
    target, seen = facts.objective.itl_s, trend.statistic_s
    told = "" if target is None or seen is None else f"{ms(seen)} ms against {ms(target)} ms"
    resident, sequences, prompt, generated = trend.load
    return Found(
        live=any(pod.settable for pod in facts.pods),
        live_ago_s=math.inf if _here_to_stay(facts) else facts.now - trend.live_at,
        started=started,
        wanted=wanted,
        reason=reason,
        running=max(pod.running for pod in facts.pods),
        missed_s=_held(trend.missed, facts.now),
        starved_s=_held(trend.starved, facts.now),
        load=Load(
            resident / sequences if resident > 0.0 and sequences > 0.0 else None,
            prompt / generated if prompt > 0.0 and generated > 0.0 else None,
        ),
        seen=told,
        cold_start_s=facts.fleet.cold_start_s,
    )


def _here_to_stay(facts: Facts) -> bool:
    """Whether no engine's cap will be moved live without another start."""
    samples = [pod.window.last for pod in facts.pods]
    return all(
        sample.source is Source.PROMETHEUS or any(one.live_cap in HERE_TO_STAY for one in sample.engines)
        for sample in samples
    )


def _with(trend: Trend, w: Window) -> Trend:
    if w.itl.count <= 0 or w.itl.sum_s <= 0.0 or w.dt <= 0.0 or w.preemptions > 0:
        return trend
    engines = max(1, len(w.last.engines))
    streams = w.itl.sum_s / w.dt / engines
    weight = 1.0 - math.exp(-w.dt / LOAD_S)
    beside = min(2.0, max(1.0, w.running / engines / streams))
    capacity = capacity_tokens(w.last)
    resident = 0.0 if capacity is None else w.kv_usage * capacity * engines * w.dt
    computed = max(0, (w.prompt_tokens or 0) - (w.cached_prompt_tokens or 0))
    added = (resident, w.running * w.dt, float(computed), float(w.generation_tokens))
    resident_s, sequences_s, prompt, generated = (
        (1.0 - weight) * old + new for old, new in zip(trend.load, added, strict=True)
    )
    return replace(
        trend,
        line=trend.line.after(w.dt, streams, w.itl.sum_s / w.itl.count),
        beside=trend.beside + weight * (beside - trend.beside),
        load=(resident_s, sequences_s, prompt, generated),
    )


def _level(trend: Trend, facts: Facts) -> float | None:
    """The smoothed statistic over its target; None without an objective, or where nothing is measured now."""
    if facts.objective.itl_s is None or facts.observed.itl_s is None or trend.statistic_s is None:
        return None
    return trend.statistic_s / facts.objective.itl_s


def _levelled(trend: Trend, facts: Facts) -> Trend:
    """The smoothed statistic and mean after one tick; as before where nothing was measured."""
    seen, mean = facts.observed.itl_s, facts.observed.itl_mean_s
    if seen is None or mean is None or mean <= 0.0:
        return trend
    if trend.statistic_s is None or trend.mean_s is None:
        return replace(trend, statistic_s=seen, mean_s=mean)
    seconds = min((pod.window.dt for pod in facts.pods), default=0.0)
    weight = 1.0 - math.exp(-seconds / LEVEL_S)
    return replace(
        trend,
        statistic_s=trend.statistic_s + weight * (seen - trend.statistic_s),
        mean_s=trend.mean_s + weight * (mean - trend.mean_s),
    )


def _wanted(trend: Trend, facts: Facts) -> tuple[int | None, str]:
    """The number of sequences that would just hold the objective, or why it is not known."""
    target, seen, mean = facts.objective.itl_s, trend.statistic_s, trend.mean_s
    if target is None or facts.observed.itl_s is None or not seen or not mean:
        return None, "no latency was measured lately"
    if facts.observed.itl_relation != "=":
        return None, (
            "the engines' histogram is too coarse to tell the objective's statistic from its target: use an "
            "image whose tag says vLLM 0.32 or newer, or, where --custom-histogram-buckets is in "
            "spec.engine.extraArgs, give it boundaries around the target"
        )
    streams = trend.line.x / trend.line.n if trend.line.n > 0.0 else 0.0
    if trend.line.n < ENOUGH_S:
        return None, f"the latency was followed for {trend.line.n:.0f} s so far, which tells too little"
    allowed = MARGIN * target * mean / seen
    reached = trend.line.reaches(allowed)
    if reached is None or reached[1] > DOUBT * allowed:
        return None, (
            f"about {streams:.0f} streams decoded at once all the time, or the latency did not go with them, "
            "so what fewer would give is not known: change spec.engine.maxNumSeqs by hand"
        )
    return math.floor(reached[0] * trend.beside), ""


def _spell(before: Spell | None, holds: bool | None, now: float) -> Spell | None:
    """The spell after one tick, in which it was seen to hold, or not to, or nothing was measured (None)."""
    if before is not None and now - before.seen > (TOLERANCE_S if holds is False else GAP_S):
        before = None
    if not holds:
        return before
    return Spell(now if before is None else before.since, now)


def _held(spell: Spell | None, now: float) -> float:
    return 0.0 if spell is None or now - spell.seen > GAP_S else spell.seen - spell.since
