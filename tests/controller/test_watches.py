"""The watches: events arrive, nothing is written, and an error that ends kopf ends nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import re
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from llamaserver.cluster.kinds import LEASE, LLAMASERVER, Kind
from llamaserver.controller import handlers
from llamaserver.controller.cache import WATCHED
from llamaserver.controller.handlers import Event, Watches, WatchScope
from workbench import eventually

Object = dict[str, Any]

NAMESPACE = Kind("", "v1", "Namespace", "namespaces")


class ApiOfWatches:
    """Discovery, empty lists and silent watches; `break_with` is what the next watch to look says."""

    def __init__(self) -> None:
        self.break_with: Object | None = None
        self.methods: set[str] = set()
        self.watches = 0
        self.watched: set[str] = set()
        self.servers: list[Object] = []

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.methods.add(request.method)
        path = request.path.strip("/").split("/")
        if path == ["api"]:
            return web.json_response({"versions": ["v1"]})
        if path == ["apis"]:
            return web.json_response({"groups": [_group(kind) for kind in (*WATCHED, LEASE) if kind.group]})
        if path in (["api", "v1"], *(["apis", kind.group, kind.version] for kind in (*WATCHED, LEASE))):
            group = "" if path[0] == "api" else path[1]
            known = [_resource(kind) for kind in (*WATCHED, LEASE, NAMESPACE) if kind.group == group]
            return web.json_response({"resources": known})
        if request.query.get("watch") == "true":
            return await self._watch(request)
        items = self.servers if path[-1] == LLAMASERVER.plural else []
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        self.watched.update(re.findall("/namespaces/([^/]+)/", request.path))
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(600):
            if self.break_with is not None:
                said, self.break_with = self.break_with, None
                await response.write(json.dumps(said).encode() + b"\n")
                return response
            await asyncio.sleep(0.05)
        return response


def _group(kind: Any) -> Object:
    version = {"groupVersion": kind.api_version, "version": kind.version}
    return {"name": kind.group, "versions": [version], "preferredVersion": version}


def _resource(kind: Any) -> Object:
    verbs = ["get", "list", "watch", "patch"]
    return {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "kind": kind.kind,
        "namespaced": True,
        "verbs": verbs,
    }


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[tuple[ApiOfWatches, WatchScope]]:
    made = ApiOfWatches()
    async with made.serve() as url:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield made, WatchScope((), "ops", "lease", str(path))


@contextlib.asynccontextmanager
async def watching(scope: WatchScope) -> AsyncIterator[tuple[list[Event], list[None], Watches]]:
    events: list[Event] = []
    restarts: list[None] = []
    watches = Watches(
        scope, sink=events.append, restarted=lambda: restarts.append(None), monotonic=time.monotonic
    )
    task = asyncio.create_task(watches.run())
    yield events, restarts, watches
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _server(name: str) -> Object:
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "5"}
    return {"apiVersion": LLAMASERVER.api_version, "kind": "LlamaServer", "metadata": metadata, "spec": {}}


async def test_objects_of_the_first_list_and_later_events_are_passed_on(
    api: tuple[ApiOfWatches, WatchScope],
) -> None:
    server, scope = api
    server.servers = [_server("listed")]
    async with watching(scope) as (events, _, _watches):
        await eventually(lambda: events)
        assert (events[0].obj["metadata"]["name"], events[0].listed, events[0].deleted) == (
            "listed",
            True,
            False,
        )
    assert server.methods == {"GET"}, "the watches write nothing"


async def test_a_user_without_a_name_can_watch(
    api: tuple[ApiOfWatches, WatchScope], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that runs under a bare uid has no entry in its password file."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", nobody)
    server, scope = api
    async with watching(scope):
        await eventually(lambda: server.watches, lambda watches: watches > 0)


@pytest.mark.parametrize("code", [500, 403])
async def test_an_error_in_a_stream_restarts_the_watches_and_nothing_else(
    api: tuple[ApiOfWatches, WatchScope], code: int
) -> None:
    server, scope = api
    async with watching(scope) as (events, restarts, _):
        await eventually(lambda: server.watches >= len(WATCHED) + 1)
        error = {"kind": "Status", "code": code, "message": "etcdserver: leader changed"}
        server.break_with = {"type": "ERROR", "object": error}
        server.servers = [_server("after")]
        mine = asyncio.create_task(asyncio.sleep(30))
        await eventually(lambda: restarts)
        await eventually(lambda: [e for e in events if e.obj["metadata"]["name"] == "after"])
        assert not mine.done(), "tasks of our own loop are none of kopf's business"
        mine.cancel()


async def test_watches_that_do_not_end_are_given_up(
    api: tuple[ApiOfWatches, WatchScope], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, scope = api
    monkeypatch.setattr(handlers, "GIVE_UP_S", 0.2)
    let_go = threading.Event()

    def hang(*_: object) -> None:
        let_go.wait(30)

    watches = Watches(scope, sink=lambda _: None, restarted=lambda: None, monotonic=time.monotonic)
    monkeypatch.setattr(watches, "_thread", hang)
    task = asyncio.create_task(watches.run())
    await asyncio.sleep(0.5)
    assert not task.done(), "nobody told them to end"
    watches.renew()
    with pytest.raises(handlers.StuckWatchesError):
        await asyncio.wait_for(task, 10)
    let_go.set()


async def test_a_namespace_that_cannot_be_read_is_left_out_and_never_all_of_them(
    api: tuple[ApiOfWatches, WatchScope],
) -> None:
    server, scope = api
    async with watching(replace(scope, namespaces=("a", "b"))) as (_, restarts, watches):
        await eventually(lambda: {"a", "b"} <= server.watched)
        watches.watch_only([])
        watches.watch_only(["a", "b"])
        await asyncio.sleep(0.3)
        assert restarts == []
        server.watched.clear()
        watches.watch_only(["a"])
        await eventually(lambda: "a" in server.watched)
        assert server.watched <= {"a", "ops"}


async def test_watches_that_fell_silent_can_be_renewed(api: tuple[ApiOfWatches, WatchScope]) -> None:
    server, scope = api
    async with watching(scope) as (_, restarts, watches):
        await eventually(lambda: server.watches >= len(WATCHED) + 1)
        before = server.watches
        watches.renew()
        await eventually(lambda: restarts and server.watches >= before + len(WATCHED) + 1)


async def test_restarts_that_are_asked_for_do_not_take_longer_each_time(
    api: tuple[ApiOfWatches, WatchScope], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A namespace that is lost and found again and again must not keep the events of the others away."""
    server, scope = api
    monkeypatch.setattr(handlers, "_RESTART_FIRST_S", 0.01)
    async with watching(replace(scope, namespaces=("a", "b"))) as (_, restarts, watches):
        await eventually(lambda: server.watches)
        for times, namespaces in enumerate((["a"], ["a", "b"], ["a"]), start=1):
            watches.watch_only(namespaces)
            await eventually(lambda: len(restarts), lambda seen, times=times: seen == times)
    delays = [record.args for record in caplog.records if "start again" in record.msg]
    assert delays == [(0.01,)] * 3
