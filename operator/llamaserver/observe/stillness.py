"""Which engines have work and do not get on, by their pods' own account.

An engine gets on when any of its steps, tokens or blocks of KV cache becomes more. Requests that arrive, end
or are aborted are no progress: clients that give up and ask again go on in front of an engine that hangs. So
of what a front end counts only tokens that steps worked on testify. It counts prompts, first tokens,
latencies and steps of whatever its core tells it of a request, also that it was refused or aborted. A prompt
that takes many steps is counted only when it is through; its blocks of KV cache tell of it until then.

Work is what a working engine would get on with; a session that waits for its user, a request that waits for
an adapter, and all requests of an engine that was told to pause are none.

Only answers testify, and each once: one that is handed out again, because nothing newer is there, says
nothing of the time since. A core that does not answer its own front end is still as long as that says so
without a gap; counters that are what they were have stood still however long nobody asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llamaserver.observe.types import Doubt, EngineState, Failure, Sample, Source, Still, Unusable

GAP_S = 30.0
"""After so long without an answer it is not known what a silent core did in between."""

_SILENT = (Unusable.STALE, Unusable.ENGINE_SILENT)
"""Failures in which the front end answers for a core that does not."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """One engine with work, as it was when it last got on."""

    progress: tuple[int | None, ...]
    kv_usage: float
    running: int
    waiting: int
    since: float
    witnessed: bool
    doubt: Doubt | None
    answers: int = 1


@dataclass(frozen=True, slots=True)
class Course:
    """What is remembered of one pod between its answers: its engines that have work."""

    incarnation: str
    source: Source
    marks: Mapping[int, _Mark]
    seen_at: float
    silent: bool = False


def follow(before: Course | None, result: Sample | Failure) -> Course | None:
    """The course after one more answer. What is no answer of the engine, or none that is newer than the last,
    changes nothing.
    """
    if not testifies(result) or (before is not None and result.at <= before.seen_at):
        return before
    if isinstance(result, Sample):
        return _told(before, result)
    if before is None or not _same_life(before, result):
        before = Course(result.incarnation, Source.TUNER, {}, result.at)
    return _silent(before, result)


def testifies(result: Sample | Failure) -> bool:
    """Whether this is an account of the engine, and not the lack of one."""
    return isinstance(result, Sample) or (result.why in _SILENT and bool(result.incarnation))


def stillness(course: Course | None) -> Still | None:
    """Of the engine that has been still for longest; None unless two answers agree on it."""
    known = {i: mark for i, mark in course.marks.items() if mark.answers > 1} if course is not None else {}
    if course is None or not known:
        return None
    index, worst = min(known.items(), key=lambda one: (one[1].since, one[0]))
    return Still(
        since=worst.since,
        until=course.seen_at,
        witnessed=worst.witnessed,
        answers=worst.answers,
        running=worst.running,
        waiting=worst.waiting,
        silent=course.silent,
        doubt=worst.doubt,
        incarnation=course.incarnation,
        engine=index,
    )


def _told(before: Course | None, sample: Sample) -> Course:
    same = before is not None and (before.incarnation, before.source) == (sample.incarnation, sample.source)
    known = before.marks if before is not None and same else {}
    # Another source may tell anew what stood still before; another start of the engine has begun since.
    witnessed = before is not None and before.source is sample.source
    marks = {
        engine.engine: _marked(known.get(engine.engine), _mark(sample, engine, witnessed))
        for engine in sample.engines
        if engine.movable
    }
    return Course(sample.incarnation, sample.source, marks, sample.at)


def _marked(old: _Mark | None, new: _Mark) -> _Mark:
    if old is None or new.progress != old.progress or new.kv_usage > old.kv_usage:
        return new
    return replace(new, since=old.since, witnessed=old.witnessed, answers=old.answers + 1)


def _mark(sample: Sample, engine: EngineState, witnessed: bool) -> _Mark:
    return _Mark(
        progress=_progress(sample, engine),
        kv_usage=engine.kv_usage,
        running=engine.running - engine.parked,
        waiting=engine.waiting_for_room,
        since=sample.at,
        witnessed=witnessed,
        doubt=_doubt(sample.source, engine),
    )


def _doubt(source: Source, engine: EngineState) -> Doubt | None:
    """Only the scheduler's own account is certain, and only where it is whole: no other source is, whatever
    there will be.
    """
    if source is Source.PROMETHEUS:
        return Doubt.PROMETHEUS
    if source not in (Source.TUNER, Source.TUNER_AND_METRICS):
        return Doubt.METRICS
    if _steps(engine) is None:
        return Doubt.STEPS_UNKNOWN
    return Doubt.PAUSE_UNKNOWN if engine.paused is None else None


def _progress(sample: Sample, engine: EngineState) -> tuple[int | None, ...]:
    """What grows when this engine gets on: the scheduler's count of its steps, and tokens by the front end's.

    The pod's sums are those of its only engine, or stand for all where nothing tells them apart; prompts
    count only where nothing tells of steps.
    """
    if (steps := _steps(engine)) is not None:
        generated = sample.generation_tokens if len(sample.engines) == 1 else None
        return (*steps, generated, engine.preemptions)
    if engine.generation_tokens is not None:
        return (engine.generation_tokens, engine.step_tokens, engine.preemptions)
    steps_of_pod = sample.prompt_tokens if sample.engine_steps is None else sample.engine_steps
    return (sample.generation_tokens, steps_of_pod, engine.preemptions)


def _steps(engine: EngineState) -> tuple[int, ...] | None:
    decode, mixed = engine.decode_steps, engine.mixed_steps
    return None if decode is None or mixed is None else (decode.n, mixed.n, engine.skipped_steps)


def _silent(before: Course, failure: Failure) -> Course:
    """The core is silent: with what it had in hand when it last spoke, which may have been nothing, or to
    nobody here.
    """
    began = {0: _Mark((), 0.0, 0, 0, failure.at, witnessed=False, doubt=None, answers=0)}
    gap = failure.at - before.seen_at > GAP_S
    marks = {
        engine: replace(mark, since=failure.at, witnessed=False, answers=1)
        if gap
        else replace(mark, answers=mark.answers + 1)
        for engine, mark in (before.marks or began).items()
    }
    return replace(before, marks=marks, seen_at=failure.at, silent=True)


def _same_life(course: Course, failure: Failure) -> bool:
    """The tuner's name for the start of a server is not known while its engine is silent."""
    return f"{course.incarnation}/".startswith(f"{failure.incarnation}/")
