"""A client of the real API server, and ways to act as somebody with fewer rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from llamaserver.cluster import AioKube, load


@pytest.fixture
async def kube(api_server: Any) -> AsyncIterator[AioKube]:
    async with AioKube(await load(str(api_server.kubeconfig))) as client:
        yield client
