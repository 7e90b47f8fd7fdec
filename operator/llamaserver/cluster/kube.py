"""What the operator asks of a Kubernetes API, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from llamaserver.cluster.errors import NotLeadingError
from llamaserver.cluster.kinds import FIELD_MANAGER, Kind, Object, Objects


class Kube(Protocol):
    """Calls end within their deadline and raise `ApiError`; nothing here retries."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The object, or None when there is none of that name."""
        ...

    async def list(self, kind: Kind, namespace: str | None, label_selector: str = "") -> Objects:
        """All objects of a namespace, or (None) of all namespaces."""
        ...

    async def apply(self, obj: Object, *, manager: str = FIELD_MANAGER, force: bool = True) -> Object:
        """Server-side apply. With `metadata.uid`, any other incarnation is a ConflictError."""
        ...

    async def create(self, obj: Object) -> Object:
        """Server-side apply of an object that must not be there yet: one of its name, whoever's it is, is a
        ConflictError and is not touched.
        """
        ...

    async def apply_status(self, obj: Object) -> Object:
        """Server-side apply of the status subresource; `obj` holds names and `status` alone."""
        ...

    async def replace(self, obj: Object) -> Object:
        """PUT. Without `metadata.resourceVersion` it creates where the kind allows that (Leases do)."""
        ...

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete that very incarnation; done when it is gone or another has taken its name."""
        ...

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Have that very pod end, unless a disruption budget forbids it (UnavailableError 429); done when it
        is gone or another has taken its name.
        """
        ...

    async def create_event(self, event: Object) -> None:
        """Post a core/v1 Event."""
        ...


class LeaderOnly:
    """A `Kube` whose writes go through only while leadership is proven; reads always do.

    Checked at each write rather than once: a pause of any length between decision and write is covered.
    """

    def __init__(self, kube: Kube, proven: Callable[[], bool]) -> None:
        self._kube = kube
        self._proven = proven

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return await self._kube.get(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str | None, label_selector: str = "") -> Objects:
        return await self._kube.list(kind, namespace, label_selector)

    async def apply(self, obj: Object, *, manager: str = FIELD_MANAGER, force: bool = True) -> Object:
        self._check()
        return await self._kube.apply(obj, manager=manager, force=force)

    async def create(self, obj: Object) -> Object:
        self._check()
        return await self._kube.create(obj)

    async def apply_status(self, obj: Object) -> Object:
        self._check()
        return await self._kube.apply_status(obj)

    async def replace(self, obj: Object) -> Object:
        self._check()
        return await self._kube.replace(obj)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self._check()
        await self._kube.delete(kind, namespace, name, uid)

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        self._check()
        await self._kube.evict(namespace, name, uid)

    async def create_event(self, event: Object) -> None:
        self._check()
        await self._kube.create_event(event)

    def _check(self) -> None:
        if not self._proven():
            raise NotLeadingError
