"""The watches, by kopf: the one file that imports it. kopf lists, watches, authenticates and reconnects;
nothing else.

Its handlers only pass events on. They write nothing into users' objects: no finalizer, no annotation, no
progress.

kopf ends when a watch gets an error that it does not expect (a 500 in the stream, a 403 or 5xx that outlasts
its retries), and when it ends it cancels every task of its event loop. So it runs in a thread with a loop of
its own, and is started again, with backoff, while everything that is known goes on being used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import aiohttp
import kopf
from kubernetes.aio.client import Configuration

from llamaserver.api.names import FIELD_MANAGER, MANAGED_BY_LABEL
from llamaserver.cluster import Object, load
from llamaserver.cluster.kinds import LEASE, LLAMASERVER, Kind
from llamaserver.controller.cache import WATCHED

_log = logging.getLogger(__name__)

_RESTART_FIRST_S = 1.0
_RESTART_MOST_S = 30.0
_LIVED_S = 120.0
_GOODBYE_S = 15.0
GIVE_UP_S = 60.0
"""How long watches that were told to end may take before the process is given up."""
_CLOSING_S = 0.25
"""TLS connections are closed by the event loop after their session has been: leave it the time."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing a watch said. `listed` is True for objects of an initial list, which come in no order."""

    kind: Kind
    obj: Object
    deleted: bool
    listed: bool


@dataclass(frozen=True, slots=True)
class WatchScope:
    """What to watch. No `namespaces` means all; the lease is watched in the operator's own namespace."""

    namespaces: Sequence[str]
    own_namespace: str
    lease_name: str
    kubeconfig: str | None = None


class StuckWatchesError(Exception):
    """The thread of the watches does not end."""


class Watches:
    """Runs kopf in a thread and hands its events to `sink` in the loop that `run` was called in."""

    def __init__(
        self,
        scope: WatchScope,
        *,
        sink: Callable[[Event], None],
        restarted: Callable[[], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._scope = scope
        self._sink = sink
        self._restarted = restarted
        self._monotonic = monotonic
        self._stop = threading.Event()
        self._renewal = asyncio.Event()

    async def run(self) -> None:
        """Keep the watches running until cancelled.

        Raises:
            StuckWatchesError: watches that were told to end do not; only a new process is rid of them.
        """
        delay = _RESTART_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            started = self._monotonic()
            self._stop = threading.Event()
            done = asyncio.Event()
            thread = threading.Thread(
                target=self._thread, args=(loop, self._stop, done), name="watches", daemon=True
            )
            thread.start()
            try:
                await self._end_of(done)
            except asyncio.CancelledError:
                self._stop.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GOODBYE_S):
                        await done.wait()
                raise
            self._stop.set()
            # An end that was asked for is no failure, and must not keep others waiting longer each time.
            if self._renewal.is_set() or self._monotonic() - started >= _LIVED_S:
                delay = _RESTART_FIRST_S
            _log.warning("the watches ended; they start again in %g s", delay)
            await asyncio.sleep(delay)
            delay = min(_RESTART_MOST_S, delay * 2)
            self._restarted()

    def renew(self) -> None:
        """End the present watches, so that `run` starts new ones: for watches that have fallen silent."""
        self._stop.set()
        self._renewal.set()

    def watch_only(self, namespaces: Sequence[str]) -> None:
        """Go on with these namespaces, because the others of those given cannot be read or can again."""
        if namespaces and list(namespaces) != list(self._scope.namespaces):
            self._scope = replace(self._scope, namespaces=tuple(namespaces))
            self.renew()

    async def _end_of(self, done: asyncio.Event) -> None:
        """Until the thread has ended, which it has to do soon once it was told to."""
        self._renewal.clear()
        ends = [asyncio.create_task(event.wait()) for event in (done, self._renewal)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(GIVE_UP_S):
                await done.wait()
        except TimeoutError:
            raise StuckWatchesError(f"the watches did not end within {GIVE_UP_S:g} s") from None
        finally:
            for end in ends:
                end.cancel()

    def _thread(self, loop: asyncio.AbstractEventLoop, stop: threading.Event, done: asyncio.Event) -> None:
        def post(event: Event) -> None:
            if not stop.is_set():
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._sink, event)

        try:
            asyncio.run(_operate(self._scope, post, stop))
        except Exception as error:
            _log.error("the watches failed: %s: %s", type(error).__name__, error)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop may have been closed in the meantime
                loop.call_soon_threadsafe(done.set)


async def _operate(scope: WatchScope, post: Callable[[Event], None], stop: threading.Event) -> None:
    """Two kopf operators until the first ends: one for what is served, one for our own namespace's lease."""
    stopping = asyncio.Event()
    sessions: list[aiohttp.ClientSession] = []
    served = _operator(scope, WATCHED, post, stopping, sessions, namespaces=scope.namespaces)
    canary = _operator(scope, (LEASE,), post, stopping, sessions, namespaces=[scope.own_namespace])
    tasks = {asyncio.create_task(served), asyncio.create_task(canary), asyncio.create_task(_wait(stop))}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    stopping.set()
    stop.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    # kopf closes its sessions when it ends well, and leaves them open when it fails.
    await asyncio.gather(*(session.close() for session in sessions))
    await asyncio.sleep(_CLOSING_S)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _wait(stop: threading.Event) -> None:
    await asyncio.to_thread(stop.wait)


async def _operator(
    scope: WatchScope,
    kinds: Sequence[Kind],
    post: Callable[[Event], None],
    stopping: asyncio.Event,
    sessions: list[aiohttp.ClientSession],
    *,
    namespaces: Sequence[str],
) -> None:
    await kopf.operator(
        registry=_registry(scope, kinds, post, sessions),
        settings=_settings(scope),
        # Peering is off, so the name says nothing; without one kopf asks for the user's, which a container
        # that runs under a bare uid has not.
        identity=cast("Any", FIELD_MANAGER),
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stopping,
    )


def _registry(
    scope: WatchScope,
    kinds: Sequence[Kind],
    post: Callable[[Event], None],
    sessions: list[aiohttp.ClientSession],
) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        configuration = await load(scope.kubeconfig)
        session = await _session(configuration)
        sessions.append(session)
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=session)

    for kind in kinds:
        _pass_on(registry, kind, post)
    return registry


def _pass_on(registry: kopf.OperatorRegistry, kind: Kind, post: Callable[[Event], None]) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"see-{kind.plural}")
    async def see(event: Any, **_: Any) -> None:
        post(
            Event(
                kind=kind,
                obj=dict(event["object"]),
                deleted=event["type"] == "DELETED",
                listed=event["type"] is None,
            )
        )


async def _session(configuration: Configuration) -> aiohttp.ClientSession:
    """The same way to the cluster as our own client's; kopf asks for a new one when a token has expired."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    token = await configuration.get_api_key_with_prefix("BearerToken")
    headers = {"User-Agent": f"{FIELD_MANAGER}-watches"} | ({"Authorization": token} if token else {})
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=context), headers=headers, trust_env=True
    )


def _settings(scope: WatchScope) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 320
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 5, 5, 5)
    # Ending the watches must never end the process: this thread is not alone in it.
    settings.process.ultimate_exiting_timeout = None
    for kind in WATCHED:
        if kind is not LLAMASERVER:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = (
                f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"
            )
    settings.watching.field_selectors[LEASE.group, LEASE.version, LEASE.plural] = (
        f"metadata.name={scope.lease_name}"
    )
    return settings
