"""What tests of the whole operator share: a namespace to act in, waiting for what should come, a running
operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from fakes import FakeEngine
from llamaserver.api.names import child_labels
from llamaserver.controller import Operator, Options

Object = dict[str, Any]

_addresses = itertools.count(1)


@dataclass
class Cluster:
    """A namespace of the API server, and what a test does in it. Requests run in threads: the loop is the
    operator's.
    """

    api: Any
    namespace: str

    def server(self, name: str = "chat", **spec: Any) -> Object:
        """A LlamaServer; groups given in `spec` replace the defaults."""
        base: Object = {
            "model": {"uri": "hf://org/model"},
            "engine": {"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 64},
            "slo": {"interTokenLatency": {"target": "50ms"}},
        }
        return self.named("llamaserver.dev/v1alpha1", "LlamaServer", name, spec=base | spec)

    def named(self, version: str, kind: str, name: str, **content: Any) -> Object:
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}

    def deployment(self, name: str = "chat") -> Object:
        return self.named("apps/v1", "Deployment", name)

    async def apply(self, obj: Object) -> Object:
        answer = await asyncio.to_thread(self.api.apply, obj)
        assert answer.status in (200, 201), answer.message
        body: Object = answer.body
        return body

    async def get(self, obj: Object) -> Object | None:
        answer = await asyncio.to_thread(self.api.get, obj)
        return answer.body if answer.status == 200 else None

    async def merge(self, obj: Object, patch: Object, subresource: str = "") -> Object:
        answer = await asyncio.to_thread(self.api.merge, obj, patch, subresource)
        assert answer.status == 200, answer.message
        body: Object = answer.body
        return body

    async def delete(self, obj: Object) -> None:
        await asyncio.to_thread(self.api.request, "DELETE", self.api.path(obj))

    async def events(self, reason: str) -> list[Object]:
        path = f"/api/v1/namespaces/{self.namespace}/events"
        answer = await asyncio.to_thread(self.api.request, "GET", path)
        return [event for event in answer.body["items"] if event["reason"] == reason]

    async def pod(self, name: str, engine: FakeEngine, server: str = "chat") -> Object:
        """A ready pod whose engine is `engine`, which learns the pod's uid."""
        made = await asyncio.to_thread(
            self.api.create_ready_pod, name, self.namespace, child_labels(server), engine.host
        )
        engine.pod_uid = made["metadata"]["uid"]
        body: Object = made
        return body

    async def rolled_out(self, name: str = "chat") -> None:
        """Play the Deployment's controller: everything is up to date and ready."""
        live = await self.get(self.deployment(name))
        assert live is not None
        count = live["spec"].get("replicas", 1)
        fields = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        status = dict.fromkeys(fields, count) | {"observedGeneration": live["metadata"]["generation"]}
        await self.merge(self.deployment(name), {"status": status}, "status")


class Proxy:
    """A TCP relay to the API server. `cut` breaks what is open and refuses, `freeze` accepts and says
    nothing.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._frozen = False
        self._thawed = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def cut(self) -> None:
        """The API server is gone: connection refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def restore(self) -> None:
        """The API server is there."""
        self._frozen = False
        self._thawed.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def freeze(self) -> None:
        """The API server hangs: bytes go in, nothing comes out, until `restore`, which breaks the
        connections.
        """
        self._frozen = True
        self._thawed.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        upstream = None
        try:
            up_reader, upstream = await asyncio.open_connection(*self._upstream)
            await asyncio.wait(
                {
                    asyncio.ensure_future(self._pump(reader, upstream)),
                    asyncio.ensure_future(self._pump(up_reader, writer)),
                },
                return_when=asyncio.FIRST_COMPLETED,
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            for end in (writer, upstream):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self._frozen:
                    await self._thawed.wait()
                    return
                writer.write(data)
                await writer.drain()

    def kubeconfig(self, original: Path, folder: Path) -> str:
        """A kubeconfig that leads through here."""
        config = yaml.safe_load(original.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        path = folder / f"kubeconfig-{self.port}"
        path.write_text(yaml.safe_dump(config))
        return str(path)


async def eventually(
    read: Callable[[], Any], until: Callable[[Any], bool] = bool, within_s: float = 90.0
) -> Any:
    """What `read` gives (awaited if need be), once `until` holds for it."""
    value: Any = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                value = read()
                if asyncio.iscoroutine(value):
                    value = await value
                if until(value):
                    return value
                await asyncio.sleep(0.1)
    raise AssertionError(f"not within {within_s} s; last seen: {value}")


def condition(server: Object | None, type_: str) -> Object:
    """A condition of a LlamaServer, or an empty object."""
    conditions = ((server or {}).get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == type_), {})


@contextlib.asynccontextmanager
async def running(
    options: Options, *, before: Callable[[Operator], None] = lambda _: None
) -> AsyncIterator[Operator]:
    """The operator, leading and with its caches filled; stopped as by SIGTERM at the end."""
    operator = Operator(options)
    before(operator)
    task = asyncio.create_task(operator.run())
    try:
        await eventually(lambda: task.done() or operator.probes.unready() == "")
        assert not task.done(), task
        yield operator
    finally:
        operator.stop.set()
        await task


def free_address() -> str:
    """A loopback address nobody else of this run uses."""
    number = next(_addresses)
    return f"127.{100 + os.getpid() % 100}.{number // 250}.{number % 250 + 1}"


async def serving(cluster: Cluster, engine: FakeEngine, name: str = "chat", **spec: object) -> Object:
    """A LlamaServer with one ready pod whose engine knows the operator's key, looked at by a tick or more."""
    await cluster.apply(cluster.server(name, **spec))
    keys = await eventually(lambda: cluster.get(cluster.named("v1", "ConfigMap", f"{name}-tuner-keys")))
    engine.public_keys = {file.removesuffix(".pem"): pem for file, pem in keys["data"].items()}
    await eventually(lambda: cluster.get(cluster.deployment(name)))
    await cluster.pod(f"{name}-0", engine, name)
    await cluster.rolled_out(name)
    seen: Object = await eventually(
        lambda: cluster.get(cluster.server(name)),
        lambda it: (
            condition(it, "Ready").get("status") == "True"
            and condition(it, "MetricsAvailable").get("status") == "True"
        ),
    )
    return seen
