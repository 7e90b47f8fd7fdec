"""The streams in their own process, against a server that streams."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from harness.traffic import Group, Tape, Traffic, request

GAP_S = 0.01
PROMPTS = web.AppKey("prompts", list)


async def completions(http: web.Request) -> web.StreamResponse:
    """A stream of as many tokens as asked for, two in its second event."""
    body = await http.json()
    http.app[PROMPTS].append(body["prompt"])
    response = web.StreamResponse()
    await response.prepare(http)
    sent = 0
    while sent < body["max_tokens"]:
        sent += 2 if sent == 1 else 1
        ending = "length" if sent == body["max_tokens"] else None
        event = {
            "choices": [{"text": "x", "finish_reason": ending}],
            "usage": {"completion_tokens": sent},
        }
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await asyncio.sleep(GAP_S)
    return response


async def load(mixes: list[list[Group]], folder: Path, during: Callable[[Traffic], Awaitable[None]]):
    """A load, and the prompts that the server was sent."""
    app = web.Application()
    app[PROMPTS] = []
    app.router.add_post("/v1/completions", completions)
    async with TestServer(app) as server:
        traffic = Traffic(str(server.make_url("")).rstrip("/"), "m", mixes, folder)
        await during(traffic)
        tape = await asyncio.to_thread(traffic.stop)
    return tape, app[PROMPTS]


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_a_mix_is_changed_while_it_runs(tmp_path: Path) -> None:
    mixes = [[Group(4, (5, 5), (6, 6))], [Group(4, (50, 50), (3, 3), prefix=10)]]

    async def during(traffic: Traffic) -> None:
        await until(lambda: traffic.read().done > 8)
        traffic.switch(1)
        before = traffic.read().done
        await until(lambda: traffic.read().done > before + 12)

    tape, prompts = await load(mixes, tmp_path, during)
    assert tape.cut == 0
    lengths = [len(prompt) for prompt in prompts]
    assert lengths == sorted(lengths)
    assert set(lengths) == {5, 60}
    shared = {tuple(prompt[:10]) for prompt in prompts if len(prompt) == 60}
    assert len(shared) == 1


async def test_what_waits_when_the_mix_changes_is_asked_anew(tmp_path: Path) -> None:
    mixes = [[Group(4, (5, 5), (300, 300))], [Group(4, (50, 50), (3, 3))]]
    app = web.Application()
    app[PROMPTS] = []
    room = asyncio.Semaphore(2)

    async def in_turn(http: web.Request) -> web.StreamResponse:
        app[PROMPTS].append((await http.json())["prompt"])
        async with room:
            return await completions(http)

    app.router.add_post("/v1/completions", in_turn)
    async with TestServer(app) as server:
        traffic = Traffic(str(server.make_url("")).rstrip("/"), "m", mixes, tmp_path)
        # The two that are answered are in the list twice.
        await until(lambda: sum(len(prompt) == 5 for prompt in app[PROMPTS]) == 6)
        traffic.switch(1)
        await until(lambda: sum(len(prompt) == 50 for prompt in app[PROMPTS]) == 2)
        assert traffic.read().done == 0, "those that had begun go on, and what was withdrawn is not done"
        tape = await asyncio.to_thread(traffic.stop)
    assert tape.cut == 0


async def test_every_event_is_written_down_with_its_time_and_its_tokens(tmp_path: Path) -> None:
    async def during(traffic: Traffic) -> None:
        await until(lambda: traffic.read().done >= 6)

    began = time.perf_counter()
    tape, _ = await load([[Group(2, (5, 5), (6, 6))]], tmp_path, during)
    assert all(began < at < time.perf_counter() for at, _, _ in tape.itl)
    assert [at for at, _, _ in tape.itl] == sorted(at for at, _, _ in tape.itl)
    assert {tokens for _, _, tokens in tape.itl} == {1, 2}
    assert len(tape.ttft) >= 6
    tokens = sum(tokens for _, _, tokens in (*tape.itl, *tape.ttft))
    assert 6 * tape.done <= tokens <= 6 * (tape.done + 2)


async def test_streams_of_a_burst_begin_together(tmp_path: Path) -> None:
    async def during(traffic: Traffic) -> None:
        await until(lambda: traffic.read().done >= 8)

    tape, _ = await load([[Group(4, (5, 5), (2, 2), every_s=0.5)]], tmp_path, during)
    sent = [(at - wait) % 0.5 for at, wait, _ in tape.ttft]
    assert max(sent) < 0.25


async def test_a_server_that_is_gone_shows_as_cut_streams(tmp_path: Path) -> None:
    traffic = Traffic("http://127.0.0.1:1", "m", [[Group(2, (5, 5), (2, 2))]], tmp_path)
    await until(lambda: traffic.read().cut > 0)
    tape = traffic.stop()
    assert tape.cut == tape.done
    assert tape.itl == []
    with pytest.raises(RuntimeError, match="has ended"):
        traffic.read()


def test_mixes_of_different_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="same number"):
        Traffic("http://x", "m", [[Group(2, (1, 1), (1, 1))], [Group(3, (1, 1), (1, 1))]], tmp_path)


def test_a_window_is_cut_out_of_the_tape() -> None:
    tape = Tape(itl=[(float(i), 0.01, 1) for i in range(10)], ttft=[(4.5, 1.0, 1)])
    later, first = tape.between(3.0, 5.0)
    assert [at for at, _, _ in later] == [3.0, 4.0]
    assert first == [(4.5, 1.0, 1)]


def test_a_request_has_the_lengths_of_its_group() -> None:
    body = request(Group(1, (3, 9), (5, 7), prefix=4), range(100), random.Random(1), "m")
    assert body["prompt"][:4] == [0, 1, 2, 3]
    assert 7 <= len(body["prompt"]) <= 13
    assert 5 <= body["max_tokens"] <= 7


async def test_a_prefix_grows_from_the_switch_on_and_begins_anew(tmp_path: Path) -> None:
    growing = Group(2, (1, 1), (1, 1), prefix=10, prefix_per_s=200.0, prefix_most=150)
    mixes = [[Group(2, (1, 1), (1, 1), prefix=10)], [growing]]
    app = web.Application()
    app[PROMPTS] = []
    app.router.add_post("/v1/completions", completions)

    def shared() -> set[int]:
        return {len(prompt) - 1 for prompt in app[PROMPTS]}

    async with TestServer(app) as server:
        traffic = Traffic(str(server.make_url("")).rstrip("/"), "m", mixes, tmp_path)
        await until(lambda: len(app[PROMPTS]) > 20)
        assert shared() == {10}
        traffic.switch(1)
        await until(lambda: 150 in shared())
        assert len(shared()) > 5
        assert max(shared()) == 150
        longest = max(app[PROMPTS], key=len)
        assert all(prompt[:10] == longest[:10] for prompt in app[PROMPTS]), "all share the same text"
        traffic.switch(1)
        before = len(app[PROMPTS])
        await until(lambda: any(len(prompt) < 60 for prompt in app[PROMPTS][before + 2 :]))
        await asyncio.to_thread(traffic.stop)


async def test_requests_of_a_share_come_at_random_and_wait_for_nobody(tmp_path: Path) -> None:
    mixes = [[Group(2, (5, 5), (3, 3))], [Group(2, (7, 7), (400, 400), share=0.5)]]
    app = web.Application()
    app[PROMPTS] = []
    at: list[float] = []

    async def noted(http: web.Request) -> web.StreamResponse:
        if len((await http.json())["prompt"]) == 7:
            at.append(time.monotonic())
        return await completions(http)

    app.router.add_post("/v1/completions", noted)
    async with TestServer(app) as server:
        traffic = Traffic(str(server.make_url("")).rstrip("/"), "m", mixes, tmp_path)
        await until(lambda: traffic.read().done > 4)
        traffic.full_rate(20.0)
        traffic.switch(1)
        await until(lambda: len(at) >= 30)
        tape = await asyncio.to_thread(traffic.stop)
    rate = (len(at) - 1) / (at[-1] - at[0])
    assert 4 < rate < 20, "about half of what was said, from two streams whose answers take four seconds each"
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert max(gaps) > 2 / rate
    assert tape.cut == 0


def test_the_longest_request_of_a_group() -> None:
    assert Group(1, (3, 9), (5, 7), prefix=4).longest == 20
    assert Group(1, (3, 9), (5, 7), prefix=4, prefix_per_s=1.0, prefix_most=50).longest == 66
