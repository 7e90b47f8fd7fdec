"""The fast loop: every few seconds ask the engines, decide, tell them. It never waits for the API server."""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.enums import PrefillBudget, TuningMode
from llamaserver.control import Cause, Decision, Fleet, Learned, Limits, Objective, Setpoint, decide, initial
from llamaserver.control.recovery import obstacle
from llamaserver.controller import downloads, pods, retune
from llamaserver.controller.cache import Cache
from llamaserver.controller.downloads import Told
from llamaserver.controller.facts import rollout
from llamaserver.controller.figures import Figures
from llamaserver.controller.mandate import Mandate
from llamaserver.controller.notes import Notes
from llamaserver.controller.queue import Key, WorkQueue
from llamaserver.controller.report import Outcome, report, telling, word
from llamaserver.controller.runtime import Report, Server
from llamaserver.controller.standing import standing
from llamaserver.controller.status import Moment, as_measured
from llamaserver.desired.deployment import IMAGE_PULL_ALLOWANCE_S
from llamaserver.engine import Applied, EngineClient, Refused, Target, Unreachable
from llamaserver.observe import Failure, Sample, advance
from llamaserver.prometheus import PrometheusSource
from llamaserver.telemetry import KeyLogger, Metrics

_log = logging.getLogger(__name__)

_BELIEVED_TICKS = 4
"""For so many ticks what a pod told of its download is what is known of it."""


@dataclass(frozen=True, slots=True)
class TickTimes:
    """Seconds. A scrape ends well within a tick, so that a hung pod costs its own window and no tick."""

    every_s: float = 2.0
    scrape_s: float = 1.5
    put_s: float = 6.0
    lease_s: float = 120.0
    first_report_s: float = 20.0
    """How long after a restart status keeps what an earlier leader wrote while nothing is known yet."""


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
        prometheus: PrometheusSource | None = None,
    ) -> None:
        self._cache = cache
        self._engines = engines
        self._mandate = mandate
        self._queue = queue
        self._metrics = metrics
        self._monotonic = monotonic
        self._wall = wall
        self._times = times
        self._notes = Notes(metrics, monotonic, wall)
        self._figures = Figures(
            engines, prometheus, monotonic=monotonic, every_s=times.every_s, scrape_s=times.scrape_s
        )
        self._tasks: dict[Key, tuple[Server, asyncio.Task[None]]] = {}
        self._asked: dict[Key, Mapping[str, Target]] = {}
        """The pods that each LlamaServer's last tick asked."""

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
        self._forget_gone(key, {})
        self._figures.forget(key)

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
            await self._pause(server, self._figures.pause_s(server.key, server.spec, took))

    async def _pause(self, server: Server, seconds: float) -> None:
        """Until the next tick. Figures that come by way of Prometheus come seldom; downloads are asked of the
        pods themselves, so that they are followed meanwhile.
        """
        end = self._monotonic() + seconds
        while (left := end - self._monotonic()) > self._times.every_s:
            await asyncio.sleep(self._times.every_s)
            try:
                await self._follow_downloads(server, [pods.read(obj) for obj in self._cache.pods(server.key)])
            except Exception:
                _about(server.key).exception("the downloads cannot be followed")
        await asyncio.sleep(max(0.0, left))

    async def tick(self, server: Server) -> None:
        """One round: scrape, conclude, decide, change, report."""
        spec, generation = server.spec, server.generation
        if spec is None:
            return
        known = [pods.read(obj) for obj in self._cache.pods(server.key)]
        targets = {pod.name: pod.target for pod in known if pod.target is not None}
        self._forget_gone(server.key, targets)
        asked_at = self._monotonic()
        results, _ = await asyncio.gather(
            self._figures.read(server.key, spec, targets), self._follow_downloads(server, known)
        )
        if results is None:
            return
        for result in results.values():
            if isinstance(result, Failure):
                self._metrics.scrape_failures.labels(result.why.value).inc()
        now = self._monotonic()
        server.memory, windows = advance(server.memory, results, now)
        samples = {name: result for name, result in results.items() if isinstance(result, Sample)}
        for name, sample in samples.items():
            self._mandate.saw(Key(server.key.namespace, name), sample.incarnation, retune.generation(sample))
        state = server.state or initial(_learned(server), now)
        fleet = self._fleet(server, known)
        server.state, decision = decide(objective(spec), limits(spec, fleet), state, windows, fleet, now)
        outcomes = await self._change(server.key.namespace, spec, decision, targets, samples)
        self._notes.retunes(server, spec, decision, outcomes, samples)
        decided = self._notes.replicas(server, spec, decision, fleet)
        foreign = "" if self._mandate.may_change() else self._mandate.stranger
        told = report(self._monotonic(), asked_at, decision, results, windows, outcomes, foreign)
        told = server.newest = replace(told, generation=generation)
        if self._notes.follow(server, told, fleet.ready) or decided:
            self._queue.add(server.key)
        if server.report is None and not self._tells(server, decision, now):
            return
        before, server.report = server.report, told
        self._wake(server, before, told)

    async def _follow_downloads(self, server: Server, known: list[pods.Pod]) -> None:
        """Ask how far they are. Status is looked at now and then while pods start; at once for what is first
        told.
        """
        asked = {pod.name: pod.downloads for pod in known if pod.downloads is not None}
        reachable = {name: target for name, target in asked.items() if target.host}
        answers = await asyncio.gather(
            *(self._engines.progress(target, self._times.scrape_s) for target in reachable.values())
        )
        now, before = self._monotonic(), server.downloads
        until = now + _BELIEVED_TICKS * self._times.every_s + self._times.scrape_s
        server.downloads = {
            name: Told(answer, target.incarnation, until)
            for (name, target), answer in zip(reachable.items(), answers, strict=True)
        }
        told = downloads.current(reachable, server.downloads, now)
        known_before = downloads.current(reachable, before, now)
        if any(told[name] is not None and known_before[name] is None for name in reachable):
            self._queue.add(server.key)

    async def _change(
        self,
        namespace: str,
        spec: EffectiveSpec,
        decision: Decision,
        targets: Mapping[str, Target],
        samples: Mapping[str, Sample],
    ) -> list[Outcome]:
        if not self._mandate.may_change():
            return []
        setpoints, claims = decision.setpoints, self._mandate.claimed(namespace)
        if spec.suspended or spec.tuning_mode is not TuningMode.AUTO:
            # What an earlier leader set may end with its lease; what another one keeps setting may not go on.
            setpoints = dict.fromkeys(claims & samples.keys(), Setpoint(None))
        changes = retune.due(setpoints, samples, self._times.lease_s, claims)
        answers = await asyncio.gather(
            *(self._put(namespace, targets[change.pod], samples[change.pod], change) for change in changes)
        )
        outcomes = [Outcome(change, answer) for change, answer in zip(changes, answers, strict=True)]
        for outcome in outcomes:
            self._metrics.retunes.labels(word(outcome.answer)).inc()
        return outcomes

    async def _put(
        self, namespace: str, target: Target, sample: Sample, change: retune.Change
    ) -> Applied | Refused | Unreachable:
        """One change; tried once more where the engine has moved on since it was read, if we surely lead."""
        number = change.generation
        for last_try in (False, True):
            self._mandate.changed(Key(namespace, change.pod), sample.incarnation, number)
            sent = self._monotonic()
            answer = await self._engines.put(
                target, change.setpoint, number, self._times.lease_s, self._times.put_s
            )
            if isinstance(answer, Applied):
                kind = "renewal" if change.renewal else "change"
                self._metrics.retune_seconds.labels(kind).observe(self._monotonic() - sent)
            stale = isinstance(answer, Refused) and answer.reason == "StaleGeneration"
            if last_try or not stale or not self._mandate.proven():
                return answer
            assert isinstance(answer, Refused)
            number = max(number, answer.generation or number) + 1
        raise AssertionError("unreachable")

    def _fleet(self, server: Server, known: list[pods.Pod]) -> Fleet:
        deployment = self._cache.deployment(server.key)
        live = ((deployment or {}).get("spec") or {}).get("replicas")
        ready = sum(pod.ready for pod in known)
        replicas = ready if live is None else int(live)
        assert server.spec is not None
        return Fleet(
            replicas=replicas,
            ready=ready,
            pending=max(0, replicas - ready),
            cold_start_s=self._cold_start(server, known),
            # For restarts alone, and read from all pods once more: not where nobody asks.
            settled=server.spec.restart_min_interval is None
            or not obstacle(standing(self._cache, server, False)),
            rolling=rollout(deployment, server.wanted_mark, server.settled).replacing,
        )

    def _cold_start(self, server: Server, known: list[pods.Pod]) -> float | None:
        """The median over the pods that are there, seconds; None when none tells."""
        assert server.spec is not None
        most_s = server.spec.startup_timeout.seconds + IMAGE_PULL_ALLOWANCE_S
        server.cold_starts = pods.cold_starts(server.cold_starts, known, most_s)
        took = [seconds for seconds in server.cold_starts.values() if seconds is not None]
        return statistics.median(took) if took else None

    def _wake(self, server: Server, before: Report | None, now: Report) -> None:
        """Have status looked at: at once when something happened; when only figures moved, once they have
        been out of the bands round those that are written for long enough.
        """
        wait: float | None = 0.0
        if server.composed is not None:
            moment = Moment(now.at, self._wall())
            shown = as_measured(server.composed, now, server.learned(now.at), moment)
            server.scatters = server.scatters.then(shown.observed, now.at)
            wait = server.rewritten_in(shown, now.at)
        if before is None or telling(before) != telling(now):
            wait = 0.0
        if wait is not None:
            self._queue.add(server.key, after_s=wait)

    def _tells(self, server: Server, decision: Decision, now: float) -> bool:
        """Whether a first report is worth more than what an earlier leader left in status.

        That nothing is known yet is no news right after a restart, however little is known.
        """
        if server.ticking_since is None:
            server.ticking_since = now
        inherited = server.written is not None and server.written.diagnosis is not None
        waited = now - server.ticking_since >= self._times.first_report_s
        return waited or not inherited or decision.diagnosis.cause is not Cause.STALE

    def _forget_gone(self, key: Key, targets: Mapping[str, Target]) -> None:
        for name, known in self._asked.pop(key, {}).items():
            if name not in targets:
                self._mandate.forget(Key(key.namespace, name))
            if name not in targets or targets[name].uid != known.uid:
                self._engines.forget(known.uid)
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
        itl_scope=itl.scope if itl else plain.itl_scope,
    )


def limits(spec: EffectiveSpec, fleet: Fleet) -> Limits:
    """What the user allows, in the control law's words."""
    return Limits(
        cap_min=spec.min_num_seqs,
        cap_max=spec.max_num_active_seqs,
        tuning=spec.tuning_mode,
        budget_moves=spec.prefill_budget is PrefillBudget.AUTO,
        scaling=spec.scaling_mode,
        replicas_min=spec.min_replicas,
        started=spec.max_num_seqs if spec.restart_min_interval is not None else None,
        rolling=spec.rolling,
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


def _about(key: Key) -> KeyLogger:
    return KeyLogger(_log, *key)
