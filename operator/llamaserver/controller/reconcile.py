"""One look at one LlamaServer: validate, make its children what they should be, write status. Safe to repeat.

A pass needs nothing but what the cluster says now. It never waits for an engine; figures come from the last
tick.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from time import perf_counter

from llamaserver.api.conditions import Reason
from llamaserver.api.effective import EffectiveSpec, effective
from llamaserver.api.errors import InvalidSpec
from llamaserver.api.names import API_VERSION, KIND
from llamaserver.api.rolling import rolling_digest
from llamaserver.api.server import LlamaServer, parse, read_status
from llamaserver.api.status import Status
from llamaserver.cluster import (
    ApiError,
    Kube,
    NotLeadingError,
    Recorder,
    Reference,
    UnavailableError,
)
from llamaserver.cluster.kinds import DEPLOYMENT, Object, kind_of
from llamaserver.controller import announce, downloads, pods, references, rollouts, status
from llamaserver.controller.cache import Cache
from llamaserver.controller.children import Children, ForeignObjectError, Written
from llamaserver.controller.diff import digest
from llamaserver.controller.facts import Facts, rollout, told_of, waits
from llamaserver.controller.queue import Key, RetryLater, WorkQueue
from llamaserver.controller.recovery import Recovery
from llamaserver.controller.restart import Restarts
from llamaserver.controller.runtime import Registry, Server
from llamaserver.controller.scaledown import LOOK_AGAIN_S, ScaleDown
from llamaserver.controller.tick import Ticker
from llamaserver.desired import (
    BuildSettings,
    ClaimProblem,
    DesiredFleet,
    build,
    claim_problem,
    desired_fleet,
    first_difference,
    outlook,
    termination_grace_seconds,
)
from llamaserver.telemetry import KeyLogger, Metrics

_log = logging.getLogger(__name__)

_NO_POD_TEMPLATE = (
    "is not allowed by this operator, which runs with --allow-pod-template=false "
    "(operator.allowPodTemplate of the chart): remove it"
)
_STATUS_LATER_S = 0.2
"""When a new LlamaServer is looked at again for its status, if others wait for their Deployments."""
_PATIENCE_S = 180.0
"""A pod may be in trouble for this long after all that had to make room for it must have ended."""
_TROUBLE_S = 20.0
"""How often status is looked at while a pod is not ready."""
_TRUST_S = 30.0
"""After this long the watches have surely shown a status that was written, so the live one is believed again.
"""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a reconciler works with."""

    kube: Kube
    cache: Cache
    registry: Registry
    children: Children
    scale_down: ScaleDown
    recovery: Recovery
    restarts: Restarts
    recorder: Recorder
    metrics: Metrics
    settings: Callable[[], BuildSettings]
    monotonic: Callable[[], float]
    wall: Callable[[], datetime]
    allow_pod_template: bool = True


@dataclass(frozen=True, slots=True)
class Made:
    """What came of making the children."""

    held: bool = False
    """A scale-down waits for what it needs to know."""
    anew: bool = False
    """There was no Deployment before."""


@dataclass
class Reconciler:
    """`look` is the work queue's handler. `ticker` and `queue` are set once they exist."""

    parts: Parts
    ticker: Ticker | None = None
    queue: WorkQueue | None = None

    async def look(self, key: Key) -> float | None:
        """One pass, counted and timed."""
        started = perf_counter()
        result = "ok"
        try:
            again, result = await self._look(key)
            return again
        except RetryLater:
            result = "retry"
            raise
        except Exception:
            result = "error"
            raise
        finally:
            self.parts.metrics.reconcile_seconds.observe(perf_counter() - started)
            self.parts.metrics.reconciles.labels(result).inc()

    async def _look(self, key: Key) -> tuple[float | None, str]:
        raw = self.parts.cache.server(key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            self._forget(key)
            return None, "ok"
        server = self._obtain(key, raw)
        later: RetryLater | None = None
        made = Made()
        try:
            await self._validate(server, raw)
            if server.parsed is not None:
                # Children that cannot be made are no reason not to tune what runs.
                if self.ticker is not None:
                    self.ticker.start(server)
                made = await self._make_children(server, server.parsed)
        except NotLeadingError as error:
            raise RetryLater(error.message, after_s=2.0) from None
        except UnavailableError as error:
            raise RetryLater(str(error), after_s=error.retry_after_s or 0.0) from None
        except RetryLater as wish:
            later = wish
        if made.anew and self.queue is not None and self.queue.depth():
            # It can wait until those who came at the same time have their Deployments, too.
            return _STATUS_LATER_S, "ok"
        recover = restart = None
        held = made.held
        if later is None:
            recover = self.parts.recovery.decide(server, _scales(server, held))
            restart = self.parts.restarts.decide(server, _scales(server, held))
        again = await self._write_status(server, raw)
        if later is not None:
            raise later
        await self._recover(server)
        missing = isinstance(server.invalid, references.MissingReference)
        looks = (LOOK_AGAIN_S if held else None, references.AGAIN_S if missing else None)
        times = (again, recover, restart, *looks)
        return min(
            (time for time in times if time is not None), default=None
        ), "invalid" if server.invalid else "ok"

    def _obtain(self, key: Key, raw: Object) -> Server:
        server = self.parts.registry.obtain(key, raw["metadata"]["uid"])
        if server.written is None:
            server.written = read_status(raw.get("status"))
            server.decisions.extend(server.written.decisions or ())
            server.recovery = server.written.recovery
            server.restart = server.written.restart
        elif self.parts.monotonic() - server.written_at > _TRUST_S:
            server.written = read_status(raw.get("status"))
        return server

    def _forget(self, key: Key) -> None:
        """The LlamaServer is gone or going; its children follow by their owner references."""
        self.parts.registry.drop(key)
        self.parts.children.forget(key)
        self.parts.metrics.forget(*key)
        if self.ticker is not None:
            self.ticker.stop(key)
        if self.queue is not None:
            self.queue.forget(key)

    async def _validate(self, server: Server, raw: Object) -> None:
        """The last spec that can be acted upon: the present one, else the one from before, which goes on."""
        candidate: LlamaServer | None = None
        try:
            parsed = parse(raw)
            self._check_allowed(parsed)
            candidate = parsed
            await references.check(server, parsed, self.parts.kube, self.parts.monotonic())
        except InvalidSpec as error:
            server.invalid = error
            if server.parsed is None:
                last = await self._last_accepted(server.key, raw)
                await self.parts.restarts.recall(server, last, self.parts.kube)
                self._accept(server, last, None)
            if candidate is None or _replaces_pods(server, candidate):
                return
        else:
            server.invalid = None
        await self.parts.restarts.recall(server, candidate, self.parts.kube)
        self._accept(server, candidate, raw["metadata"].get("generation"))

    def _check_allowed(self, parsed: LlamaServer) -> None:
        """Raises InvalidSpec for what the operator's own settings do not allow."""
        if parsed.spec.pod_template is not None and not self.parts.allow_pod_template:
            raise InvalidSpec("spec.podTemplate", _NO_POD_TEMPLATE)

    def _accept(self, server: Server, parsed: LlamaServer | None, generation: int | None) -> None:
        if parsed is None:
            return
        before = server.spec
        server.parsed, server.generation = parsed, generation
        spec = server.spec = effective(parsed.spec, self.parts.restarts.chosen(server, parsed))
        if before is not None and _scales_by(spec) != _scales_by(before):
            server.decided_replicas = None

    async def _last_accepted(self, key: Key, raw: Object) -> LlamaServer | None:
        live = await self.parts.kube.get(DEPLOYMENT, *key)
        spec = rollouts.remembered(live)
        try:
            return None if spec is None else parse({**raw, "spec": spec})
        except InvalidSpec:
            return None

    async def _make_children(self, server: Server, parsed: LlamaServer) -> Made:
        """Make what is missing and change what differs; only a scale-down may have to wait."""
        assert server.spec is not None
        current = ((self.parts.cache.deployment(server.key) or {}).get("spec") or {}).get("replicas")
        decided = server.decided_replicas
        if current is None and decided is None and server.written and server.written.scaling:
            decided = server.written.scaling.desired_replicas
        chosen = server.chosen.max_num_seqs if server.chosen else None
        fleet = replace(desired_fleet(server.spec, current, decided), max_num_seqs=chosen)
        if current is not None and current == fleet.replicas:
            # Done, or done by somebody else: from here on what runs counts, not what was decided once.
            server.decided_replicas = None
        count = await self.parts.scale_down.prepare(
            server,
            current,
            fleet.replicas,
            lambda: _deployment(self._build(server, parsed, replace(fleet, replicas=current))),
        )
        held = count != fleet.replicas
        objects = self._build(server, parsed, replace(fleet, replicas=count))
        server.wanted_mark = digest(_deployment(objects))
        server.waits_for = ""
        try:
            written = await self.parts.children.ensure(
                server.key, server.uid, objects, lambda change: self._announce(server, change)
            )
            await self.parts.children.prune(server.key, objects)
        except ForeignObjectError as error:
            server.apply_problem = (Reason.CONFLICT, str(error))
            raise RetryLater(str(error), after_s=30.0) from None
        except RetryLater as wish:
            server.apply_problem, server.waits_for = None, str(wish)
            raise
        except (UnavailableError, NotLeadingError):
            raise
        except ApiError as error:
            server.apply_problem = (Reason.APPLY_REFUSED, error.message)
            raise RetryLater(str(error), after_s=5.0) from None
        server.apply_problem = None
        for change in written:
            self._note(server, change)
        return Made(held, any(change.kind is DEPLOYMENT and change.before is None for change in written))

    def _build(self, server: Server, parsed: LlamaServer, fleet: DesiredFleet) -> list[Object]:
        return [
            rollouts.with_restart(rollouts.remember(obj, parsed), server.chosen)
            for obj in build(parsed, fleet, self.parts.settings())
        ]

    def _announce(self, server: Server, change: Written) -> None:
        """Once it is sure that pods are replaced, say why, and what that means for those who are served."""
        if change.cause and server.spec is not None:
            about = Reference(server.key.namespace, server.key.name, server.uid)
            replicas = change.wanted["spec"].get("replicas", (change.before or {})["spec"].get("replicas", 1))
            announce.rollout(self.parts.recorder, about, change.cause, outlook(server.spec, replicas))

    def _note(self, server: Server, change: Written) -> None:
        reason = change.cause
        if change.before and not reason:
            with contextlib.suppress(Exception):
                # For the log alone: a comparison that fails is no reason to leave the rest undone.
                reason = first_difference(change.before, change.wanted)
        what = f"{change.kind.kind} {change.name}"
        KeyLogger(_log, *server.key).info("%s %s %s", "applied" if change.before else "made", what, reason)
        if change.kind is DEPLOYMENT:
            server.replaces_pods |= bool(change.cause)

    async def _write_status(self, server: Server, raw: Object) -> float | None:
        """Write status when it tells something new: at once for what happened, and for figures once they have
        left what is written of them.
        """
        assert server.written is not None
        now = status.Moment(self.parts.monotonic(), self.parts.wall())
        learned = server.learned(now.monotonic)
        grace_s = termination_grace_seconds(server.parsed, self.parts.settings()) if server.parsed else None
        facts = self._facts(server, raw, now.wall, grace_s or 0)
        after = status.compose(
            status.Identity(server.key.name, raw["metadata"].get("generation") or 0),
            facts,
            server.written,
            decisions=server.decisions,
            recovery=server.recovery,
            restart=server.restart,
            learned=learned,
            grace_s=grace_s,
            now=now,
        )
        server.composed = after
        self._expose(server, after)
        # Nothing but time turns a trouble into a stall, and a long start into a trouble.
        again = _TROUBLE_S if waits(facts) else None
        if not status.tells_something_new(server.written, after):
            wait = server.rewritten_in(after, now.monotonic)
            if wait is None:
                return again
            if wait > 0:
                return wait
        await self._apply_status(server, after)
        before = server.written
        server.wrote(after, now.monotonic)
        about = Reference(server.key.namespace, server.key.name, server.uid)
        announce.tell(self.parts.recorder, about, before, after)
        return again

    async def _recover(self, server: Server) -> None:
        """Do what was decided about an engine that hangs, now that it is written."""
        try:
            await self.parts.recovery.act(server)
        except NotLeadingError as error:
            raise RetryLater(error.message, after_s=2.0) from None

    async def _apply_status(self, server: Server, after: Status) -> None:
        metadata = {"namespace": server.key.namespace, "name": server.key.name, "uid": server.uid}
        try:
            await self.parts.kube.apply_status(
                {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": after.to_dict()}
            )
        except NotLeadingError as error:
            raise RetryLater(error.message, after_s=2.0) from None
        except UnavailableError as error:
            raise RetryLater(str(error), after_s=error.retry_after_s or 0.0) from None
        except ApiError as error:
            if error.status in (404, 409):
                raise RetryLater(
                    f"the LlamaServer changed underneath: {error.message}", after_s=1.0
                ) from None
            raise

    def _facts(self, server: Server, raw: Object, now: datetime, grace_s: float) -> Facts:
        deployment = self.parts.cache.deployment(server.key)
        server.settled = told_of(deployment, server.settled)
        state = rollout(deployment, server.wanted_mark, server.settled)
        if state.complete and state.ready >= state.wanted:
            server.replaces_pods = False
        replaces = server.replaces_pods or state.total > state.updated
        known = [pods.read(obj) for obj in self.parts.cache.pods(server.key)]
        missing = server.missing_since = references.missing_since(server, now)
        return Facts(
            spec=server.spec,
            invalid="" if server.invalid is None else str(server.invalid),
            invalid_reason=Reason.REFERENCE_NOT_FOUND if missing else Reason.INVALID_SPEC,
            invalid_since=missing,
            in_force=missing is not None and server.generation == raw["metadata"].get("generation"),
            apply_problem=server.apply_problem,
            claim_problem=self._claim_problem(server),
            rollout=state,
            rollout_reason=rollouts.cause_of(deployment) if replaces else "",
            pods=known,
            report=server.report,
            now=now,
            patience_s=grace_s + _PATIENCE_S,
            waits_for=server.waits_for,
            restart=(server.restart.reason if server.restart else None) or "",
            downloads=downloads.current(
                {pod.name: pod.downloads for pod in known if pod.downloads is not None},
                server.downloads,
                self.parts.monotonic(),
            ),
        )

    def _claim_problem(self, server: Server) -> ClaimProblem | None:
        if server.parsed is None or server.spec is None:
            return None
        return claim_problem(server.parsed.spec, server.spec, references.claims(server.seen))

    def _expose(self, server: Server, after: Status) -> None:
        metrics, key = self.parts.metrics, server.key
        observed = server.report.decision.observed if server.report else None
        met = observed.slo_met if observed else None
        metrics.set_server(metrics.slo_met, *key, None if met is None else float(met))
        metrics.set_server(metrics.itl_seconds, *key, observed.itl_s if observed else None)
        metrics.set_server(metrics.running, *key, observed.running if observed else None)
        metrics.set_server(metrics.waiting, *key, observed.waiting if observed else None)
        metrics.set_server(metrics.cap, *key, after.tuning.num_seqs if after.tuning else None)
        wanted = after.scaling.desired_replicas if after.scaling else None
        metrics.set_server(metrics.replicas, *key, wanted)
        if after.diagnosis is not None:
            metrics.set_cause(*key, after.diagnosis.cause)


def _deployment(objects: Iterable[Object]) -> Object:
    return next(obj for obj in objects if kind_of(obj) is DEPLOYMENT)


def _replaces_pods(server: Server, candidate: LlamaServer) -> bool:
    """Whether `candidate` starts pods from something else than the spec in force, or anew where none is."""
    if server.parsed is None or rolling_digest(candidate.spec) != rolling_digest(server.parsed.spec):
        return True
    tuning = candidate.spec.tuning
    return server.chosen is not None and (tuning is None or tuning.restart is None)


def _scales(server: Server, held: bool) -> bool:
    """Whether a change of the number of replicas is decided and not done."""
    return held or server.shrinks_since is not None or server.decided_replicas is not None


def _scales_by(spec: EffectiveSpec) -> tuple[object, ...]:
    """What a decided number of replicas was decided under."""
    return spec.suspended, spec.scaling_mode, spec.min_replicas, spec.max_replicas
