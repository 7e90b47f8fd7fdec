"""The fast loop: every few seconds ask the engines, decide, tell them. It never waits for the API server."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.enums import ScalingMode, TuningMode
from llamaserver.control import Cause, Decision, Fleet, Learned, Limits, Objective, Setpoint, decide, initial
from llamaserver.controller import journal, pods, retune
from llamaserver.controller.cache import Cache
from llamaserver.controller.mandate import Mandate
from llamaserver.controller.queue import Key, WorkQueue
from llamaserver.controller.runtime import IN_FORCE, PodReport, Report, Server
from llamaserver.engine import Applied, EngineClient, Live, Refused, Target, Unreachable, capability
from llamaserver.observe import Failure, NoWindow, Sample, Unusable, Windows, advance
from llamaserver.telemetry import KeyLogger, Metrics

_log = logging.getLogger(__name__)


_BEGINNINGS = (Unusable.FIRST, Unusable.RESTARTED)

_REASONS = frozenset(
    {
        "BadSignature",
        "BodyMismatch",
        "ChunkedPrefillOff",
        "CustomScheduler",
        "EncoderDecoder",
        "EngineDead",
        "EngineError",
        "EnginePluginMissing",
        "EngineTimeout",
        "EngineUnreachable",
        "Expired",
        "InvalidBody",
        "InvalidToken",
        "MissingToken",
        "MultimodalItemsNotChunked",
        "NoAttribute",
        "NoEngine",
        "NoEngineAccess",
        "NoLiveCap",
        "NoPodUid",
        "NoPublicKeys",
        "NoReason",
        "NoSigningKey",
        "NoSigningLibrary",
        "NoTuner",
        "NotSeen",
        "NotWritable",
        "OutOfBounds",
        "NotScraped",
        "PipelineParallel",
        "ProbeOff",
        "SeveralApiServers",
        "ShuttingDown",
        "SnapshotIncomplete",
        "StaleGeneration",
        "StatLoggerLost",
        "StatLoggerMissing",
        "StatisticsChanged",
        "TunerFailed",
        "UnknownKey",
        "WrongAudience",
        "WrongBoot",
    }
)
"""Every reason that the tuner, and our client for it, give for not changing an engine."""


@dataclass(frozen=True, slots=True)
class TickTimes:
    """Seconds. A scrape ends well within a tick, so that a hung pod costs its own window and no tick."""

    every_s: float = 2.0
    scrape_s: float = 1.5
    put_s: float = 6.0
    lease_s: float = 120.0
    first_report_s: float = 20.0
    """How long after a restart status keeps what an earlier leader wrote while nothing is known yet."""
    figures_s: float = 10.0
    """How often status is looked at when nothing but figures moves."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of one change."""

    change: retune.Change
    answer: Applied | Refused | Unreachable


class Ticker:
    """One task for each LlamaServer. A tick that fails is logged and counted; the next one starts afresh."""

    def __init__(
        self,
        *,
        cache: Cache,
        engines: EngineClient,
        mandate: Mandate,
        queue: WorkQueue,
        metrics: Metrics,
        monotonic: Callable[[], float],
        wall: Callable[[], datetime],
        times: TickTimes = TickTimes(),
    ) -> None:
        self._cache = cache
        self._engines = engines
        self._mandate = mandate
        self._queue = queue
        self._metrics = metrics
        self._monotonic = monotonic
        self._wall = wall
        self._times = times
        self._tasks: dict[Key, tuple[Server, asyncio.Task[None]]] = {}
        self._asked: dict[Key, frozenset[str]] = {}

    def start(self, server: Server) -> None:
        """Tick for this LlamaServer from now on; nothing happens where that is so already."""
        known = self._tasks.get(server.key)
        if known is not None and known[0] is server and not known[1].done():
            return
        self.stop(server.key)
        task = asyncio.create_task(self._loop(server), name=f"tick {server.key}")
        self._tasks[server.key] = (server, task)

    def stop(self, key: Key) -> None:
        """The LlamaServer is gone."""
        known = self._tasks.pop(key, None)
        if known is not None:
            known[1].cancel()
        self._forget_gone(key, frozenset())

    async def close(self) -> None:
        """End all ticks."""
        tasks = [task for _, task in self._tasks.values()]
        for key in list(self._tasks):
            self.stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _loop(self, server: Server) -> None:
        await asyncio.sleep(random.uniform(0, self._times.every_s))  # noqa: S311 - spreads load, guards nothing
        while True:
            started = self._monotonic()
            try:
                await self.tick(server)
                self._metrics.ticks.labels("ok").inc()
            except Exception:
                self._metrics.ticks.labels("error").inc()
                _about(server.key).exception("the tick failed")
            took = self._monotonic() - started
            self._metrics.tick_seconds.observe(took)
            await asyncio.sleep(max(self._times.every_s - took, self._times.every_s / 10))

    async def tick(self, server: Server) -> None:
        """One round: scrape, conclude, decide, change, report."""
        spec, generation = server.spec, server.generation
        if spec is None:
            return
        known = [pods.read(obj) for obj in self._cache.pods(server.key)]
        targets = {pod.name: pod.target for pod in known if pod.target is not None}
        self._forget_gone(server.key, frozenset(targets))
        results = await self._scrape(targets)
        now = self._monotonic()
        server.memory, windows = advance(server.memory, results, now)
        samples = {name: result for name, result in results.items() if isinstance(result, Sample)}
        for name, sample in samples.items():
            self._mandate.saw(name, sample.incarnation, retune.generation(sample))
        state = server.state or initial(_learned(server), now)
        fleet = self._fleet(server, known)
        server.state, decision = decide(objective(spec), limits(spec, fleet), state, windows, fleet, now)
        outcomes = await self._change(spec, decision, targets, samples)
        self._note_retunes(server, spec, decision, outcomes, samples)
        self._note_replicas(server, spec, decision, fleet)
        report = replace(self._report(decision, results, windows, outcomes), generation=generation)
        if server.report is None and not self._tells(server, decision, now):
            return
        before, server.report = server.report, report
        self._wake(server.key, before, report)

    async def _scrape(self, targets: Mapping[str, Target]) -> dict[str, Sample | Failure]:
        answers = await asyncio.gather(
            *(self._engines.scrape(target, self._times.scrape_s) for target in targets.values())
        )
        results = dict(zip(targets, answers, strict=True))
        for result in answers:
            if isinstance(result, Failure):
                self._metrics.scrape_failures.labels(result.why.value).inc()
        return results

    async def _change(
        self,
        spec: EffectiveSpec,
        decision: Decision,
        targets: Mapping[str, Target],
        samples: Mapping[str, Sample],
    ) -> list[_Outcome]:
        if not self._mandate.may_change():
            return []
        setpoints = decision.setpoints
        if spec.suspended or spec.tuning_mode is not TuningMode.AUTO:
            # What an earlier leader set may end with its lease; what another one keeps setting may not go on.
            setpoints = dict.fromkeys(self._mandate.claims & samples.keys(), Setpoint(None))
        changes = retune.due(setpoints, samples, self._times.lease_s, self._mandate.claims)
        answers = await asyncio.gather(
            *(self._put(targets[change.pod], samples[change.pod], change) for change in changes)
        )
        outcomes = [_Outcome(change, answer) for change, answer in zip(changes, answers, strict=True)]
        for outcome in outcomes:
            self._metrics.retunes.labels(_word(outcome.answer)).inc()
        return outcomes

    async def _put(
        self, target: Target, sample: Sample, change: retune.Change
    ) -> Applied | Refused | Unreachable:
        """One change; tried once more where the engine has moved on since it was read, if we surely lead."""
        number = change.generation
        for last_try in (False, True):
            self._mandate.changed(change.pod, sample.incarnation, number)
            with self._metrics.retune_seconds.time():
                answer = await self._engines.put(
                    target, change.setpoint, number, self._times.lease_s, self._times.put_s
                )
            stale = isinstance(answer, Refused) and answer.reason == "StaleGeneration"
            if last_try or not stale or not self._mandate.proven():
                return answer
            assert isinstance(answer, Refused)
            number = max(number, answer.generation or number) + 1
        raise AssertionError("unreachable")

    def _fleet(self, server: Server, known: list[pods.Pod]) -> Fleet:
        live = ((self._cache.deployment(server.key) or {}).get("spec") or {}).get("replicas")
        ready = sum(pod.ready for pod in known)
        replicas = ready if live is None else int(live)
        return Fleet(
            replicas=replicas,
            ready=ready,
            pending=max(0, replicas - ready),
            cold_start_s=pods.cold_start(known),
        )

    def _note_retunes(
        self,
        server: Server,
        spec: EffectiveSpec,
        decision: Decision,
        outcomes: list[_Outcome],
        samples: Mapping[str, Sample],
    ) -> None:
        recommends = spec.tuning_mode is TuningMode.RECOMMEND and not spec.suspended
        if recommends:
            moves = self._recommendations(server, decision, samples)
        else:
            moves = [
                journal.Move(outcome.change.pod, outcome.change.before, _after(outcome.answer))
                for outcome in outcomes
                if isinstance(outcome.answer, Applied)
            ]
        reason = journal.why(decision, {move.pod for move in moves})
        for entry in journal.retunes(moves, reason, self._wall(), recommended=recommends):
            server.decisions.appendleft(entry)
            self._metrics.decisions.labels(f"Recommend{entry.action}" if recommends else entry.action).inc()
            _about(server.key).info("%s %s -> %s: %s", entry.action, entry.from_, entry.to, entry.reason)

    def _recommendations(
        self, server: Server, decision: Decision, samples: Mapping[str, Sample]
    ) -> list[journal.Move]:
        """What mode Recommend would do and has not said yet."""
        named = journal.recommended(decision)
        fresh = [
            pod for pod, cap in sorted(named.items()) if pod in samples and server.recommended.get(pod) != cap
        ]
        server.recommended = named
        return [
            journal.Move(pod, retune.in_force(samples[pod]), _recommended(named[pod], samples[pod]))
            for pod in fresh
        ]

    def _note_replicas(self, server: Server, spec: EffectiveSpec, decision: Decision, fleet: Fleet) -> None:
        """Replicas go through reconcile, which is the one writer of the Deployment."""
        if spec.suspended:
            return
        reason = decision.replicas_reason or decision.diagnosis.message
        if spec.scaling_mode is ScalingMode.AUTO:
            number = decision.replicas
            before = fleet.replicas if server.decided_replicas is None else server.decided_replicas
            if number is None or number == before:
                return
            server.decided_replicas = number
            entry = journal.scaled(before, number, reason, self._wall())
            self._queue.add(server.key)
        elif spec.scaling_mode is ScalingMode.RECOMMEND:
            number, told = decision.recommended_replicas, server.recommended_replicas
            if number is None or number == told:
                return
            server.recommended_replicas = number
            if number == fleet.replicas:
                return
            entry = journal.scaled(fleet.replicas, number, reason, self._wall(), recommended=True)
        else:
            return
        server.decisions.appendleft(entry)
        self._metrics.decisions.labels(entry.action).inc()
        _about(server.key).info("replicas %s -> %s: %s", entry.from_, entry.to, entry.reason)

    def _report(
        self,
        decision: Decision,
        results: Mapping[str, Sample | Failure],
        windows: Windows,
        outcomes: list[_Outcome],
    ) -> Report:
        answers = {outcome.change.pod: outcome.answer for outcome in outcomes}
        samples = {name: result for name, result in results.items() if isinstance(result, Sample)}
        unavailable = {}
        for name, sample in samples.items():
            can = capability(sample)
            if not isinstance(can, Live):
                unavailable[name] = f"{can.reason}: {can.message}" if can.message else can.reason
        return Report(
            at=self._monotonic(),
            decision=decision,
            pods=tuple(
                _pod_report(name, sample, answers.get(name), unavailable.get(name))
                for name, sample in sorted(samples.items())
            ),
            silent=_silent(results, windows),
            unavailable=unavailable,
            failed={
                name: f"{_word(answer)}: {answer.message}"
                for name, answer in answers.items()
                if not isinstance(answer, Applied)
            },
            partial=any(isinstance(answer, Applied) and not answer.agreed for answer in answers.values()),
            foreign="" if self._mandate.may_change() else self._mandate.stranger,
        )

    def _wake(self, key: Key, before: Report | None, report: Report) -> None:
        """Have status looked at: at once when something happened, now and then when only figures moved."""
        if before is None or _telling(before) != _telling(report):
            self._queue.add(key)
        elif before.decision.observed != report.decision.observed:
            self._queue.add(key, after_s=self._times.figures_s)

    def _tells(self, server: Server, decision: Decision, now: float) -> bool:
        """Whether a first report is worth more than what an earlier leader left in status.

        That nothing is known yet is no news right after a restart, however little is known.
        """
        if server.ticking_since is None:
            server.ticking_since = now
        inherited = server.written is not None and server.written.diagnosis is not None
        waited = now - server.ticking_since >= self._times.first_report_s
        return waited or not inherited or decision.diagnosis.cause is not Cause.STALE

    def _forget_gone(self, key: Key, targets: frozenset[str]) -> None:
        for pod in self._asked.pop(key, frozenset()) - targets:
            self._mandate.forget(pod)
            self._engines.forget(pod)
        if targets:
            self._asked[key] = targets


def objective(spec: EffectiveSpec) -> Objective:
    """What is promised, in the control law's words."""
    itl, queue = spec.inter_token_latency, spec.queue_time
    plain = Objective(precedence=spec.precedence)
    return Objective(
        itl_s=itl.seconds if itl else None,
        itl_statistic=itl.statistic if itl else plain.itl_statistic,
        queue_s=queue.seconds if queue else None,
        queue_statistic=queue.statistic if queue else plain.queue_statistic,
        precedence=spec.precedence,
    )


def limits(spec: EffectiveSpec, fleet: Fleet) -> Limits:
    """What the user allows, in the control law's words."""
    return Limits(
        cap_min=spec.min_num_seqs,
        cap_max=spec.max_num_active_seqs,
        tuning=spec.tuning_mode,
        scaling=spec.scaling_mode,
        replicas_min=spec.min_replicas,
        replicas_max=fleet.replicas if spec.max_replicas is None else spec.max_replicas,
        suspended=spec.suspended,
    )


def _learned(server: Server) -> Learned | None:
    """What an earlier leader left in status; an alien form is as good as nothing."""
    status = server.written
    if status is None or not status.model:
        return None
    try:
        return Learned.from_dict({name: float(value) for name, value in status.model.items()})
    except ValueError:
        _about(server.key).warning("status.model is of another version; learning starts anew")
        return None


def _after(answer: Applied | Refused | Unreachable) -> retune.InForce:
    engines = answer.engines if isinstance(answer, Applied) else ()
    caps = [engine.max_num_active_seqs for engine in engines if engine.max_num_active_seqs is not None]
    budgets = [
        engine.max_num_scheduled_tokens for engine in engines if engine.max_num_scheduled_tokens is not None
    ]
    return retune.InForce(min(caps, default=None), min(budgets, default=None))


def _recommended(cap: int, sample: Sample) -> retune.InForce:
    return retune.InForce(cap, retune.in_force(sample).num_scheduled_tokens)


def _pod_report(
    name: str,
    sample: Sample,
    answer: Applied | Refused | Unreachable | None,
    unavailable: str | None,
) -> PodReport:
    now = _after(answer) if isinstance(answer, Applied) else retune.in_force(sample)
    running = sum(engine.running for engine in sample.engines) if sample.engines else None
    state, message = IN_FORCE, ""
    if unavailable is not None:
        reason, _, message = unavailable.partition(": ")
        state = _known(reason)
    elif isinstance(answer, Refused | Unreachable):
        state, message = _word(answer), answer.message
    elif isinstance(answer, Applied) and not answer.agreed:
        state = "Partial"
    elif any(
        engine.max_num_active_seqs is not None and engine.running > engine.max_num_active_seqs
        for engine in sample.engines
    ):
        state = "Draining"
    ceilings = [engine.max_num_seqs for engine in sample.engines if engine.max_num_seqs is not None]
    return PodReport(
        name=name,
        num_seqs=now.num_seqs,
        num_scheduled_tokens=now.num_scheduled_tokens,
        ceiling=min(ceilings, default=None),
        running=running,
        state=state,
        message=message,
    )


def _silent(results: Mapping[str, Sample | Failure], windows: Windows) -> dict[str, str]:
    """The pods that were asked and gave no figures, and why. One seen for the first time is none of them."""
    silent = {name: result.message for name, result in results.items() if isinstance(result, Failure)}
    for name, window in windows.items():
        if isinstance(window, NoWindow) and window.why not in _BEGINNINGS:
            silent.setdefault(name, window.message)
    return silent


def _word(answer: Applied | Refused | Unreachable) -> str:
    if isinstance(answer, Applied):
        return "Applied"
    return _known(answer.reason) if isinstance(answer, Refused) else "Unreachable"


def _known(reason: str) -> str:
    """A reason as an engine gave it, if it is one that engines give: it becomes a label and a word of status,
    so nobody else's text may pass.
    """
    return reason if reason in _REASONS else "Other"


def _telling(report: Report) -> object:
    """The part of a report that people want to know at once."""
    decision = report.decision
    return (
        report.generation,
        decision.diagnosis.cause,
        decision.observed.slo_met,
        decision.recommended_replicas,
        tuple(
            (pod.name, pod.num_seqs, pod.num_scheduled_tokens, pod.ceiling, pod.state) for pod in report.pods
        ),
        frozenset(report.silent),
        frozenset(report.unavailable),
        report.partial,
        report.foreign,
    )


def _about(key: Key) -> KeyLogger:
    return KeyLogger(_log, *key)
