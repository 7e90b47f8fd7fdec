"""The full comparison, namespace by namespace: one that is lost takes nothing with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from llamaserver.cluster import ApiError, NotFoundError, UnavailableError
from llamaserver.cluster.kinds import LLAMASERVER, Kind, Object
from llamaserver.controller.cache import Cache
from llamaserver.controller.queue import Key
from llamaserver.controller.resync import Resync

pytestmark = pytest.mark.looptime


class Api:
    """One LlamaServer `chat` in each namespace, and a fault for some."""

    def __init__(self) -> None:
        self.faults: dict[str | None, ApiError] = {}

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        if (fault := self.faults.get(namespace)) is not None:
            raise fault
        if kind is not LLAMASERVER:
            return []
        metadata = {"namespace": namespace, "name": "chat", "uid": f"{namespace}", "resourceVersion": "1"}
        return [{"metadata": metadata, "spec": {}}]


@contextlib.asynccontextmanager
async def comparing(api: Api) -> AsyncIterator[tuple[Cache, Resync, list[list[str]]]]:
    clock = asyncio.get_running_loop().time
    cache, told = Cache(clock), list[list[str]]()
    resync = Resync(
        kube=api,  # type: ignore[arg-type]
        cache=cache,
        namespaces=["a", "b"],
        changed=lambda _: None,
        monotonic=clock,
        readable=lambda names: told.append(list(names)),
    )
    task = asyncio.create_task(resync.run())
    try:
        yield cache, resync, told
        assert not task.done()
    finally:
        task.cancel()


async def test_a_lost_namespace_leaves_the_others_alive_and_is_tried_again() -> None:
    api = Api()
    api.faults["b"] = ApiError(403, "Forbidden", "no")
    async with comparing(api) as (cache, resync, told):
        await asyncio.sleep(1)
        assert resync.synced.is_set()
        assert list(cache.servers()) == [Key("a", "chat")]
        assert told == [["a"]]
        api.faults.clear()
        await asyncio.sleep(60)
        assert set(cache.servers()) == {Key("a", "chat"), Key("b", "chat")}
        assert told == [["a"], ["a", "b"]]
        api.faults["b"] = ApiError(403, "Forbidden", "no")
        await asyncio.sleep(400)
        assert set(cache.servers()) == {Key("a", "chat"), Key("b", "chat")}, "what is known stays known"
        assert told[-1] == ["a"]


@pytest.mark.parametrize(
    "fault", [UnavailableError(0, "NoConnection", "gone"), NotFoundError(404, "NotFound", "no such kind")]
)
async def test_caches_are_not_called_filled_while_nothing_could_be_read(fault: ApiError) -> None:
    api = Api()
    api.faults.update(a=fault, b=fault)
    async with comparing(api) as (_, resync, _told):
        await asyncio.sleep(20)
        assert not resync.synced.is_set()
        api.faults.clear()
        await asyncio.sleep(5)
        assert resync.synced.is_set()
