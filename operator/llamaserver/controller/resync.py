"""Keeps the cache true: a full list at start, then now and then, and whenever the watches may have missed
something.

The watches lose deletions that happen while they are disconnected. Nothing tells of that but the initial list
that follows a reconnection, so such a list asks for a full comparison.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from llamaserver.api.names import FIELD_MANAGER, MANAGED_BY_LABEL
from llamaserver.cluster import ApiError, Kube, NotFoundError, Object
from llamaserver.cluster.kinds import LLAMASERVER, Kind
from llamaserver.controller.cache import WATCHED, Cache
from llamaserver.controller.queue import Key

_log = logging.getLogger(__name__)

_SETTLE_S = 3.0
_RETRY_S = 3.0


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
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._namespaces: Sequence[str | None] = list(namespaces) or [None]
        self._changed = changed
        self._monotonic = monotonic
        self._every_s = every_s
        self._wanted = asyncio.Event()
        self.synced = asyncio.Event()

    def want(self) -> None:
        """The watches may have missed something: compare soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Compare for ever; an API server that is gone is asked again soon."""
        while True:
            self._wanted.clear()
            wait = self._every_s
            try:
                await self.compare()
                if not self.synced.is_set():
                    _log.info("the caches are filled")
                    self.synced.set()
            except NotFoundError:
                _log.error(
                    "the resource LlamaServer is not known to this cluster: install the CRD "
                    "(helm with crds.enabled=true, or: llamaserver crd | kubectl apply --server-side -f -)"
                )
                wait = _RETRY_S
            except ApiError as error:
                _log.warning("the caches cannot be compared with the API server now: %s", error)
                wait = _RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
                    await asyncio.sleep(_SETTLE_S)

    async def compare(self) -> None:
        """One full comparison.

        Raises:
            ApiError: some kind could not be read; those that were read before it are compared.
        """
        for kind in WATCHED:
            began = self._monotonic()
            listed = await self._list(kind)
            for key in self._cache.reconcile_with(kind, listed, began):
                self._changed(key)

    async def _list(self, kind: Kind) -> list[Object]:
        selector = "" if kind is LLAMASERVER else f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"
        pages = [await self._kube.list(kind, namespace, selector) for namespace in self._namespaces]
        return [obj for page in pages for obj in page]
