"""Has the pod of an engine that hangs replaced, where the spec asks for it.

What is to be done is written into status before it is done, each time anew: a pod named there that is still
there is to go yet, and one that is not has gone, at the time written there. One whose engine gets on again is
named no more. So an operator that ends at any point leaves nothing that its successor does not see, and the
pauses between replacements count from the deed and outlive it. The pod is evicted and not deleted: disruption
budgets, also the user's own, have the last word, and its streams have their drain if the evidence was wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from llamaserver.api.conditions import timestamp
from llamaserver.api.enums import MetricsSource
from llamaserver.api.status import RecoveryStatus
from llamaserver.cluster import ApiError, Kube, NotLeadingError, Recorder, Reference
from llamaserver.control.recovery import (
    BY_PROMETHEUS,
    LOOK_AGAIN_S,
    Past,
    Replace,
    Wait,
    replacement,
)
from llamaserver.controller import announce, journal
from llamaserver.controller.cache import Cache
from llamaserver.controller.moments import moment
from llamaserver.controller.pods import Pod
from llamaserver.controller.runtime import Asked, Registry, Report, Server
from llamaserver.controller.standing import alive, standing
from llamaserver.telemetry import KeyLogger, Metrics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Decides at each look, and acts once the decision is written. Older reports than `fresh_s` are none."""

    kube: Kube
    cache: Cache
    registry: Registry
    recorder: Recorder
    metrics: Metrics
    monotonic: Callable[[], float]
    wall: Callable[[], datetime]
    fresh_s: float = 10.0

    def decide(self, server: Server, scaling: bool) -> float | None:
        """Bring `server.recovery` up to date. Returns after how many seconds to look again; None where no
        engine hangs, or nobody asked. `scaling` says that a change of the number of replicas is not done.
        """
        server.replacing = None
        self._let_off(server)
        found = self._found(server, scaling)
        if not isinstance(found, Replace):
            _explain(server, found.reason if isinstance(found, Wait) else None)
            return found.again_s if isinstance(found, Wait) else None
        if found.again and (wait_s := self._just_asked_s(server)) > 0.0:
            return wait_s
        now = self.wall()
        before = server.recovery.reason if found.again and server.recovery else None
        server.recovery = RecoveryStatus(
            pod=found.engine.pod, time=timestamp(now), replacements=found.count, reason=before
        )
        server.replacing, server.asked = found, None
        if not found.again:
            entry = journal.replaced(found.engine.pod, found.reason, now)
            server.decisions.appendleft(entry)
            self.metrics.decisions.labels(entry.action).inc()
            KeyLogger(_log, *server.key).warning("pod %s is replaced: %s", entry.pod, entry.reason)
        return LOOK_AGAIN_S

    async def act(self, server: Server) -> None:
        """Evict the pod that was decided upon, if status says so by now, and with the time of this look.

        Raises:
            NotLeadingError: this replica cannot prove that it leads.
        """
        chosen, written = server.replacing, server.written.recovery if server.written else None
        if chosen is None or written is None or server.recovery is None:
            return
        if (written.pod, written.time) != (server.recovery.pod, server.recovery.time):
            return
        pod = self._named(server, chosen.engine.pod)
        if pod is None:
            return
        try:
            await self.kube.evict(server.key.namespace, pod.name, pod.uid)
            server.asked = Asked(pod.uid, self.monotonic(), accepted=True)
            _explain(server, None)
        except NotLeadingError:
            raise
        except ApiError as error:
            server.asked = Asked(pod.uid, self.monotonic(), False if error.status else None)
            problem = f"the API server does not evict pod {pod.name}: {error.message}"
            _explain(server, problem)
            about = Reference(server.key.namespace, server.key.name, server.uid)
            announce.replacement_refused(self.recorder, about, problem)

    def _found(self, server: Server, scaling: bool) -> Replace | Wait | None:
        spec, report = server.spec, server.newest
        if spec is None or spec.replace_stalled_after is None or spec.suspended:
            return None
        if report is None:
            return None
        if spec.metrics_source is MetricsSource.PROMETHEUS:
            # No evidence however fresh; between two scrapes the report ages, and what is said stays.
            return Wait(BY_PROMETHEUS) if report.decision.stalled else None
        if not self._fresh(report):
            return None
        return replacement(
            spec.replace_stalled_after.seconds,
            report.decision.stalled,
            standing(self.cache, server, scaling),
            _past(server.recovery),
            self.wall().timestamp(),
            self._elsewhere_at(server),
        )

    def _fresh(self, report: Report) -> bool:
        return self.monotonic() - report.at <= self.fresh_s

    def _let_off(self, server: Server) -> None:
        """Name the pod no more that was to go, once its engine gets on after all: what is decided later,
        whoever leads then, is another matter.
        """
        told, report = server.recovery, server.newest
        if told is None or told.pod is None or report is None or not self._fresh(report):
            return
        pod = self._named(server, told.pod)
        if pod is None or told.pod not in report.decision.moving:
            return
        if server.asked is not None and server.asked.accepted and server.asked.uid == pod.uid:
            return
        KeyLogger(_log, *server.key).info("pod %s is not replaced: its engine got on again", pod.name)
        server.recovery = told.model_copy(update={"pod": None, "reason": None})

    def _just_asked_s(self, server: Server) -> float:
        """Seconds until the eviction that was asked for may be asked for again: each time is a write."""
        if server.asked is None:
            return 0.0
        return server.asked.at + LOOK_AGAIN_S - self.monotonic()

    def _elsewhere_at(self, server: Server) -> float:
        """When a pod of any other LlamaServer may have been replaced last."""
        others = [self.registry.get(key) for key in self.registry.known() if key != server.key]
        return max(
            (_past(other.recovery).at for other in others if other and not self._undone(other)),
            default=float("-inf"),
        )

    def _undone(self, server: Server) -> bool:
        """Whether the pod that was to go stays, as far as is known: however often its eviction is asked for,
        others need not wait for it.
        """
        named = server.recovery.pod if server.recovery else None
        if named is None:
            return True
        refused = server.asked is not None and server.asked.accepted is False
        return refused and self._named(server, named) is not None

    def _named(self, server: Server, name: str) -> Pod | None:
        return next((pod for pod in alive(self.cache, server) if pod.name == name), None)


def _past(told: RecoveryStatus | None) -> Past:
    at = moment(told.time) if told is not None else None
    if told is None or at is None:
        return Past()
    return Past(told.pod or "", at.timestamp(), told.replacements or 0)


def _explain(server: Server, reason: str | None) -> None:
    """Say why an engine that hangs is not replaced, or nothing any more."""
    if server.recovery is not None:
        server.recovery = server.recovery.model_copy(update={"reason": reason})
    elif reason is not None:
        server.recovery = RecoveryStatus(reason=reason)
