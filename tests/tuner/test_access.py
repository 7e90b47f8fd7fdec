"""How the API server asks its engine cores: one message at a time, a deadline, and a reason for every
silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from llamaserver_tuner import access
from llamaserver_tuner.access import EngineAccess, Reading, UnansweredError


class Cores:
    """Stands for vLLM's client of two engine cores; `answer` says what a call gives."""

    def __init__(self, answer: Callable[[], Awaitable[list[str]]]) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._answer = answer

    async def call_utility_all_async(self, method: str, *args: Any) -> list[str]:
        self.calls.append((method, args))
        return await self._answer()


def client(cores: Any, **attributes: Any) -> Any:
    return SimpleNamespace(engine_core=cores, errored=False, **attributes)


async def two_engines() -> list[str]:
    return [json.dumps({"engine": 0}), json.dumps({"engine": 1})]


def failing(error: Exception) -> Callable[[], Awaitable[list[str]]]:
    async def answer() -> list[str]:
        raise error

    return answer


async def test_every_engine_is_read() -> None:
    reading = await EngineAccess(client(Cores(two_engines))).read()
    assert reading == Reading([{"engine": 0}, {"engine": 1}], 0.0)


async def test_a_change_reaches_the_engines_with_its_last_moment() -> None:
    cores = Cores(two_engines)
    await EngineAccess(client(cores)).apply("{}", 12.0)
    assert cores.calls == [("llamaserver_tuner_apply", ("{}", 12.0))]


async def test_a_hung_engine_is_asked_once_however_often_it_is_scraped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "READ_TIMEOUT_S", 0.01)
    awake = asyncio.Event()

    async def hang() -> list[str]:
        await awake.wait()
        return await two_engines()

    cores = Cores(hang)
    engines = EngineAccess(client(cores))
    for _ in range(5):
        with pytest.raises(UnansweredError) as silence:
            await engines.read()
        assert silence.value.reason == "EngineUnreachable"
    assert len(cores.calls) == 1
    awake.set()
    assert len((await engines.read()).engines) == 2
    await engines.read()
    assert len(cores.calls) == 2


async def test_a_slow_step_gives_the_last_reading_with_its_age_and_a_hung_engine_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "READ_TIMEOUT_S", 0.01)
    slow, between_steps, now = [False], asyncio.Event(), [100.0]

    async def answer() -> list[str]:
        if slow[0]:
            await between_steps.wait()
        return [json.dumps({"engine": 0, "running": now[0]})]

    cores = Cores(answer)
    engines = EngineAccess(client(cores), clock=lambda: now[0])
    assert (await engines.read()).age_s == 0.0
    slow[0] = True
    for now[0] in (102.0, 104.0):
        assert await engines.read() == Reading([{"engine": 0, "running": 100.0}], now[0] - 100.0)
    assert len(cores.calls) == 2
    # The reading that nobody waited for any more is the last one now.
    between_steps.set()
    await asyncio.sleep(0.01)
    between_steps.clear()
    now[0] = 105.0
    assert await engines.read() == Reading([{"engine": 0, "running": 104.0}], 1.0)
    now[0] = 104.0 + access.MAX_AGE_S
    with pytest.raises(UnansweredError) as silence:
        await engines.read()
    assert silence.value.reason == "EngineUnreachable"


async def test_an_aged_reading_shows_a_change_made_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "READ_TIMEOUT_S", 0.01)
    engine = {"engine": 0, "generation": 1, "retunes": {}, "steps": "sums"}
    answers = [[engine], [{"engine": 0, "generation": 2, "retunes": {}, "error": "none"}]]

    async def answer() -> list[str]:
        if not answers:
            await asyncio.Event().wait()
        return [json.dumps(state) for state in answers.pop(0)]

    engines = EngineAccess(client(Cores(answer)), clock=lambda: 100.0)
    await engines.read()
    await engines.apply("{}", 1.0)
    assert (await engines.read()).engines == [{**engine, "generation": 2}]


async def test_a_second_change_is_not_queued_behind_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "APPLY_TIMEOUT_S", 0.01)

    async def hang() -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError

    cores = Cores(hang)
    engines = EngineAccess(client(cores))
    for _ in range(3):
        with pytest.raises(UnansweredError) as silence:
            await engines.apply("{}", 1.0)
        assert silence.value.reason == "EngineTimeout"
    assert len(cores.calls) == 1


async def test_a_reader_that_goes_away_does_not_take_the_answer_from_the_others() -> None:
    release = asyncio.Event()

    async def wait() -> list[str]:
        await release.wait()
        return await two_engines()

    engines = EngineAccess(client(Cores(wait)))
    impatient, patient = asyncio.create_task(engines.read()), asyncio.create_task(engines.read())
    await asyncio.sleep(0)
    impatient.cancel()
    release.set()
    assert len((await patient).engines) == 2


@pytest.mark.parametrize(
    ("engine_client", "reason"),
    [
        (None, "NoEngine"),
        (SimpleNamespace(), "NoEngineAccess"),
        (client(SimpleNamespace()), "NoEngineAccess"),
        (client(Cores(failing(Exception("Server shutting down")))), "ShuttingDown"),
        (client(Cores(failing(RuntimeError("boom")))), "EngineError"),
        (client(Cores(failing(type("EngineDeadError", (Exception,), {})()))), "EngineDead"),
        (SimpleNamespace(engine_core=Cores(failing(RuntimeError("x"))), errored=True), "EngineDead"),
    ],
)
async def test_every_silence_has_its_reason(engine_client: Any, reason: str) -> None:
    with pytest.raises(UnansweredError) as silence:
        await EngineAccess(engine_client).read()
    assert silence.value.reason == reason


async def test_a_missing_engine_plugin_is_asked_for_once_a_minute() -> None:
    """vLLM logs a traceback for every call of a method that is not there."""
    message = (
        "Call to llamaserver_tuner_read method failed: "
        "'EngineCoreProc' object has no attribute 'llamaserver_tuner_read'"
    )
    cores, now = Cores(failing(Exception(message))), [100.0]
    engines = EngineAccess(client(cores), clock=lambda: now[0])
    for _ in range(10):
        with pytest.raises(UnansweredError) as silence:
            await engines.read()
        assert silence.value.reason == "EnginePluginMissing"
    assert len(cores.calls) == 1
    now[0] += access.PLUGIN_RETRY_S
    with pytest.raises(UnansweredError):
        await engines.read()
    assert len(cores.calls) == 2
