"""Has a fleet restarted with another --max-num-seqs, where the spec asks for it and no cap can be moved live.

The number that was chosen, and when, stand in status before the Deployment is made from them: so its cost is
told before it is paid, and an operator that ends at any point leaves a successor who makes the same
Deployment and keeps to the same interval. The Deployment remembers it too, for a status that was lost. The
spec is never written. Where it asks for restarts no more, or replaces pods anyway, the number goes, and pods
are started with spec.engine.maxNumSeqs again; when the last restart was stays known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from llamaserver.api.conditions import timestamp
from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.enums import RestartState, TuningMode
from llamaserver.api.rolling import rolling_digest
from llamaserver.api.server import LlamaServer
from llamaserver.api.status import NumSeqsBound, RestartStatus
from llamaserver.cluster import Kube
from llamaserver.cluster.kinds import DEPLOYMENT
from llamaserver.control.line import Load
from llamaserver.control.restart import Bound, Hold, Past, Restart, Terms, restart
from llamaserver.controller import journal, rollouts
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
        written again. With another model, another image or another spec.engine.maxNumSeqs all that was
        learned is forgotten: pods are replaced for those anyway.
        """
        tuning, told = parsed.spec.tuning, server.restart
        if tuning is None or tuning.restart is None:
            server.chosen = None
        elif told is not None and told.spec_digest not in (None, rolling_digest(parsed.spec)):
            server.restart, server.chosen = RestartStatus(time=told.time), None
        elif server.written is not None and _same(server.written.restart, told):
            server.chosen = told if told is not None and told.max_num_seqs is not None else None
        return server.chosen.max_num_seqs if server.chosen else None

    async def recall(self, server: Server, parsed: LlamaServer | None, kube: Kube) -> None:
        """Before the first look at a spec that asks for restarts: where status has lost what the last one
        chose, the Deployment has it.

        Raises ApiError where the API server cannot be asked, or refuses.
        """
        tuning = parsed.spec.tuning if parsed is not None else None
        if server.parsed is not None or tuning is None or tuning.restart is None:
            return
        if server.restart is not None and server.restart.max_num_seqs is not None:
            return
        found = rollouts.remembered_restart(await kube.get(DEPLOYMENT, *server.key))
        if found is not None:
            server.restart = server.chosen = found

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
            also = given_back(spec) if found.state is RestartState.LIVE else beyond(spec)
            told_now = {"state": found.state, "reason": f"{found.reason}; {also}" if also else found.reason}
            server.restart = (told or RestartStatus()).model_copy(update=told_now)
            return found.again_s
        self._note(server, spec, found)
        return 0.0

    def _found(self, server: Server, spec: EffectiveSpec, scaling: bool) -> Restart | Hold:
        assert spec.restart_min_interval is not None
        report = server.newest
        if spec.suspended or spec.tuning_mode is TuningMode.OFF:
            text = "nothing is restarted: spec.suspend is true, or spec.tuning.mode is Off"
            return Hold(RestartState.OFF, text)
        if server.invalid is not None or server.apply_problem is not None:
            text = "nothing is restarted: the present spec is not in force, or names what is not there"
            return Hold(RestartState.OFF, text)
        if server.replacing is not None:
            text = "nothing is restarted: a pod whose engine hangs is being replaced"
            return Hold(RestartState.WAITING_FOR_FLEET, text)
        every_s = report.every_s if report is not None else None
        if report is None or self.monotonic() - report.at > max(self.fresh_s, 3.0 * (every_s or 0.0)):
            return Hold(RestartState.NOT_KNOWN, "no engine gives figures")
        terms = Terms(
            min_interval_s=spec.restart_min_interval.seconds,
            low=spec.least_num_seqs,
            high=spec.most_num_seqs,
            acting=spec.tuning_mode is TuningMode.AUTO,
            objective=str(spec.inter_token_latency or ""),
        )
        fleet = standing(self.cache, server, scaling)
        return restart(terms, report.decision.restart, fleet, _past(server.restart), self.wall().timestamp())

    def _note(self, server: Server, spec: EffectiveSpec, found: Restart) -> None:
        now, past = self.wall(), found.past
        report = server.newest
        known = report.decision.restart if report is not None else None
        replicas = len(standing(self.cache, server, False).replicas)
        cost = _cost(spec, replicas, known.cold_start_s if known else None)
        server.restart = RestartStatus(
            max_num_seqs=found.seqs,
            time=timestamp(now),
            objective=past.objective or None,
            spec_digest=spec.rolling,
            upper_bound=_told(past.missed),
            lower_bound=_told(past.starved),
            state=RestartState.DECIDED,
        )
        entry = journal.restarted(spec.max_num_seqs, found.seqs, f"{found.reason}; {cost}", now)
        server.decisions.appendleft(entry)
        self.metrics.decisions.labels(entry.action).inc()
        KeyLogger(_log, *server.key).warning("restart %s -> %s: %s", entry.from_, entry.to, entry.reason)


def given_back(spec: EffectiveSpec) -> str:
    """How engines come by what a restart has taken from them, in words; empty where none has."""
    if spec.max_num_seqs >= spec.declared_num_seqs:
        return ""
    return (
        f"engines were started with {spec.max_num_seqs} of {spec.declared_num_seqs} sequences; the next "
        "rollout gives them back, or remove spec.tuning.restart"
    )


def beyond(spec: EffectiveSpec) -> str:
    """That a restart has chosen a number that spec.tuning.numSeqs allows no more; empty where it does."""
    seqs, part = spec.max_num_seqs, ""
    if spec.restart_min_interval is None or seqs >= spec.declared_num_seqs:
        return ""
    if seqs < spec.least_num_seqs:
        part = f"fewer than spec.tuning.numSeqs.min ({spec.least_num_seqs})"
    if seqs > spec.most_num_seqs:
        part = f"more than spec.tuning.numSeqs.max ({spec.most_num_seqs})"
    return f"engines were started with {seqs} sequences, {part}: the next restart meets it" if part else ""


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
    return Past(at.timestamp(), told.objective or "", _bound(told.upper_bound), _bound(told.lower_bound))


def _told(bound: Bound | None) -> NumSeqsBound | None:
    if bound is None:
        return None
    context, prefill = bound.load.context, bound.load.prefill
    return NumSeqsBound(
        num_seqs=bound.seqs,
        context_tokens=None if context is None else max(1, round(context)),
        prefill_ratio=None if prefill is None else f"{prefill:.4g}",
    )


def _bound(told: NumSeqsBound | None) -> Bound | None:
    if told is None:
        return None
    return Bound(told.num_seqs, Load(told.context_tokens, _number(told.prefill_ratio)))


def _number(text: str | None) -> float | None:
    """A figure as it was written; None for one that is absent or no positive number."""
    try:
        value = float(text) if text is not None else 0.0
    except ValueError:
        return None
    return value if 0.0 < value < float("inf") else None
