"""`Kube` on kubernetes.aio: its authentication, TLS and connection pool, and our own deadlines and limits.

Paths are known, so neither discovery nor generated models are needed: objects travel as plain dicts, which is
what server-side apply wants (a model would add defaults, and with them ownership of fields that are not
ours).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any, Self

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from llamaserver.cluster import access
from llamaserver.cluster.errors import (
    ApiError,
    ConflictError,
    GoneError,
    NotFoundError,
    UnavailableError,
    from_response,
)
from llamaserver.cluster.kinds import EVENT, FIELD_MANAGER, POD, Kind, Object, Objects, kind_of
from llamaserver.cluster.pace import TokenBucket

_APPLY = "application/apply-patch+yaml"
_JSON = "application/json"
_PAGE = 500
_LIST_DEADLINE_S = 60.0
_OF_NONE = "1"
"""A resourceVersion that no object has: the first write to a store makes the second revision. An object that
is there conflicts with it; where there is none an apply does not ask for it.
"""

Query = list[tuple[str, str]]


class AioKube:
    """One client for the whole process. Use as an async context manager.

    `deadline_s` bounds every call from the moment it is made, waiting for a free slot included. A call over
    `burst` waits until its turn comes, `per_second` of them a second.
    `observe` is told (verb, plural, outcome) of each call: outcome is "ok" or the error's reason.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        deadline_s: float = 10.0,
        concurrency: int = 16,
        per_second: float = 200.0,
        burst: float = 1000.0,
        observe: Callable[[str, str, str], None] | None = None,
    ) -> None:
        self._client = ApiClient(configuration)
        self._client.user_agent = FIELD_MANAGER
        self._deadline_s = deadline_s
        self._slots = asyncio.Semaphore(concurrency)
        self._bucket = TokenBucket(per_second, burst, monotonic)
        self._observe = observe

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """See `Kube.get`."""
        try:
            return await self._call("get", kind, namespace, name)
        except NotFoundError:
            return None

    async def list(self, kind: Kind, namespace: str | None, label_selector: str = "") -> Objects:
        """See `Kube.list`. Read in pages; items get the `apiVersion` and `kind` that lists leave out."""
        for last_try in (False, True):
            try:
                return await self._list(kind, namespace, label_selector)
            except GoneError:
                if last_try:
                    raise
        raise AssertionError("unreachable")

    async def apply(self, obj: Object, *, manager: str = FIELD_MANAGER, force: bool = True) -> Object:
        """See `Kube.apply`. Where the object is missing the API server asks for `create` besides `patch`."""
        kind, namespace, name = _address(obj)
        access.check("create" if kind.plural != "pods" else "patch", kind)
        query = [("fieldManager", manager), ("force", "true" if force else "false")]
        return await self._call("patch", kind, namespace, name, query=query, body=obj, content_type=_APPLY)

    async def create(self, obj: Object) -> Object:
        """See `Kube.create`. A POST would make the fields another manager's, by the operation Update: those
        that a later apply leaves out would stay for ever.
        """
        return await self.apply({**obj, "metadata": {**obj["metadata"], "resourceVersion": _OF_NONE}})

    async def apply_status(self, obj: Object) -> Object:
        """See `Kube.apply_status`."""
        kind, namespace, name = _address(obj)
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        return await self._call(
            "patch", kind, namespace, name, subresource="status", query=query, body=obj, content_type=_APPLY
        )

    async def replace(self, obj: Object) -> Object:
        """See `Kube.replace`."""
        kind, namespace, name = _address(obj)
        return await self._call("update", kind, namespace, name, body=obj)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """See `Kube.delete`."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._call("delete", kind, namespace, name, body=options)
        except (NotFoundError, ConflictError):
            return

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """See `Kube.evict`."""
        eviction: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            await self._call("create", POD, namespace, name, subresource="eviction", body=eviction)
        except (NotFoundError, ConflictError):
            return

    async def create_event(self, event: Object) -> None:
        """See `Kube.create_event`."""
        await self._call("create", EVENT, event["metadata"]["namespace"], None, body=event)

    async def _list(self, kind: Kind, namespace: str | None, label_selector: str) -> Objects:
        items: Objects = []
        token = ""
        while True:
            query = [("limit", str(_PAGE))]
            query += [("labelSelector", label_selector)] if label_selector else []
            query += [("continue", token)] if token else []
            page = await self._call("list", kind, namespace, None, query=query, deadline_s=_LIST_DEADLINE_S)
            named = {"apiVersion": kind.api_version, "kind": kind.kind}
            items.extend({**named, **item} for item in page.get("items") or [])
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return items

    async def _call(
        self,
        verb: str,
        kind: Kind,
        namespace: str | None,
        name: str | None,
        *,
        subresource: str | None = None,
        query: Query | None = None,
        body: Object | None = None,
        content_type: str = _JSON,
        deadline_s: float | None = None,
    ) -> Object:
        access.check(verb, kind, subresource)
        outcome = "ok"
        try:
            async with asyncio.timeout(deadline_s or self._deadline_s):
                await asyncio.sleep(self._bucket.reserve())
                async with self._slots:
                    return await self._send(
                        _METHODS[verb], kind.path(namespace, name, subresource), query, body, content_type
                    )
        except ApiError as error:
            outcome = error.reason
            raise
        except TimeoutError:
            outcome = "Timeout"
            raise UnavailableError(
                0, outcome, f"no answer to {verb} {kind.plural} within the deadline"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            outcome = "NoConnection"
            raise UnavailableError(0, outcome, f"{verb} {kind.plural}: {error}") from error
        finally:
            if self._observe is not None:
                self._observe(verb, kind.plural, outcome)

    async def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Object | None,
        content_type: str,
    ) -> Object:
        headers = {"Accept": _JSON, "Content-Type": content_type}
        request = await self._client.param_serialize(
            method,
            path,
            query_params=query or [],
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self._client.call_api(*request, _request_timeout=aiohttp.ClientTimeout(total=None))
        data: bytes = await response.read()  # type: ignore[no-untyped-call]
        if not 200 <= response.status <= 299:
            raise from_response(response.status, data, response.headers.get("Retry-After"))
        try:
            answer: Any = json.loads(data)
        except ValueError as error:
            raise UnavailableError(response.status, "NotJSON", f"{method} {path} answered no JSON") from error
        if not isinstance(answer, dict):
            raise UnavailableError(response.status, "NotJSON", f"{method} {path} answered no JSON object")
        return answer


_METHODS = {
    "get": "GET",
    "list": "GET",
    "patch": "PATCH",
    "update": "PUT",
    "create": "POST",
    "delete": "DELETE",
}


def _address(obj: Object) -> tuple[Kind, str, str]:
    metadata = obj["metadata"]
    return kind_of(obj), metadata["namespace"], metadata["name"]
