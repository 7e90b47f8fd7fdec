"""Makes a LlamaServer's children what they should be, writing only what differs.

A child that has not changed since it was last compared costs nothing. One that has, or that this process has
never compared, costs one read; a write follows only if a field we own differs. So a restart of the operator
writes nothing. One that the watches know nothing of is made at once, on condition that there is none of its
name: only a name that is taken has to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from llamaserver.api.names import FIELD_MANAGER, MANAGED_BY_LABEL, NAME_LABEL
from llamaserver.cluster import ConflictError, Kube
from llamaserver.cluster.kinds import DEPLOYMENT, POD_DISRUPTION_BUDGET, Kind, Object, kind_of
from llamaserver.controller.cache import Cache
from llamaserver.controller.diff import HASH_ANNOTATION, covers, digest, fingerprint
from llamaserver.controller.queue import Key, RetryLater
from llamaserver.controller.rollouts import cause_of, new_cause, with_cause
from llamaserver.desired import DesiredFleet
from llamaserver.desired.replicas import HANDOVER_MANAGER, handover

_MOVED_S = 1.0
"""After this long what has changed at the moment of a write is looked at again."""


class ForeignObjectError(Exception):
    """An object of a child's name exists and belongs to somebody else. It is left alone."""


@dataclass(frozen=True, slots=True)
class Written:
    """One write that is needed. `before` is the live object it meets, or None when it makes the object."""

    kind: Kind
    name: str
    wanted: Object
    before: Object | None
    cause: str = ""
    """Why it replaces pods; empty when it replaces none."""


class Children:
    """Remembers, for each child, what it was compared with and the live object's fingerprint then."""

    def __init__(self, kube: Kube, cache: Cache) -> None:
        self._kube = kube
        self._cache = cache
        self._settled: dict[tuple[Kind, str, str], tuple[str, str]] = {}

    async def ensure(
        self,
        key: Key,
        uid: str,
        objects: Iterable[Object],
        after_write: Callable[[Written], None] = lambda _: None,
    ) -> list[Written]:
        """Apply what differs of `objects`, the children of the LlamaServer with this `uid`.

        `after_write` is told of each write at once when it has succeeded: of a Deployment's, long before its
        controller has ended a pod for it, and never of one that was refused.

        Raises:
            ForeignObjectError: a name is taken.
            RetryLater: an object of an earlier LlamaServer of this name is still being collected, or the API
                server says that somebody else was first: with one of this name, or in a quota.
            ApiError: the API server could not be asked, or refused.
        """
        written = []
        for obj in objects:
            done = await self._ensure_one(key, uid, obj, after_write)
            if done is not None:
                written.append(done)
        return written

    async def prune(self, key: Key, objects: Iterable[Object]) -> None:
        """Delete the child of a kind that is only sometimes wanted, when it is not wanted now."""
        if any(kind_of(obj) is POD_DISRUPTION_BUDGET for obj in objects):
            return
        live = self._cache.get(POD_DISRUPTION_BUDGET, key.namespace, key.name)
        if live is not None:
            await self._kube.delete(POD_DISRUPTION_BUDGET, key.namespace, key.name, live["metadata"]["uid"])

    def forget(self, key: Key) -> None:
        """The LlamaServer is gone."""
        for child in [
            child for child in self._settled if child[1] == key.namespace and _is_of(child[2], key.name)
        ]:
            del self._settled[child]

    async def _ensure_one(
        self, key: Key, uid: str, obj: Object, after_write: Callable[[Written], None]
    ) -> Written | None:
        kind, name = kind_of(obj), obj["metadata"]["name"]
        child = (kind, key.namespace, name)
        wanted = _marked(obj)
        mark: str = wanted["metadata"]["annotations"][HASH_ANNOTATION]
        known = self._cache.get(kind, key.namespace, name)
        if known is not None and self._settled.get(child) == (mark, fingerprint(known)):
            return None
        live = None if known is None else await self._kube.get(kind, key.namespace, name)
        made = None
        if live is None:
            made, live = await self._make(kind, wanted)
        if made is not None:
            change = Written(kind, name, wanted, None)
        else:
            assert live is not None
            _check_owner(key, uid, kind, live)
            if covers(live, wanted):
                self._cache.put(kind, live)
                self._settled[child] = (mark, fingerprint(live))
                return None
            change = _change(kind, name, wanted, live)
            await self._hand_over(kind, live, obj)
            made = await self._change(change, live)
        # What is judged in this same pass must be what this write has made of it.
        self._cache.put(kind, made)
        self._settled[child] = (mark, fingerprint(made))
        after_write(change)
        return change

    async def _make(self, kind: Kind, wanted: Object) -> tuple[Object | None, Object | None]:
        """The object as it is made, or else the one that has its name."""
        try:
            return await self._kube.create(wanted), None
        except ConflictError as error:
            metadata = wanted["metadata"]
            live = await self._kube.get(kind, metadata["namespace"], metadata["name"])
            if live is None:
                # Not a name that is taken: a quota that others count against at this moment conflicts, too.
                raise RetryLater(error.message, after_s=_MOVED_S) from None
            return None, live

    async def _change(self, change: Written, live: Object) -> Object:
        """The object as it is changed: the very one that was looked at, and no other of its name."""
        metadata = {**change.wanted["metadata"], "uid": live["metadata"]["uid"]}
        try:
            return await self._kube.apply({**change.wanted, "metadata": metadata})
        except ConflictError as error:
            raise RetryLater(error.message, after_s=_MOVED_S) from None

    async def _hand_over(self, kind: Kind, live: Object, obj: Object) -> None:
        """Before we give up a Deployment's number of replicas, let the present number have another owner."""
        if kind is not DEPLOYMENT:
            return
        given_up = handover(live, DesiredFleet(obj["spec"].get("replicas")))
        if given_up is not None:
            await self._kube.apply(given_up, manager=HANDOVER_MANAGER)


def _change(kind: Kind, name: str, wanted: Object, live: Object | None) -> Written:
    """The write to make. A Deployment keeps its last cause, which server-side apply would else take away."""
    if kind is not DEPLOYMENT or live is None:
        return Written(kind, name, wanted, live)
    cause = new_cause(live, wanted)
    return Written(kind, name, with_cause(wanted, cause or cause_of(live)), live, cause)


def _marked(obj: Object) -> Object:
    """A copy of `obj` that says what it was made from."""
    metadata: dict[str, Any] = obj["metadata"]
    annotations = {**(metadata.get("annotations") or {}), HASH_ANNOTATION: digest(obj)}
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


def _check_owner(key: Key, uid: str, kind: Kind, live: Object) -> None:
    metadata = live["metadata"]
    labels = metadata.get("labels") or {}
    ours = labels.get(MANAGED_BY_LABEL) == FIELD_MANAGER and labels.get(NAME_LABEL) == key.name
    controller = next((ref for ref in metadata.get("ownerReferences") or () if ref.get("controller")), None)
    if controller is not None and controller.get("uid") == uid:
        return
    if ours and controller is not None:
        raise RetryLater(
            f"{kind.kind} {metadata['name']} of an earlier {key} is still being deleted", after_s=2.0
        )
    if not ours:
        raise ForeignObjectError(
            f"a {kind.kind} named {metadata['name']} exists and is not this LlamaServer's: "
            "rename the LlamaServer, or delete that object"
        )


def _is_of(child: str, name: str) -> bool:
    return child == name or child.startswith(f"{name}-")
