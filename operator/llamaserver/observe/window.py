"""Two statements of one pod -> the exact difference, or the reason why there is none.

`advance` is called once a tick with whatever each pod answered. Pods never see each other here: one that
hangs, lies or restarts costs its own window and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from llamaserver.observe.distribution import MismatchError, subtract, without_zeros
from llamaserver.observe.stillness import Course, follow, stillness, testifies
from llamaserver.observe.types import (
    Distribution,
    EngineState,
    Failure,
    NoWindow,
    Sample,
    Source,
    StepMoments,
    Unusable,
    Window,
    Windows,
)

MAX_WINDOW_S = 30.0
"""A difference over more than this says little of now, so the newer sample starts anew."""
FORGIVEN_SCRAPES = 3.5
"""What somebody else scrapes may be so many of its intervals apart: two scrapes in a row may fail."""

_MOMENTS = tuple(f.name for f in fields(StepMoments))
_COUNTERS = (
    "prompt_tokens",
    "cached_prompt_tokens",
    "generation_tokens",
    "finished",
    "engine_steps",
    "arrived",
    "finished_prompt_tokens",
    "finished_generation_tokens",
    "bounded_max_tokens",
    "bounded_generation_tokens",
)

_PROMPTS = ("prompt_tokens", "cached_prompt_tokens")
"""No sign of life: where a prompt was computed a token was generated, and else its request was given up."""


@dataclass(frozen=True, slots=True)
class _Pod:
    base: Sample | None
    """The last sample whose counters moved: what the next one is compared with."""
    latest: Sample | None
    since: float
    """When something usable was last known."""
    course: Course | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of each pod between ticks."""

    pods: Mapping[str, _Pod] = field(default_factory=dict)


def advance(memory: Memory, results: Mapping[str, Sample | Failure], now: float) -> tuple[Memory, Windows]:
    """The windows that `results` close, by pod. A pod that is not in `results` is forgotten."""
    pods: dict[str, _Pod] = {}
    windows: dict[str, Window | NoWindow] = {}
    for pod, result in results.items():
        before = memory.pods.get(pod, _Pod(None, None, now))
        course = follow(before.course, result)
        after, window = _one(pod, before, result, now)
        still = stillness(course) if testifies(result) else None
        pods[pod], windows[pod] = replace(after, course=course), replace(window, still=still)
    return Memory(pods), windows


def _one(pod: str, before: _Pod, result: Sample | Failure, now: float) -> tuple[_Pod, Window | NoWindow]:
    if isinstance(result, Failure):
        return before, NoWindow(pod, now, result.why, result.message, before.latest, before.since)
    base = before.base
    if base is None:
        message = "the first answer of this pod; a difference needs two"
        return _anew(pod, result, now, Unusable.FIRST, message)
    if restarted := _restarted(base, result):
        return _anew(pod, result, now, Unusable.RESTARTED, restarted)
    if result.source is not base.source:
        return _anew(pod, result, now, Unusable.FIRST, f"the source changed to {result.source}")
    if result.at <= base.at:
        if result.source is Source.PROMETHEUS:
            why, message = Unusable.NOT_SCRAPED, "it was not scraped again yet"
        else:
            why, message = Unusable.STALE, "no time passed since the last answer"
        return before, NoWindow(pod, now, why, message, base, before.since)
    if _frozen(base, result):
        message = f"{_work(result)} and no counter moved for {result.at - base.at:.0f} s"
        return _Pod(base, result, before.since), NoWindow(
            pod, now, Unusable.STALE, message, result, before.since
        )
    if result.at - base.at > max(MAX_WINDOW_S, FORGIVEN_SCRAPES * (result.every_s or 0.0)):
        message = f"the answer before this one is {result.at - base.at:.0f} s old"
        return _anew(pod, result, now, Unusable.FIRST, message)
    try:
        window = _difference(pod, base, result)
    except MismatchError as error:
        return _anew(pod, result, now, Unusable.RESTARTED, f"{error} without a restart being seen")
    if window.itl.count > 0 and window.itl.sum_s <= 0.0:
        message = f"{window.itl.count} inter-token latencies add up to 0 s"
        return _Pod(result, result, before.since), NoWindow(
            pod, now, Unusable.LYING, message, result, before.since
        )
    return _Pod(result, result, now), window


def _anew(pod: str, sample: Sample, now: float, why: Unusable, message: str) -> tuple[_Pod, NoWindow]:
    return _Pod(sample, sample, now), NoWindow(pod, now, why, message, sample, now)


def _restarted(base: Sample, sample: Sample) -> str:
    """Why `sample` belongs to another life of the engine than `base`; empty when it does not."""
    if sample.incarnation != base.incarnation:
        return f"the engine started anew ({sample.incarnation})"
    if [e.engine for e in sample.engines] != [e.engine for e in base.engines]:
        return "the pod's engines are not the same as before"
    if sample.source is base.source:
        for (name, new), (_, old) in zip(_counters(sample), _counters(base), strict=True):
            if new is not None and old is not None and new < old:
                return f"{name} fell from {old} to {new}"
    return ""


def _counters(sample: Sample) -> Iterator[tuple[str, int | None]]:
    for name in _COUNTERS:
        yield name, getattr(sample, name)
    yield "inter-token latencies", sample.itl.count
    for engine in sample.engines:
        yield f"preemptions of engine {engine.engine}", engine.preemptions


def _frozen(base: Sample, sample: Sample) -> bool:
    """Work in hand, and not one cumulative figure moved: stale gauges or an engine that stands still."""
    busy = any(engine.running or engine.waiting for engine in sample.engines)
    return busy and all(
        new == old
        for (name, new), (_, old) in zip(_counters(sample), _counters(base), strict=True)
        if name not in _PROMPTS
    )


def _work(sample: Sample) -> str:
    running = sum(e.running for e in sample.engines)
    waiting = sum(e.waiting for e in sample.engines)
    return f"{running} running, {waiting} waiting"


def _less(new: int | None, old: int | None) -> int | None:
    return None if new is None or old is None else new - old


def _part(new: Distribution | None, old: Distribution | None) -> Distribution | None:
    return None if new is None or old is None else subtract(new, old)


def _paced(sample: Sample, base: Sample) -> Distribution | None:
    """Times per output token of the requests that finished, without those that had a single token."""
    found = _part(sample.tpot, base.tpot)
    unpaced = _less(sample.unpaced, base.unpaced)
    return found if found is None or unpaced is None else without_zeros(found, unpaced)


def _moments(new: list[StepMoments | None], old: list[StepMoments | None]) -> StepMoments | None:
    """The sums over all engines of what was added; engines add up because each step is an observation."""
    total = dict.fromkeys(_MOMENTS, 0)
    for later, earlier in zip(new, old, strict=True):
        if later is None or earlier is None:
            return None
        for name in _MOMENTS:
            step = getattr(later, name) - getattr(earlier, name)
            if step < 0:
                raise MismatchError(f"the step sum {name} went down")
            total[name] += step
    return StepMoments(**total)


def _seconds(base: Sample, sample: Sample) -> float:
    """The window's length, by the engine's own clock where it has one and it agrees with ours."""
    ours = sample.at - base.at
    if sample.clock_s is None or base.clock_s is None:
        return ours
    theirs = sample.clock_s - base.clock_s
    return theirs if 0.5 * ours < theirs < 2.0 * ours else ours


def _difference(pod: str, base: Sample, sample: Sample) -> Window:
    def both(pick: str) -> tuple[list[StepMoments | None], list[StepMoments | None]]:
        return [getattr(e, pick) for e in sample.engines], [getattr(e, pick) for e in base.engines]

    engines: tuple[EngineState, ...] = sample.engines
    return Window(
        pod=pod,
        at=sample.at,
        dt=_seconds(base, sample),
        last=sample,
        itl=subtract(sample.itl, base.itl),
        tpot=_paced(sample, base),
        ttft=_part(sample.ttft, base.ttft),
        queue=_part(sample.queue, base.queue),
        steps=_less(sample.engine_steps, base.engine_steps),
        decode_steps=_moments(*both("decode_steps")),
        mixed_steps=_moments(*both("mixed_steps")),
        prompt_tokens=_less(sample.prompt_tokens, base.prompt_tokens),
        cached_prompt_tokens=_less(sample.cached_prompt_tokens, base.cached_prompt_tokens),
        generation_tokens=sample.generation_tokens - base.generation_tokens,
        finished=_less(sample.finished, base.finished),
        arrived=_less(sample.arrived, base.arrived),
        finished_prompt_tokens=_less(sample.finished_prompt_tokens, base.finished_prompt_tokens),
        finished_generation_tokens=_less(sample.finished_generation_tokens, base.finished_generation_tokens),
        bounded_max_tokens=_less(sample.bounded_max_tokens, base.bounded_max_tokens),
        bounded_generation_tokens=_less(sample.bounded_generation_tokens, base.bounded_generation_tokens),
        preemptions=sum(
            new.preemptions - old.preemptions for new, old in zip(engines, base.engines, strict=True)
        ),
        running=sum(e.running for e in engines),
        waiting=sum(e.waiting for e in engines),
        waiting_deferred=sum(e.waiting_deferred for e in engines),
        kv_usage=max(e.kv_usage for e in engines),
    )
