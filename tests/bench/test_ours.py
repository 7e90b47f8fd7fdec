"""The operator without Kubernetes, and fixed settings, against an engine that checks signatures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from bench.engine import NotChangedError, client, fix
from bench.ours import Clock, Ours
from bench.plan import Pair
from bench.variants import VARIANTS, Variant
from fakes import FakeEngine
from harness.loopback import POD_UID
from llamaserver.api.enums import Statistic
from llamaserver.control import Objective
from llamaserver.engine import SigningKey, Target

KEY = SigningKey.generate()
OBJECTIVE = Objective(itl_s=0.05, itl_statistic=Statistic.P95)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """A loaded engine whose latency is far above what the tests want."""
    keys = {KEY.kid: KEY.public_pem()}
    fake = FakeEngine(pod_uid=POD_UID, public_keys=keys, running=60, waiting=10, tokens_per_s=2000)
    fake.itl_s = 0.1
    async with fake:
        yield fake


def target(engine: FakeEngine) -> Target:
    return Target("engine", POD_UID, 0, "127.0.0.1", engine.port)


async def ticked(ours: Ours, engine: FakeEngine, times: int) -> None:
    """So many ticks, two seconds of the engine's own time apart."""
    ours.start()
    await ours.stop()
    ours._clock.go_on()
    for _ in range(times):
        engine.started -= 2.0
        ours._clock._before += 2.0
        await ours.tick()
    ours._clock.pause()


async def test_a_missed_objective_is_answered_with_a_lower_cap(engine: FakeEngine) -> None:
    async with Ours(KEY, target(engine), OBJECTIVE, VARIANTS["ours"]) as ours:
        await ticked(ours, engine, 8)
        assert ours.refused == []
    assert engine.cap < 64
    assert engine.puts[-1]["max_num_scheduled_tokens"] is None


async def test_a_variant_decides_what_is_written(engine: FakeEngine) -> None:
    always = Variant("budget", "", lambda setpoint: replace(setpoint, max_num_scheduled_tokens=256))
    async with Ours(KEY, target(engine), OBJECTIVE, always) as ours:
        await ticked(ours, engine, 4)
    assert engine.budget == 256


async def test_a_refused_change_is_remembered(engine: FakeEngine) -> None:
    engine.public_keys = {}
    async with Ours(KEY, target(engine), OBJECTIVE, VARIANTS["ours"]) as ours:
        await ticked(ours, engine, 4)
        assert ours.refused


async def test_a_fixed_setting_is_in_force_when_it_says_so(engine: FakeEngine) -> None:
    async with client(KEY) as engines:
        await fix(engines, target(engine), Pair(16, 96))
        assert (engine.cap, engine.budget) == (16, 96)
        await fix(engines, target(engine), None)
        assert (engine.cap, engine.budget) == (64, 2048)


async def test_an_engine_that_takes_no_setting_is_an_error(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.engine.TRIES", 1)
    engine.public_keys = {}
    async with client(KEY) as engines:
        with pytest.raises(NotChangedError, match="UnknownKey"):
            await fix(engines, target(engine), Pair(16, 96))


def test_the_operators_clock_stands_still_between_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("bench.ours.time.monotonic", lambda: now)
    clock = Clock()
    assert clock.now() == 0.0
    clock.go_on()
    now = 110.0
    assert clock.now() == 10.0
    clock.pause()
    now = 500.0
    assert clock.now() == 10.0
    clock.go_on()
    now = 503.0
    assert clock.now() == 13.0
