"""The streaming client against a server that streams, cuts and refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from harness.streams import main, parser, run

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answering(
    tokens_short: int = 0, events: int | None = None, finish: str = "length", status: int = 200
) -> Handler:
    """A completion endpoint that brings `tokens_short` fewer tokens than asked for, in so many events."""

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        if status != 200:
            return response
        count = body["max_tokens"] - tokens_short
        for i in range(events or count):
            last = i == (events or count) - 1
            chunk = {"choices": [{"text": "x", "finish_reason": finish if last else None}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        usage = {"choices": [], "usage": {"completion_tokens": count}}
        await response.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())
        return response

    return handler


async def outcome(handler: Handler, *flags: str) -> dict[str, object]:
    """The client's summary of a load against `handler`."""
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    async with TestServer(app) as server:
        return await load(str(server.make_url("")), *flags)


async def load(url: str, *flags: str) -> dict[str, object]:
    lengths = ("--output-min", "5", "--output-max", "9")
    args = ("--url", url.rstrip("/"), "--model", "m", "--concurrency", "4", *lengths, *flags)
    return await run(parser().parse_args(args))


async def test_whole_streams_are_not_cut() -> None:
    summary = await outcome(answering(), "--requests", "12")
    assert summary["streams"] == 12
    assert summary["cut"] == 0


async def test_tokens_joined_into_fewer_events_are_not_cut() -> None:
    summary = await outcome(answering(events=2), "--requests", "12")
    assert summary["cut"] == 0


@pytest.mark.parametrize(
    ("handler", "cause"),
    [
        (answering(tokens_short=1), "ended by length"),
        (answering(finish="abort"), "ended by abort"),
        (answering(status=503), "HTTP 503"),
    ],
)
async def test_short_aborted_and_refused_streams_are_cut(handler: Handler, cause: str) -> None:
    summary = await outcome(handler, "--requests", "4")
    assert summary["cut"] == 4
    assert summary["causes"] == {cause: 4}


async def test_a_server_that_is_not_there_cuts_and_is_not_flooded() -> None:
    summary = await load("http://127.0.0.1:9", "--seconds", "0.5")
    assert 4 <= summary["cut"] <= 20
    assert list(summary["causes"]) == ["ClientConnectorError ECONNREFUSED"]
    assert len(summary["cut_at_s"]) == summary["cut"]
    assert all(0.0 <= at <= summary["seconds"] for at in summary["cut_at_s"])


async def test_streams_hung_up_on_do_not_count() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')

    summary = await outcome(endless, "--seconds", "0.3", "--drop")
    assert summary["streams"] == 0
    assert summary["cut"] == 0


async def test_a_load_that_is_told_to_end_lets_its_streams_run_out() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        return await answering()(request)

    summary = await outcome(slow, "--seconds", "60")
    assert summary["streams"] == 4
    assert summary["cut"] == 0


async def test_a_load_in_waves_starts_no_stream_in_between() -> None:
    begun: list[float] = []

    async def noted(request: web.Request) -> web.StreamResponse:
        begun.append(time.monotonic())
        return await answering()(request)

    summary = await outcome(noted, "--seconds", "0.9", "--wave", "0.3")
    assert summary["cut"] == 0
    apart = [later - earlier for earlier, later in pairwise(begun)]
    assert sum(gap > 0.25 for gap in apart) == 1, "one ebb between two waves"


async def test_a_load_that_is_told_to_end_while_it_ebbs_ends() -> None:
    begun: list[float] = []

    async def first(request: web.Request) -> web.StreamResponse:
        if not begun:
            asyncio.get_running_loop().call_later(0.4, os.kill, os.getpid(), signal.SIGTERM)
        begun.append(time.monotonic())
        return await answering()(request)

    summary = await outcome(first, "--seconds", "60", "--wave", "0.3")
    assert summary["cut"] == 0
    assert float(str(summary["seconds"])) < 5.0


async def test_a_followed_load_tells_how_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    await outcome(answering(), "--seconds", "1.3", "--follow")
    (line,) = (json.loads(said) for said in capsys.readouterr().out.splitlines())
    assert line["done"] > 0
    assert line["cut"] == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seconds", "1", "--requests", "1"], "exactly one"),
        ([], "exactly one"),
        (["--requests", "1", "--drop"], "needs --seconds"),
        (["--requests", "1", "--concurrency", "0"], "--concurrency must be"),
        (["--requests", "1", "--wave", "0"], "--wave must be"),
    ],
)
def test_flags_that_make_no_sense_together_are_refused(flags: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        main(["--url", "http://127.0.0.1:9", "--model", "m", "--concurrency", "1", *flags])
