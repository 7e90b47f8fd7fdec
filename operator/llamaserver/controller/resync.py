"""Keeps the cache true: a full list at start, then now and then, and whenever the watches may have missed
something.

Each namespace is read by itself. One that is lost (deleted, or its rights taken) is asked again now and then;
the others live on, and what was known of the lost one stays known.

The watches lose deletions that happen while they are disconnected. Nothing tells of that but the initial list
that follows a reconnection, so such a list asks for a full comparison.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from llamaserver.api.names import FIELD_MANAGER, MANAGED_BY_LABEL
from llamaserver.cluster import ApiError, Kube, NotFoundError, Object, UnavailableError
from llamaserver.cluster.kinds import LLAMASERVER, Kind
from llamaserver.controller.cache import WATCHED, Cache
from llamaserver.controller.queue import Key

_log = logging.getLogger(__name__)

_SETTLE_S = 3.0
_RETRY_S = 3.0
_LOST_S = 30.0
"""How often a namespace that could not be read is tried again."""


class Resync:
    """`synced` is set once every kind was read in full. `changed` is told of each LlamaServer concerned."""

    def __init__(
        self,
        *,
        kube: Kube,
        cache: Cache,
        namespaces: Sequence[str],
        changed: Callable[[Key], None],
        monotonic: Callable[[], float],
        every_s: float = 300.0,
        readable: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """`readable` is told of the namespaces that can be read whenever these become fewer or more."""
        self._kube = kube
        self._cache = cache
        self._namespaces: Sequence[str | None] = list(namespaces) or [None]
        self._changed = changed
        self._monotonic = monotonic
        self._every_s = every_s
        self._readable = readable
        self._lost: dict[str | None, ApiError] = {}
        self._wanted = asyncio.Event()
        self.synced = asyncio.Event()

    def want(self) -> None:
        """The watches may have missed something: compare soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Compare for ever; an API server that is gone is asked again soon."""
        while True:
            self._wanted.clear()
            wait = await self._round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
                    await asyncio.sleep(_SETTLE_S)

    async def _round(self) -> float:
        """Compare all there is; returns the seconds until that is due again."""
        lost, away = dict[str | None, ApiError](), False
        for namespace in self._namespaces:
            try:
                await self.compare(namespace)
            except UnavailableError as error:
                _log.warning("the caches cannot be compared with the API server now: %s", error)
                away = True
            except ApiError as error:
                lost[namespace] = error
        self._note_lost(lost)
        if away or len(lost) == len(self._namespaces):
            return _RETRY_S
        if not self.synced.is_set():
            _log.info("the caches are filled")
            self.synced.set()
        return min(self._every_s, _LOST_S) if lost else self._every_s

    def _note_lost(self, lost: dict[str | None, ApiError]) -> None:
        for namespace, error in lost.items():
            if isinstance(error, NotFoundError):
                _log.error(
                    "the resource LlamaServer is not known to this cluster: install the CRD "
                    "(helm with crds.enabled=true, or: llamaserver crd | kubectl apply --server-side -f -)"
                )
            else:
                where = f"namespace {namespace}" if namespace else "the cluster"
                _log.error("%s cannot be read, and is tried again: %s", where, error)
        before, self._lost = self._lost, lost
        if lost.keys() != before.keys():
            self._readable([name for name in self._namespaces if name is not None and name not in lost])

    async def compare(self, namespace: str | None) -> None:
        """One full comparison of a namespace, or of all with None.

        Raises:
            ApiError: some kind could not be read; those that were read before it are compared.
        """
        for kind in WATCHED:
            began = self._monotonic()
            listed = await self._list(kind, namespace)
            for key in self._cache.reconcile_with(kind, listed, began, namespace):
                self._changed(key)

    async def _list(self, kind: Kind, namespace: str | None) -> list[Object]:
        selector = "" if kind is LLAMASERVER else f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"
        return list(await self._kube.list(kind, namespace, selector))
