"""The operator in this process, against the real API server, with fake engines on loopback addresses of their
own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fakes import FakeEngine
from llamaserver.cluster import LeaseTimes
from llamaserver.controller import Operator, Options
from workbench import Cluster, free_address, running


@pytest.fixture
def cluster(api_server: Any, namespace: str) -> Cluster:
    return Cluster(api_server, namespace)


@pytest.fixture
def options(cluster: Cluster) -> Options:
    return Options(
        namespace=cluster.namespace,
        watch_namespaces=(cluster.namespace,),
        identity="test-operator",
        kubeconfig=str(cluster.api.kubeconfig),
        tuner_image="llamaserver/tuner:test",
        lease_times=LeaseTimes(duration_s=9, renew_deadline_s=6, retry_s=0.5),
        tick_seconds=0.3,
        http_host="127.0.0.1",
        http_port=0,
    )


@pytest.fixture
async def operator(options: Options) -> AsyncIterator[Operator]:
    async with running(options) as made:
        yield made


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(host=free_address(), port=8000) as made:
        yield made


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngine]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeEngine(host=free_address(), port=8000)) for _ in range(3)]
