"""The rules that name a cause, in the order in which they are asked.

Each takes the facts of one tick and answers with a finding, or in words why it does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llamaserver.api.enums import ScalingMode
from llamaserver.control import kv
from llamaserver.control.facts import FULL_SHARE, Facts
from llamaserver.control.objective import MARGIN, Predictor
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import DemandState
from llamaserver.control.types import Cause
from llamaserver.control.wording import ms, ms_at_least, reachable_s
from llamaserver.observe.types import NoWindow, Unusable

STALLED_S = 30.0
PREEMPTED_LATELY_S = 30.0
KV_FULL, KV_TIGHT = 0.92, 0.85
EXHAUSTED_S = 30.0
CRIPPLED = 4.0
"""Decode steps alone would allow so many times the cap that prefill leaves."""

Evidence = Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Finding:
    cause: Cause
    message: str
    advice: str
    evidence: Evidence


Rule = Callable[[Facts, DemandState], Finding | str]
"""A finding, or why the rule does not apply."""


def _stalled(facts: Facts, _: DemandState) -> Finding | str:
    for pod in facts.blind:
        if pod.why in (Unusable.STALE, Unusable.ENGINE_SILENT) and facts.now - pod.since >= STALLED_S:
            return _stall(pod, facts.now)
    return "every engine with work moves, or has not been still for long"


def _stall(pod: NoWindow, now: float) -> Finding:
    quiet = now - pod.since
    engines = pod.last.engines if pod.last is not None else ()
    running, waiting = sum(e.running for e in engines), sum(e.waiting for e in engines)
    return Finding(
        Cause.STALLED,
        f"{pod.pod} answers, but for {quiet:.0f} s none of its {running} running and {waiting} waiting "
        f"requests made progress ({pod.message}).",
        f"Look at the log of {pod.pod} and delete the pod if a request of your own hangs too. If one is "
        "answered, the figures were left over from aborted requests and right themselves.",
        {"pod": pod.pod, "still_s": round(quiet, 1), "running": running, "waiting": waiting},
    )


def _stale(facts: Facts, _: DemandState) -> Finding | str:
    if facts.pods:
        return "at least one replica gives usable figures"
    if not facts.blind:
        return Finding(
            Cause.STALE,
            f"No replica to observe: {facts.fleet.ready} of {facts.fleet.replicas} are ready.",
            "",
            {"ready": facts.fleet.ready, "replicas": facts.fleet.replicas},
        )
    worst = max(facts.blind, key=lambda p: facts.now - p.since)
    return Finding(
        Cause.STALE,
        f"No replica gives usable figures; {worst.pod}: {worst.message} ({worst.why}). Holding.",
        "",
        {"pod": worst.pod, "why": worst.why.value, "for_s": round(facts.now - worst.since, 1)},
    )


def _kv_pressure(facts: Facts, _: DemandState) -> Finding | str:
    for pod in facts.pods:
        reason = _kv_reason(pod, facts.now)
        if reason:
            return Finding(Cause.KV_PRESSURE, *_kv_words(pod, facts, reason))
    return "no preemptions, and the KV cache is not what holds requests back"


def _kv_reason(pod: PodFacts, now: float) -> str:
    w, seen = pod.window, pod.kv.preempted_at
    waiting = w.waiting - w.waiting_deferred
    if seen is not None and now - seen < PREEMPTED_LATELY_S and (w.kv_usage > KV_TIGHT or w.preemptions > 0):
        return f"preempts ({w.preemptions} in the last {w.dt:.0f} s)"
    if w.kv_usage > KV_FULL and waiting > 0:
        return "has a full KV cache while requests wait"
    if pod.cap is None or waiting <= 0:
        return ""
    if pod.running < FULL_SHARE * pod.cap and w.kv_usage > KV_TIGHT:
        return "admits no more for want of KV cache"
    if pod.kv_ceiling is None or pod.high is None or pod.kv_ceiling >= 0.96 * pod.high or not pod.limited:
        return ""
    at_ceiling = pod.cap >= 0.8 * pod.kv_ceiling
    return "runs as many sequences as its KV cache holds without preempting" if at_ceiling else ""


def _kv_words(pod: PodFacts, facts: Facts, reason: str) -> tuple[str, str, Evidence]:
    capacity, footprint = kv.capacity_tokens(pod.window.last), kv.expected_footprint(pod.kv)
    evidence: dict[str, float | int | str] = {
        "pod": pod.name,
        "kv_usage": round(pod.window.kv_usage, 3),
        "preemptions": pod.window.preemptions,
        "running": pod.window.running,
        "waiting": pod.window.waiting,
    }
    message = (
        f"{pod.name} {reason}: memory, not latency, bounds its batch. More sequences would make it worse."
    )
    general = "Raise engine.gpuMemoryUtilization, lower engine.maxModelLen, or allow more replicas."
    if capacity is None or footprint is None:
        return message, general, evidence
    fits = kv.fitting(capacity, footprint)
    evidence |= {"capacity_tokens": capacity, "tokens_per_sequence": round(footprint), "fitting": int(fits)}
    message += f" {capacity} tokens of cache hold {int(fits)} sequences of about {footprint:.0f} tokens."
    ceiling = pod.high if pod.high is not None else facts.limits.ceiling
    if ceiling is None or ceiling <= fits:
        return message, general, evidence
    needed = kv.needed(ceiling, footprint)
    evidence["needed_tokens"] = math.ceil(needed)
    fewest = max(1, int(fits))
    advice = (
        f"For {ceiling} sequences the cache needs {needed:.0f} tokens, {needed / capacity:.1f} times "
        "today's: raise engine.gpuMemoryUtilization until the engine's log reports that many, halve a "
        "token's size with --kv-cache-dtype fp8, or allow more replicas. To stay as it is, set "
        f"engine.maxNumSeqs: {fewest}; with engine.maxModelLen: {capacity // fewest} even the longest "
        "requests never preempt each other."
    )
    return message, advice, evidence


def _prefill_interference(facts: Facts, _: DemandState) -> Finding | str:
    """Prefill-carrying steps alone break a percentile that decode steps would hold, or cripple the cap."""
    for pod in facts.pods:
        p, record = pod.predictor, pod.record
        if p is None or p.quantile is None or record is None or pod.best is None:
            continue
        decode = p.model.decode_s(record.batch, record.context)
        if decode > 0.9 * p.target_s or p.over(pod.recent).from_prefill() < 0.5:
            continue
        tail = record.share >= 1.0 - p.quantile
        if tail and _misses(p, pod.low):
            return _interference(pod, p, decode, "No cap alone holds the objective.")
        if tail and facts.missed and pod.running <= pod.best:
            return _interference(pod, p, decode, "A lower cap would cost throughput.")
        alone = _without_prefill(pod)
        if alone is not None and alone >= CRIPPLED * pod.best and pod.limited:
            tail_told = f"They keep the cap at {pod.best}; decoding alone would allow {int(alone)}."
            return _interference(pod, p, decode, tail_told)
    return "the tail is not made by prefill, or the objective holds"


def _misses(p: Predictor, low: int) -> bool:
    return p.figure(low).ratio > 1.0


def _without_prefill(pod: PodFacts) -> float | None:
    """The cap that decode steps alone would allow, within ceiling and cache; None while unknown."""
    p = pod.predictor
    if p is None or p.quantile is None or pod.high is None or p.model.slope_s(p.context) <= 0.0:
        return None
    alone = (MARGIN * p.target_s - p.model.a_s) / p.model.slope_s(p.context)
    return min(alone, float(pod.high), pod.kv_ceiling if pod.kv_ceiling is not None else alone)


def _interference(pod: PodFacts, p: Predictor, decode: float, told: str) -> Finding:
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
    if room_s > 0.0 and budget >= (pod.window.last.engines[0].min_num_scheduled_tokens or 1):
        advice = (
            f"Set engine.maxNumBatchedTokens to about {max(16, budget // 16 * 16)}, so that a step's "
            f"prefill takes at most {ms(room_s)} ms (it must not be below engine.maxNumSeqs, now "
            f"{ceiling}), or put prefill on other pods."
        )
    else:
        advice = (
            "Decode steps leave no room for prefill at this target: relax it, or put prefill on other pods."
        )
    share = f": {100 * record.share:.0f} % of its tokens come from them" if record.share > 0.0 else ""
    message = (
        f"Steps that carry prefill break the {_percentile(p)} of {pod.name}{share}. Steps that only decode "
        f"take {ms(decode)} ms, against a target of {ms(target)} ms. {told}"
    )
    return Finding(Cause.PREFILL_INTERFERENCE, message, advice, evidence)


def _percentile(p: Predictor) -> str:
    return f"p{100 * (p.quantile or 0.0):.0f}"


def _infeasible(facts: Facts, _: DemandState) -> Finding | str:
    for pod in facts.pods:
        p, model, target = pod.predictor, facts.model, facts.objective.itl_s
        if p is None or model is None or target is None or not model.trusted(p.context):
            continue
        if not _misses(p, pod.low) or p.figure(pod.low, -2.0).ratio <= 1.0:
            continue
        if p.quantile is not None and model.decode_s(pod.low, p.context) <= 0.9 * p.target_s:
            continue  # the steps would do; what breaks the tail is another cause
        single, least = model.decode_s(1.0, p.context), ms_at_least(reachable_s(p, pod.low))
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


def _disturbed(facts: Facts, _: DemandState) -> Finding | str:
    """A percentile missed by steps that are slow for no reason in the engine."""
    for pod in facts.pods:
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


def _over_batched(facts: Facts, _: DemandState) -> Finding | str:
    if not facts.missed:
        return "the latency objective holds, or none is declared"
    target = facts.objective.itl_s or 0.0
    seen = facts.observed.itl_s or 0.0
    for pod in facts.pods:
        best = pod.best if pod.best is not None else _best_by_mean(facts, pod, seen)
        if best is not None and pod.running <= best and not pod.draining:
            continue
        told = f"about {best}" if best is not None else "fewer"
        drain = " Running sequences finish first, then the latency follows." if pod.draining else ""
        manual = _more_room(facts, "") if pod.settable else f"Set engine.maxNumSeqs to {told}."
        return Finding(
            Cause.OVER_BATCHED,
            f"{pod.name} runs {pod.running} sequences at once, and {told} hold the objective: "
            f"{facts.objective.itl_statistic} is {ms(seen)} ms against {ms(target)} ms.{drain}",
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


def _cap_limited(facts: Facts, _: DemandState) -> Finding | str:
    for pod in facts.pods:
        if pod.limited and pod.cap is not None and pod.best is not None and pod.best > pod.cap:
            return Finding(
                Cause.CAP_LIMITED,
                f"{pod.name} is full at {pod.cap} sequences while {pod.window.waiting} wait, and about "
                f"{pod.best} would hold the objective: the cap rises step by step.",
                "",
                {"pod": pod.name, "cap": pod.cap, "fitting": pod.best, "waiting": pod.window.waiting},
            )
    return "no cap holds requests back below what the objective allows"


def _capacity_exhausted(facts: Facts, demand: DemandState) -> Finding | str:
    """Full at the most replicas there may be, and the queue is longer than anyone wanted."""
    if demand.full is None or facts.now - demand.full.since < EXHAUSTED_S:
        return "not full, or not for long"
    if facts.limits.scaling is ScalingMode.AUTO and facts.fleet.replicas < facts.limits.replicas_max:
        return "more replicas are allowed"
    if facts.limits.scaling is not ScalingMode.AUTO or (
        facts.objective.queue_s is not None and not facts.queue_missed
    ):
        return "somebody else sets the replicas, or the queue objective holds"
    wait = facts.queue_now_s
    gives = "latency gives way to the queue" if facts.queue_first else "the queue gives way to latency"
    return Finding(
        Cause.CAPACITY_EXHAUSTED,
        f"All {facts.fleet.replicas} replicas are full at the objective, {facts.waiting} requests wait"
        + (f", for about {wait:.1f} s" if wait is not None else "")
        + f", and maxReplicas is reached; {gives}.",
        _more_room(
            facts,
            f"Raise scaling.maxReplicas above {facts.limits.replicas_max}, shed load, or relax the target.",
        ),
        _fullness(facts),
    )


def _at_capacity(facts: Facts, demand: DemandState) -> Finding | str:
    if not facts.full and (demand.full is None or facts.waiting == 0):
        return "requests do not wait for a full fleet"
    last = {
        ScalingMode.AUTO: "another replica follows when it lasts",
        ScalingMode.RECOMMEND: "another replica is recommended when it lasts",
        ScalingMode.FIXED: "the number of replicas is fixed",
        ScalingMode.EXTERNAL: "another scaler owns the number of replicas",
    }[facts.limits.scaling]
    if facts.limits.scaling is ScalingMode.AUTO and facts.fleet.replicas >= facts.limits.replicas_max:
        last = "maxReplicas is reached"
    return Finding(
        Cause.AT_CAPACITY,
        f"Every replica runs as many sequences as the objective allows and {facts.waiting} requests wait; "
        f"{last}.",
        _more_room(facts, ""),
        _fullness(facts),
    )


def _fullness(facts: Facts) -> Evidence:
    caps = [p.cap for p in facts.pods if p.cap is not None]
    evidence: dict[str, float | int | str] = {
        "replicas": facts.fleet.replicas,
        "running": facts.running,
        "waiting": facts.waiting,
    }
    if caps:
        evidence |= {"cap_min": min(caps), "cap_max": max(caps)}
    if facts.queue_now_s is not None:
        evidence["queue_s"] = round(facts.queue_now_s, 2)
    return evidence


def _more_room(facts: Facts, otherwise: str) -> str:
    """Where prefill is what keeps the cap low, smaller prefill chunks are the cheaper way to capacity."""
    for pod in facts.pods:
        alone = _without_prefill(pod)
        if alone is not None and pod.best is not None and alone >= 1.5 * pod.best:
            hint = (
                f"Steps that carry prefill keep the cap at {pod.best}; decoding alone would allow "
                f"{int(alone)}: a smaller engine.maxNumBatchedTokens makes room without another replica."
            )
            return f"{hint} {otherwise}".strip()
    return otherwise


def _admission_elsewhere(facts: Facts, _: DemandState) -> Finding | str:
    for pod in facts.pods:
        w = pod.window
        if w.waiting <= 0 or pod.cap is None or pod.running >= FULL_SHARE * pod.cap or w.kv_usage > KV_TIGHT:
            continue
        if w.waiting <= 1 and not w.waiting_deferred:
            continue  # one request on its way in
        advice = (
            f"{w.waiting_deferred} are deferred: see whether --max-loras slots, KV transfer or grammar "
            "compilation hold them. If running stays below the cap with nothing admitted, restart the pod."
            if w.waiting_deferred
            else "See whether the token budget (engine.maxNumBatchedTokens) or a paused engine holds them."
        )
        return Finding(
            Cause.ADMISSION_ELSEWHERE,
            f"{w.waiting} requests wait at {pod.name} although it runs {pod.running} of {pod.cap} and "
            f"{100 * w.kv_usage:.0f} % of its KV cache is in use: neither cap nor memory holds them, so "
            "raising the cap does not help.",
            advice,
            {
                "pod": pod.name,
                "waiting": w.waiting,
                "deferred": w.waiting_deferred,
                "running": pod.running,
                "cap": pod.cap,
                "kv_usage": round(w.kv_usage, 3),
            },
        )
    return "nothing waits although there is room"


def _idle(facts: Facts, _: DemandState) -> Finding | str:
    if facts.blind or not facts.pods:
        return "not every replica gives usable figures"
    if facts.running or facts.waiting or (facts.observed.tokens_per_s or 0.0) > 0.0:
        return "there is work"
    return Finding(Cause.IDLE, "No request is running or waiting.", "", {"replicas": facts.fleet.replicas})


def queue_words(facts: Facts) -> str:
    """The queue as it is now against its target, and where it stands."""
    assert facts.queue_now_s is not None
    assert facts.objective.queue_s is not None
    fullest = max(facts.pods, key=lambda p: p.window.waiting)
    return (
        f"{facts.queue_now_s:.1f} s against {facts.objective.queue_s:g} s, {fullest.window.waiting} of "
        f"{facts.waiting} requests wait at {fullest.name}"
    )


def healthy(facts: Facts) -> Finding:
    seen, target = facts.observed.itl_s, facts.objective.itl_s
    evidence: dict[str, float | int | str] = {"running": facts.running, "waiting": facts.waiting}
    if target is None:
        return Finding(Cause.HEALTHY, "Serving; no inter-token-latency objective is declared.", "", evidence)
    if seen is None:
        return Finding(Cause.HEALTHY, "Serving; no inter-token latency was seen lately.", "", evidence)
    relation = {"=": "", "<=": "at most ", ">=": "at least "}[facts.observed.itl_relation]
    evidence |= {"itl_ms": ms(seen), "target_ms": ms(target)}
    figures = (
        f"{facts.objective.itl_statistic} is {relation}{ms(seen)} ms against a target of {ms(target)} ms"
    )
    if facts.missed:
        message = f"The objective was missed in the last seconds, but this cap should hold it: {figures}."
    elif facts.queue_missed:
        message = (
            f"The latency objective holds ({figures}), the queue objective is missed: {queue_words(facts)}."
        )
    elif facts.observed.itl_met is None:
        message = f"Whether the objective holds cannot be told from these buckets: {figures}."
    else:
        message = f"The objective holds: {figures}."
    return Finding(Cause.HEALTHY, message, "", evidence)


CHAIN: tuple[Rule, ...] = (
    _stalled,
    _stale,
    _kv_pressure,
    _prefill_interference,
    _infeasible,
    _disturbed,
    _over_batched,
    _cap_limited,
    _capacity_exhausted,
    _at_capacity,
    _admission_elsewhere,
    _idle,
)
