"""A simulated engine in the test's own event loop, fast enough that an answer takes some milliseconds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from llamaserver_engine_sim.options import parse
from llamaserver_engine_sim.server import Server
from llamaserver_engine_sim.tuner import TunerRoutes

PROFILE = "a=2ms,b=1us,g=1ns,d=1us,kv_tokens=20000,max_num_seqs=8,max_model_len=1000"
SLOWED = "0.02"
"""A --speed at which a step takes a tenth of a second: long enough to meet an engine in the middle of it."""


@dataclass
class Sim:
    """One server and a client for it."""

    server: Server
    session: aiohttp.ClientSession

    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.port}"

    async def get(self, path: str) -> str:
        async with self.session.get(self.url + path) as response:
            assert response.status == 200, await response.text()
            return await response.text()

    async def post(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and body; a body that is bytes is sent as it is."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data, headers=headers) as response:
            return response.status, await response.json()

    async def complete(self, **changes: Any) -> tuple[int, dict[str, Any]]:
        return await self.post("/v1/completions", body(**changes))

    async def stream(self, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, which has to end as it should."""
        async with self.session.post(self.url + path, json=asked) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            text = await response.text()
        events = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]

    async def counted(self, name: str) -> float:
        """The sum of the series on /metrics that begin so."""
        lines = (await self.get("/metrics")).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def body(**changes: Any) -> dict[str, Any]:
    """A completion of five tokens."""
    return {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True, **changes}


@asynccontextmanager
async def simulated(
    *arguments: str, environment: Mapping[str, str] | None = None, developer: bool = False
) -> AsyncIterator[Sim]:
    """A server that is started with these arguments."""
    environment = environment or {}
    given = ["tiny", "--host=127.0.0.1", "--port=0", f"--profile={PROFILE}", *arguments]
    options = parse(given, environment)
    async with (
        Server(options, TunerRoutes(environment, "boot", loads=options.tuner), developer=developer) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
    ):
        yield Sim(server, session, "https" if options.certificate else "http")
