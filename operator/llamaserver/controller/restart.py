"""Has a fleet restarted with another --max-num-seqs, where the spec asks for it and no cap can be moved live.

The number that was chosen, and when, stand in status before the Deployment is made from them: so its cost is
told before it is paid, and an operator that ends at any point leaves a successor who makes the same
Deployment and keeps to the same interval. The spec is never written. Where it asks for restarts no more the
number goes, and pods are started with spec.engine.maxNumSeqs again; when the last restart was stays known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from llamaserver.api.conditions import timestamp
from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.enums import TuningMode
from llamaserver.api.server import LlamaServer
from llamaserver.api.status import RestartStatus
from llamaserver.control.line import Load
from llamaserver.control.restart import Hold, Past, Restart, Terms, restart
from llamaserver.controller import journal
from llamaserver.controller.cache import Cache
from llamaserver.controller.moments import moment
from llamaserver.controller.runtime import Server
from llamaserver.controller.standing import standing
from llamaserver.desired import outlook
from llamaserver.telemetry import KeyLogger, Metrics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restarts:
    """Decides at each look; the next look makes the Deployment. Reports older than `fresh_s` are none."""

    cache: Cache
    metrics: Metrics
    monotonic: Callable[[], float]
    wall: Callable[[], datetime]
    fresh_s: float = 10.0

    def chosen(self, server: Server, parsed: LlamaServer) -> int | None:
        """What engines are to be started with by the last restart; None for what the spec says.

        A number counts once it is written. Should somebody else take it out of status, it counts on and is
        written again.
        """
        tuning = parsed.spec.tuning
        if tuning is None or tuning.restart is None:
            server.chosen = None
        elif server.written is not None and _same(server.written.restart, server.restart):
            server.chosen = server.restart.max_num_seqs if server.restart else None
        return server.chosen

    def decide(self, server: Server, scaling: bool) -> float | None:
        """Bring `server.restart` up to date. Returns after how many seconds to look again; None where only
        new figures can change anything. `scaling` says that a change of the number of replicas is not done.
        """
        spec, told = server.spec, server.restart
        if spec is None:
            return None
        if spec.restart_min_interval is None:
            server.restart = RestartStatus(time=told.time) if told is not None and told.time else None
            return None
        if not _same(server.written.restart if server.written else None, told):
            return 0.0
        found = self._found(server, spec, scaling)
        if isinstance(found, Hold):
            server.restart = (told or RestartStatus()).model_copy(update={"reason": found.reason})
            return found.again_s
        self._note(server, spec, found)
        return 0.0

    def _found(self, server: Server, spec: EffectiveSpec, scaling: bool) -> Restart | Hold:
        assert spec.restart_min_interval is not None
        report = server.newest
        if spec.suspended or spec.tuning_mode is TuningMode.OFF:
            return Hold("nothing is restarted: spec.suspend is true, or spec.tuning.mode is Off")
        if server.invalid is not None or server.apply_problem is not None:
            return Hold("nothing is restarted: the present spec is not in force")
        if server.replacing is not None:
            return Hold("nothing is restarted: a pod whose engine hangs is being replaced")
        every_s = report.every_s if report is not None else None
        if report is None or self.monotonic() - report.at > max(self.fresh_s, 3.0 * (every_s or 0.0)):
            return Hold("no engine gives figures")
        terms = Terms(
            min_interval_s=spec.restart_min_interval.seconds,
            low=spec.min_num_seqs,
            high=spec.most_num_seqs,
            acting=spec.tuning_mode is TuningMode.AUTO,
            objective=str(spec.inter_token_latency or ""),
        )
        fleet = standing(self.cache, server, scaling)
        return restart(terms, report.decision.restart, fleet, _past(server.restart), self.wall().timestamp())

    def _note(self, server: Server, spec: EffectiveSpec, found: Restart) -> None:
        now, past = self.wall(), found.past
        load = past.load or Load()
        report = server.newest
        known = report.decision.restart if report is not None else None
        replicas = len(standing(self.cache, server, False).replicas)
        cost = _cost(spec, replicas, known.cold_start_s if known else None)
        server.restart = RestartStatus(
            max_num_seqs=found.seqs,
            time=timestamp(now),
            objective=past.objective or None,
            context=_figure(load.context),
            prefill=_figure(load.prefill),
            missed=past.missed,
            starved=past.starved,
        )
        entry = journal.restarted(spec.max_num_seqs, found.seqs, f"{found.reason}; {cost}", now)
        server.decisions.appendleft(entry)
        self.metrics.decisions.labels(entry.action).inc()
        KeyLogger(_log, *server.key).warning("restart %s -> %s: %s", entry.from_, entry.to, entry.reason)


def _same(written: RestartStatus | None, told: RestartStatus | None) -> bool:
    """Whether status says of the last restart what is to be said."""
    a, b = written or RestartStatus(), told or RestartStatus()
    return (a.max_num_seqs, a.time) == (b.max_num_seqs, b.time)


def _cost(spec: EffectiveSpec, replicas: int, cold_start_s: float | None) -> str:
    """What a restart of all pods costs, in words."""
    pods = "1 pod starts anew" if replicas == 1 else f"{replicas} pods start anew"
    each = f"which may take {spec.startup_timeout} each, and was never measured"
    if cold_start_s is not None and cold_start_s > 0.0:
        took = f"{cold_start_s:.0f} s" if cold_start_s < 120.0 else f"{cold_start_s / 60.0:.0f} minutes"
        each = f"for which {took} each were measured"
    return f"{pods}, {each}: {outlook(spec, replicas).text}"


def _past(told: RestartStatus | None) -> Past:
    at = moment(told.time) if told is not None else None
    if told is None or at is None:
        return Past()
    load = Load(_number(told.context), _number(told.prefill))
    return Past(at.timestamp(), told.objective or "", load, told.missed, told.starved)


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _number(text: str | None) -> float | None:
    """A figure as it was written; None for one that is absent or no positive number."""
    try:
        value = float(text) if text is not None else 0.0
    except ValueError:
        return None
    return value if 0.0 < value < float("inf") else None
