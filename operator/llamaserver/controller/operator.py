"""The whole operator in one event loop: what runs always, what runs while this replica leads, and how it all
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from llamaserver.cluster import (
    AioKube,
    ApiError,
    Elector,
    LeaderOnly,
    LostLeadershipError,
    Recorder,
    load,
)
from llamaserver.cluster.kinds import LEASE
from llamaserver.controller.cache import Cache
from llamaserver.controller.children import Children
from llamaserver.controller.figures import prometheus_of
from llamaserver.controller.handlers import Event, Watches, WatchScope
from llamaserver.controller.keystore import KeyStore
from llamaserver.controller.mandate import Mandate
from llamaserver.controller.options import Options
from llamaserver.controller.queue import Key, WorkQueue
from llamaserver.controller.reconcile import Parts, Reconciler
from llamaserver.controller.recovery import Recovery
from llamaserver.controller.restart import Restarts
from llamaserver.controller.resync import Resync
from llamaserver.controller.runtime import Registry
from llamaserver.controller.scaledown import PATIENCE_S, ScaleDown
from llamaserver.controller.tick import Ticker, TickTimes
from llamaserver.desired import BuildSettings
from llamaserver.engine import EngineClient
from llamaserver.prometheus import PrometheusSource
from llamaserver.telemetry import Canary, HealthServer, LoopLag, Metrics, Probes

_log = logging.getLogger(__name__)

_SILENT_S = 60.0
_SLOTS_BESIDE = 8
"""Calls to the API server that may be under way beside one of each worker: the lease, events, lists."""
_KEYS_S = 60.0
_KEYS_RETRY_S = 5.0


class Operator:
    """Wires the parts together. `run` returns the exit code: 0 after a signal, 1 when it has to be started
    anew.
    """

    def __init__(self, options: Options, settled: Callable[[], None] = lambda: None) -> None:
        """`settled` is called once, when the caches are filled and this replica begins to lead."""
        self._options = options
        self._settled = settled
        self._monotonic = time.monotonic
        self.metrics = Metrics()
        self.lag = LoopLag(self._monotonic)
        self.canary = Canary(self._monotonic)
        self.cache = Cache(self._monotonic)
        self.registry = Registry()
        self.stop = asyncio.Event()
        self.probes = Probes(self.lag, self.canary, self._is_synced)
        self.http_port = options.http_port
        self._resync: Resync | None = None
        self._leading = False

    async def run(self) -> int:
        """Run until a signal, `stop`, or a fault that only a new start cures."""
        configuration = await load(self._options.kubeconfig)
        health = HealthServer(
            self.probes, self.metrics, host=self._options.http_host, port=self._options.http_port
        )
        kube = AioKube(
            configuration,
            concurrency=self._options.workers + _SLOTS_BESIDE,
            per_second=self._options.kube_api_qps,
            burst=self._options.kube_api_burst,
            observe=self._count_call,
        )
        async with health, kube:
            self.http_port = health.port
            with _signals(self.stop):
                return await self._run(kube)

    async def _run(self, kube: AioKube) -> int:
        options = self._options

        def may_write() -> None:
            # What could not be written meanwhile has backed off, and must not wait that out now.
            queue.retry_now()

        elector = Elector(
            kube,
            namespace=options.namespace,
            name=options.lease_name,
            identity=options.identity,
            monotonic=self._monotonic,
            times=options.lease_times,
            on_contact=self.canary.contact,
            on_proof=may_write,
        )
        writer = LeaderOnly(kube, elector.proven)
        keys = KeyStore(writer, namespace=options.namespace, name=options.signing_secret)
        recorder = Recorder(writer, instance=options.identity, monotonic=self._monotonic)
        mandate = Mandate(elector.holds, elector.proven)
        prometheus = prometheus_of(options, self._monotonic)
        async with EngineClient(key=keys.signing_key, monotonic=self._monotonic, wall=time.time) as engines:
            reconciler, queue = self._reconciler(writer, keys, recorder)
            ticker = self._ticker(engines, mandate, queue, prometheus)
            reconciler.ticker, reconciler.queue = ticker, queue
            self.metrics.watch_live(
                depth=queue.depth,
                oldest=queue.oldest_age,
                leads=lambda: float(elector.proven()),
                servers=lambda: float(sum(1 for _ in self.cache.servers())),
            )

            def changed(key: Key) -> None:
                # A standby looks at nothing: whoever comes to lead looks at everything first.
                if self._leading:
                    queue.add(key)

            def readable(namespaces: Sequence[str]) -> None:
                watches.watch_only(namespaces)

            resync = self._resync = Resync(
                kube=kube,
                cache=self.cache,
                namespaces=options.watch_namespaces,
                changed=changed,
                monotonic=self._monotonic,
                every_s=options.resync_seconds,
                readable=readable,
            )
            watches = self._watches(changed, resync)
            try:
                return await self._until_done(
                    {
                        "event loop's pulse": self.lag.run(),
                        "leader election": elector.run(),
                        "resync": resync.run(),
                        "watches": self._watch(watches, resync),
                        "events": recorder.run(),
                        "leading": self._lead(elector, resync, keys, queue),
                    }
                )
            finally:
                await ticker.close()
                if prometheus is not None:
                    prometheus.close()
                await elector.release()

    def _reconciler(
        self, writer: LeaderOnly, keys: KeyStore, recorder: Recorder
    ) -> tuple[Reconciler, WorkQueue]:
        options = self._options

        def settings() -> BuildSettings:
            return BuildSettings(
                tuner_image=options.tuner_image,
                tuner_delivery=options.tuner_delivery,
                tuner_pull_policy=options.tuner_pull_policy,
                public_keys=keys.public(),
                pre_stop_seconds=options.pre_stop_seconds,
            )

        reconciler = Reconciler(
            Parts(
                kube=writer,
                cache=self.cache,
                registry=self.registry,
                children=Children(writer, self.cache),
                scale_down=ScaleDown(
                    kube=writer,
                    cache=self.cache,
                    recorder=recorder,
                    monotonic=self._monotonic,
                    patience_s=max(PATIENCE_S, 3 * options.tick_seconds),
                ),
                recovery=Recovery(
                    kube=writer,
                    cache=self.cache,
                    registry=self.registry,
                    recorder=recorder,
                    metrics=self.metrics,
                    monotonic=self._monotonic,
                    wall=_now,
                    fresh_s=max(10.0, 3 * options.tick_seconds),
                ),
                restarts=Restarts(
                    cache=self.cache,
                    metrics=self.metrics,
                    monotonic=self._monotonic,
                    wall=_now,
                    fresh_s=max(10.0, 3 * options.tick_seconds),
                ),
                recorder=recorder,
                metrics=self.metrics,
                settings=settings,
                monotonic=self._monotonic,
                wall=_now,
                allow_pod_template=options.allow_pod_template,
            )
        )
        return reconciler, WorkQueue(reconciler.look, monotonic=self._monotonic, workers=options.workers)

    def _ticker(
        self,
        engines: EngineClient,
        mandate: Mandate,
        queue: WorkQueue,
        prometheus: PrometheusSource | None,
    ) -> Ticker:
        return Ticker(
            cache=self.cache,
            engines=engines,
            mandate=mandate,
            queue=queue,
            metrics=self.metrics,
            monotonic=self._monotonic,
            wall=_now,
            times=TickTimes(
                every_s=self._options.tick_seconds,
                scrape_s=self._options.tick_seconds * 0.75,
                lease_s=self._options.lease_seconds,
            ),
            prometheus=prometheus,
        )

    def _watches(self, changed: Callable[[Key], None], resync: Resync) -> Watches:
        def sink(event: Event) -> None:
            if event.kind is LEASE:
                self.canary.seen()
                return
            metadata = event.obj["metadata"]
            namespace, name = metadata["namespace"], metadata["name"]
            if event.listed:
                resync.want()
            known = self.cache.get(event.kind, namespace, name)
            if event.deleted:
                mine = known is None or known["metadata"].get("uid") == metadata.get("uid")
                key = self.cache.drop(event.kind, namespace, name) if mine else None
            else:
                same = known and known["metadata"].get("resourceVersion") == metadata.get("resourceVersion")
                key = None if same else self.cache.put(event.kind, event.obj)
            if key is not None:
                changed(key)

        scope = WatchScope(
            namespaces=self._options.watch_namespaces,
            own_namespace=self._options.namespace,
            lease_name=self._options.lease_name,
            kubeconfig=self._options.kubeconfig,
        )

        def restarted() -> None:
            self.metrics.watch_restarts.inc()
            # They may have ended because a namespace was lost.
            resync.want()

        return Watches(scope, sink=sink, restarted=restarted, monotonic=self._monotonic)

    async def _watch(self, watches: Watches, resync: Resync) -> None:
        """Watch once the kinds are known to exist, and anew when the watches fall silent."""
        await resync.synced.wait()
        self.canary.seen()
        renewed_at = self._monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(watches.run())
            while True:
                await asyncio.sleep(5)
                # A renewal is no proof of life: the canary goes on ageing, and fails /healthz in the end.
                if self.canary.age() >= _SILENT_S and self._monotonic() - renewed_at >= _SILENT_S:
                    _log.error("the watches are silent although the API server answers; they start anew")
                    renewed_at = self._monotonic()
                    watches.renew()

    async def _lead(self, elector: Elector, resync: Resync, keys: KeyStore, queue: WorkQueue) -> None:
        """What only the leader does: reconcile and, through it, tick."""
        await elector.acquired.wait()
        await resync.synced.wait()
        while True:
            if await _refreshed(keys):
                break
            await asyncio.sleep(_KEYS_RETRY_S)
        self._settled()
        self._leading = True
        for key in self.cache.servers():
            queue.add(key)
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.run())
            group.create_task(self._follow_keys(keys, queue))

    async def _follow_keys(self, keys: KeyStore, queue: WorkQueue) -> None:
        """Notice a rotated signing key, and publish it to every fleet."""
        while True:
            await asyncio.sleep(_KEYS_S)
            before = keys.public()
            await _refreshed(keys)
            if keys.public() != before:
                for key in self.cache.servers():
                    queue.add(key)

    async def _until_done(self, parts: dict[str, Coroutine[Any, Any, None]]) -> int:
        tasks = {asyncio.create_task(part, name=name) for name, part in parts.items()}
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self.probes.stopping = True
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
        if stopping in done:
            _log.info("stopping")
            return 0
        for task in done:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, LostLeadershipError):
                _log.error("%s; this process ends, so that it starts anew as a standby", error)
            else:
                _log.error(
                    "%s ended; this process ends, so that it starts anew", task.get_name(), exc_info=error
                )
        return 1

    def _is_synced(self) -> bool:
        return self._resync is not None and self._resync.synced.is_set()

    def _count_call(self, verb: str, plural: str, outcome: str) -> None:
        self.metrics.api_calls.labels(verb, plural, outcome).inc()


async def _refreshed(keys: KeyStore) -> bool:
    """Whether there is a signing key to work with after one more look."""
    try:
        await keys.refresh()
    except ApiError as error:
        _log.error("the signing key cannot be read or made: %s", error)
    return keys.signing_key() is not None


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
    except (RuntimeError, ValueError):
        yield  # not in the main thread: whoever runs us stops us
        return
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _now() -> datetime:
    return datetime.now(UTC)
