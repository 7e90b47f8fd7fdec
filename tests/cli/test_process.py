"""The operator as the process that its pod runs: started, leading, and ended by SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from workbench import Cluster, eventually


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def process(api_server: Any, namespace: str, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "llamaserver.cli.main", "run"]
    env = {
        "PYTHONPATH": ":".join(sys.path),
        "LLAMASERVER_KUBECONFIG": str(api_server.kubeconfig),
        "LLAMASERVER_NAMESPACE": namespace,
        "LLAMASERVER_WATCH_NAMESPACES": namespace,
        "LLAMASERVER_IDENTITY": "process",
        "LLAMASERVER_HTTP_HOST": "127.0.0.1",
        "LLAMASERVER_HTTP_PORT": str(port),
    }
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as started:
        yield started
        if started.poll() is None:
            started.kill()


async def test_it_leads_reconciles_and_ends_in_order(
    api_server: Any, namespace: str, process: subprocess.Popen[str], port: int
) -> None:
    cluster = Cluster(api_server, namespace)

    async def ready() -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}/readyz") as answer,
            ):
                return answer.status == 200
        return False

    await eventually(ready)
    await cluster.apply(cluster.server())
    await eventually(lambda: cluster.get(cluster.deployment()))
    process.send_signal(signal.SIGTERM)
    _, log = await asyncio.to_thread(process.communicate, None, 60)
    assert process.returncode == 0, log
    lease = await cluster.get(cluster.named("coordination.k8s.io/v1", "Lease", "llamaserver-operator"))
    assert lease is not None
    assert not lease["spec"].get("holderIdentity"), "the lease is given back"
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    assert not [line for line in lines if line["level"] in ("error", "critical")], log
    about = [line for line in lines if line.get("server") == "chat"]
    assert about, "what is done to a LlamaServer carries its key"
