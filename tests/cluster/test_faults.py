"""Protocol faults of an API server: what the caller gets, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import kmock as km
import pytest
from kubernetes.aio.client import Configuration

from llamaserver.cluster import AioKube, ApiError, ConflictError, GoneError, NotFoundError, UnavailableError
from llamaserver.cluster.kinds import CONFIG_MAP, SERVICE


@pytest.fixture
async def kube(kmock: km.RawHandler) -> AsyncIterator[AioKube]:
    configuration = Configuration()
    configuration.host = str(kmock.url).rstrip("/")
    async with AioKube(configuration, deadline_s=0.5) as client:
        yield client


def failure(code: int, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("code", "kind"),
    [(409, ConflictError), (410, GoneError), (404, NotFoundError), (403, ApiError), (422, ApiError)],
)
async def test_what_will_not_get_better_by_itself(
    kmock: km.RawHandler, kube: AioKube, code: int, kind: type[ApiError]
) -> None:
    kmock["get"] << code << failure(code, "Because", "of this")
    with pytest.raises(kind, match="of this") as raised:
        await kube.list(CONFIG_MAP, "ns")
    assert raised.value.reason == "Because"
    assert not isinstance(raised.value, UnavailableError)


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_what_may_get_better(kmock: km.RawHandler, kube: AioKube, code: int) -> None:
    kmock["get"] << code << failure(code)
    with pytest.raises(UnavailableError):
        await kube.get(CONFIG_MAP, "ns", "name")


async def test_the_servers_wish_for_patience_is_passed_on(kmock: km.RawHandler, kube: AioKube) -> None:
    kmock["get"] << (lambda: km.Response(payload=failure(429), status=429, headers={"Retry-After": "7"}))
    with pytest.raises(UnavailableError) as raised:
        await kube.get(CONFIG_MAP, "ns", "name")
    assert raised.value.retry_after_s == 7.0


async def test_a_list_whose_token_expired_is_read_again_from_the_start(
    kmock: km.RawHandler, kube: AioKube
) -> None:
    tokens: list[str] = []

    def answer(request: km.Request) -> Any:
        tokens.append(request.params.get("continue", ""))
        if len(tokens) == 2:
            return km.Response(payload=failure(410, "Expired"), status=410)
        token = "" if tokens[-1] else "next"
        page = {"metadata": {"continue": token}, "items": [{"metadata": {"name": tokens[-1] or "first"}}]}
        return km.Response(payload=page, status=200)

    kmock["get"] << answer
    listed = await kube.list(CONFIG_MAP, "ns")
    assert [obj["metadata"]["name"] for obj in listed] == ["first", "next"]
    assert tokens == ["", "next", "", "next"]


async def test_a_server_that_hangs_costs_the_deadline(kmock: km.RawHandler, kube: AioKube) -> None:
    kmock["get"] << (lambda: asyncio.sleep(30))
    with pytest.raises(UnavailableError, match="deadline"):
        await kube.get(CONFIG_MAP, "ns", "name")


async def test_waiting_calls_keep_their_own_deadline(kmock: km.RawHandler) -> None:
    configuration = Configuration()
    configuration.host = str(kmock.url).rstrip("/")
    kmock["get"] << (lambda: asyncio.sleep(30))
    async with AioKube(configuration, deadline_s=0.5, concurrency=1) as kube:
        started = asyncio.get_running_loop().time()
        results = await asyncio.gather(
            *(kube.get(CONFIG_MAP, "ns", "name") for _ in range(5)), return_exceptions=True
        )
        took = asyncio.get_running_loop().time() - started
    assert all(isinstance(result, UnavailableError) for result in results)
    assert took < 2.0


async def test_an_answer_that_is_no_json_is_no_object(kmock: km.RawHandler, kube: AioKube) -> None:
    kmock["get"] << b"<html>a proxy's page</html>"
    with pytest.raises(UnavailableError, match="no JSON"):
        await kube.get(SERVICE, "ns", "name")


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"garbage\r\n\r\n"]
)
async def test_a_connection_that_breaks_is_unavailable(greeting: bytes) -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(greeting)
        await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(breaks, "127.0.0.1", 0)
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AioKube(configuration, deadline_s=2) as kube:
        with pytest.raises(UnavailableError):
            await kube.get(CONFIG_MAP, "ns", "name")


async def test_nobody_listens() -> None:
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:1"
    told: list[tuple[str, str, str]] = []
    observe: Callable[[str, str, str], None] = lambda *call: told.append(call)  # noqa: E731
    async with AioKube(configuration, deadline_s=30, observe=observe) as kube:
        with pytest.raises(UnavailableError):
            await kube.get(CONFIG_MAP, "ns", "name")
    assert told == [("get", "configmaps", "NoConnection")]
