"""A whole scenario against an engine and streams that are made up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import measure
from bench.measure import Measured, Measuring
from bench.plan import DEFAULT, Wanted, is_cap, plan
from bench.result import result
from bench.scenarios import SCENARIOS, Scenario
from fakes import FakeEngine
from harness.loopback import POD_UID, Loopback
from harness.traffic import Tape
from llamaserver.engine import SigningKey

KEY = SigningKey.generate()
EVERY_S = 0.0005


class Engine(FakeEngine):
    """One whose latency follows what is in force."""

    def snapshot(self) -> dict[str, Any]:
        self.running = min(self.cap, 32)
        return {**super().snapshot(), "age_s": 0}

    @property
    def gap_s(self) -> float:
        """A token's time in a step of decodes, or, every tenth, in one with prefill."""
        return 0.002 + 0.0005 * min(self.cap, 32)

    @property
    def stall_s(self) -> float:
        return self.gap_s + 0.00025 * min(self.budget - min(self.cap, 32), 128)


class Streams:
    """What stands for the traffic: since the last look, tokens as the engine is now."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.tape, self.mixes = engine, Tape(), [0]
        self.rates: list[float] = []
        self.at = time.perf_counter()

    def switch(self, mix: int) -> None:
        self.mixes.append(mix)

    def full_rate(self, per_s: float) -> None:
        self.rates.append(per_s)

    def read(self) -> Tape:
        cap = min(self.engine.cap, 32)
        # Prompts that have to wait for room in a step keep sequences from decoding.
        tokens = round(1000 * cap * (1 - 4 / (self.engine.budget - cap)))
        while self.at < time.perf_counter():
            self.at += EVERY_S
            number = len(self.tape.itl)
            gap = self.engine.stall_s if number % 10 == 0 else self.engine.gap_s
            self.tape.itl.append((self.at, gap, tokens))
            if number % 100 == 0:
                self.tape.ttft.append((self.at, 0.1, 0))
        return self.tape


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    fake = Engine(
        pod_uid=POD_UID,
        public_keys={KEY.kid: KEY.public_pem()},
        ceiling=32,
        cap=32,
        waiting=8,
        tokens_per_s=1000,
    )
    async with fake:
        yield fake


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FILL_S", "WARM_S", "FLUSH_S", "DRAIN_LOOK_S"):
        monkeypatch.setattr(measure, name, 0.01)


def brief(name: str) -> Scenario:
    """The scenario, with next to no time to answer a change."""
    scenario = SCENARIOS[name]
    parts = tuple(replace(part, change_s=min(part.change_s, 0.05)) for part in scenario.parts)
    return replace(scenario, parts=parts)


def measuring(engine: Engine, wanted: Wanted, lines: list[str]) -> tuple[Measuring, Measured]:
    (work,) = plan(wanted)
    found = Measured(work.scenario)
    server = Loopback(engine.port, None, Path("none"))  # type: ignore[arg-type]
    found.repeats, found.statistic = work.repeats, wanted.statistic
    return Measuring(server, KEY, wanted, work, found, lines.append, time.monotonic(), None), found


async def test_a_scenario_from_its_objective_to_its_last_round(engine: Engine, wanted) -> None:
    asked = wanted(scenarios=(SCENARIOS["chat_mix"],), window_s=0.05, settle_s=0.0, minutes=8.0)
    lines: list[str] = []
    run, found = measuring(engine, asked, lines)
    await run.run(Streams(engine))  # type: ignore[arg-type]
    assert found.complete
    assert found.default_p50_ms == 18.0
    assert found.default_tail_ms == 50.0
    assert found.target_ms == 30.0
    assert len(found.points[DEFAULT]) == len(found.variants["ours"]) == 4
    said = result(asked, [found], started="", machine={}, versions={}, incomplete="", seconds=0.0)[
        "scenarios"
    ]["chat_mix"]
    # 32 sequences hold 30 ms with 48 prompt tokens a step beside them; no cap alone holds it.
    assert said["best_cap"] is None
    assert said["best_pair"]["cap"] == 32
    assert said["best_pair"]["repeats"] >= 4
    assert 64 <= said["best_pair"]["budget"] <= 80
    assert said["default"]["violated_window_share"] == 0.0, "the fake counts 20 ms whatever is in force"
    assert any("objective" in line for line in lines)


async def test_no_more_is_measured_than_was_asked_for(engine: Engine, wanted) -> None:
    asked = wanted(
        scenarios=(SCENARIOS["chat_mix"],),
        policies=("default", "best_cap"),
        variants=(),
        repeats=2,
        window_s=0.05,
        settle_s=0.0,
    )
    run, found = measuring(engine, asked, [])
    await run.run(Streams(engine))  # type: ignore[arg-type]
    assert found.variants == {}
    assert all(is_cap(pair) for pair in found.points)
    assert len(found.points) > 3


async def test_a_change_of_the_mix_is_part_of_every_repeat(engine: Engine, wanted) -> None:
    asked = wanted(
        scenarios=(brief("mix_change"),), policies=("default",), variants=(), window_s=0.05, settle_s=0.0
    )
    run, found = measuring(engine, asked, [])
    streams = Streams(engine)
    await run.run(streams)  # type: ignore[arg-type]
    assert streams.mixes == [0] + [0, 1] * len(found.points[DEFAULT])
    assert [part.name for part in found.points[DEFAULT][0].parts] == ["documents", "chat"]
    assert all(repeat.violated_at_change is not None for repeat in found.points[DEFAULT])


async def test_a_load_goes_on_through_the_parts_of_its_growth(engine: Engine, wanted) -> None:
    asked = wanted(
        scenarios=(SCENARIOS["growing_contexts"],),
        policies=("default",),
        variants=(),
        window_s=0.05,
        settle_s=0.0,
    )
    run, found = measuring(engine, asked, [])
    streams = Streams(engine)
    await run.run(streams)  # type: ignore[arg-type]
    assert streams.mixes == [0] + [0, 1] * len(found.points[DEFAULT])
    assert len(found.points[DEFAULT][0].parts) == 4


async def test_an_open_load_is_a_share_of_what_the_default_carries(engine: Engine, wanted) -> None:
    asked = wanted(
        scenarios=(SCENARIOS["open_chat"],), policies=("default",), variants=(), window_s=0.4, settle_s=0.0
    )
    run, found = measuring(engine, asked, [])
    streams = Streams(engine)
    await run.run(streams)  # type: ignore[arg-type]
    assert streams.rates == [pytest.approx(1 / (100 * EVERY_S), rel=0.3)]
    assert streams.mixes == [0, 0, 0] + [1] * len(found.points[DEFAULT])
    assert found.target_ms is not None


async def test_the_operator_is_told_the_statistic_that_is_judged(engine: Engine, wanted) -> None:
    asked = wanted(
        scenarios=(SCENARIOS["chat_mix"],),
        policies=("default", "ours"),
        repeats=1,
        window_s=0.05,
        settle_s=0.0,
        statistic="p99",
    )
    run, found = measuring(engine, asked, lines := [])
    await run.run(Streams(engine))  # type: ignore[arg-type]
    assert any("p99 at most" in line for line in lines)
    said = result(asked, [found], started="", machine={}, versions={}, incomplete="", seconds=0.0)
    assert said["scenarios"]["chat_mix"]["objective"]["statistic"] == "p99"


async def test_what_is_known_stays_when_it_is_cut_short(engine: Engine, wanted) -> None:
    asked = wanted(scenarios=(SCENARIOS["chat_mix"],), window_s=0.05, settle_s=0.0)
    run, found = measuring(engine, asked, [])
    swept = asyncio.Event()
    run.saved = lambda: swept.set() if len(found.points) > 2 else None
    task = asyncio.create_task(run.run(Streams(engine)))  # type: ignore[arg-type]
    await swept.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not found.complete
    assert found.target_ms is not None
