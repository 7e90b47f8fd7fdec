"""A load that does not change costs no writes, however noisy; one that does is told within ten seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.api.status import EngineTuning, ObservedStatus, PodTuning, Status, TuningStatus
from llamaserver.cluster.kinds import LLAMASERVER, Object
from llamaserver.controller.mandate import Mandate
from llamaserver.controller.queue import Key, WorkQueue
from llamaserver.controller.runtime import APART_S, FAR_S, FIGURES_S, Server
from llamaserver.controller.status import tells_something_new
from llamaserver.controller.steady import FAR, SHARE, holds, near, roughly_holds, same_words
from llamaserver.controller.tick import Ticker
from llamaserver.engine import Applied
from llamaserver.engine.client import EngineInForce
from llamaserver.observe import Failure, Sample, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.lengths import words
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.telemetry import Metrics
from reconciling import KEY, NOW, Bench

TICK_S = 2.0
FIGURES = st.floats(1e-3, 1e3)


def latency(ms: float) -> Status:
    return Status(observed=ObservedStatus(inter_token_latency=f"{ms:.4g}ms"))


@given(FIGURES, FIGURES)
def test_a_band_is_one_for_both_sides_and_no_wider_than_said(a: float, b: float) -> None:
    assert near(a, b) == near(b, a)
    assert near(a, a)
    assert near(a, b) == (abs(a - b) <= SHARE * max(a, b) + 1e-9)


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=80))
def test_what_is_written_is_never_wrong_for_long(figures: list[float]) -> None:
    """Any figures at all, one a tick."""
    server = Server(Key("ns", "chat"), "uid", written=latency(figures[0]), written_at=0.0)
    far = apart = 0.0
    writes = []
    for tick, figure in enumerate(figures):
        now, shown = tick * TICK_S, latency(figure)
        if server.rewritten_in(shown, now) == 0:
            server.wrote(shown, now)
            writes.append(now)
        assert server.written is not None
        far = 0.0 if roughly_holds(server.written, shown, {}) else far + TICK_S
        apart = 0.0 if holds(server.written, shown, {}) else apart + TICK_S
        assert far <= FIGURES_S
        assert apart <= APART_S
    assert all(b - a >= FIGURES_S for a, b in pairwise(writes))


@given(st.floats(1, 1000), st.lists(st.floats(-0.5 * SHARE, 0.5 * SHARE), max_size=80))
def test_noise_within_the_band_is_never_written(level: float, noise: list[float]) -> None:
    server = Server(Key("ns", "chat"), "uid", written=latency(level), written_at=0.0)
    for tick, share in enumerate(noise):
        assert server.rewritten_in(latency(level * (1 + share)), tick * TICK_S) is None


@given(st.floats(1, 1000), st.floats(1.3, 10), st.booleans())
def test_a_change_that_stays_is_written_in_time(level: float, factor: float, falls: bool) -> None:
    server = Server(Key("ns", "chat"), "uid", written=latency(level), written_at=0.0)
    then = latency(level / factor if falls else level * factor)
    assert [server.rewritten_in(then, 100.0 + s) for s in (0.0, 4.0, FAR_S)] == [FAR_S, FAR_S - 4.0, 0.0]


def test_a_small_change_that_stays_is_written_later() -> None:
    server = Server(Key("ns", "chat"), "uid", written=latency(100), written_at=0.0)
    then = latency(117)
    assert [server.rewritten_in(then, 100.0 + s) for s in (0.0, 20.0, APART_S)] == [APART_S, 10.0, 0.0]


@pytest.mark.parametrize(
    ("written", "now", "same"),
    [
        ("p95 is 41.2 ms against 50 ms", "p95 is 44 ms against 50 ms", True),
        ("p95 is 990 ms", "p95 is 1.1 s", True),
        ("12 requests wait, for 3m", "60 requests wait, for 40s", True),
        ("pod chat-10 is full", "pod chat-11 is full", False),
        ("pod chat-7d9f-4 is full", "pod chat-7d9f-5 is full", False),
        ("since 2026-01-01T00:00:00Z", "since 2026-01-01T00:00:01Z", False),
        ("2 replicas are enough", "2 replicas are needed", False),
        ("vllm/vllm-openai:v0.32.0", "vllm/vllm-openai:v0.33.0", False),
    ],
)
def test_texts_that_differ_in_figures_say_the_same(written: str, now: str, same: bool) -> None:
    assert same_words(written, now) == same == same_words(now, written)


@pytest.mark.parametrize(
    ("field", "written", "near_by", "far"),
    [
        ("inter_token_latency", "41ms", "44ms", "50ms"),
        ("inter_token_latency", "<=10ms", "9.8ms", "15ms"),
        ("inter_token_latency", "950ms", "1s", "1.2s"),
        ("queue_time", "2s", "2.1s", "3s"),
        ("running", 20, 22, 23),
        ("running", 1, 1, 2),
        ("waiting", 0, 0, 1),
        ("kv_cache_usage", "0.60", "0.65", "0.90"),
        ("tokens_per_second", "900", "990", "2000"),
    ],
)
def test_each_figure_has_its_band(field: str, written: object, near_by: object, far: object) -> None:
    def status(value: object) -> Status:
        return Status(observed=ObservedStatus(**{field: value}))  # type: ignore[arg-type]

    assert holds(status(written), status(near_by), {})
    assert not holds(status(written), status(far), {})
    assert holds(status(written), status(far), {field: 1e9})
    assert not holds(status(written), status(None), {field: 1e9}), "what is not known any more is told"


def two_engines(running: int, kv_usage: str, cap: int = 16) -> Status:
    """A pod with two engines, and five sequences, of which the first engine runs so many."""
    engines = (
        EngineTuning(index=0, num_seqs=cap, running=running, waiting=0, kv_cache_usage=kv_usage),
        EngineTuning(index=1, num_seqs=16, running=5 - running, waiting=0, kv_cache_usage="0.10"),
    )
    pod = PodTuning(name="chat-0", num_seqs=min(cap, 16), state="InForce", engines=engines)
    return Status(observed=ObservedStatus(running=5), tuning=TuningStatus(pods=(pod,)))


def test_the_load_of_each_engine_is_written_with_other_figures_only() -> None:
    written, now = two_engines(1, "0.05"), two_engines(4, "0.90")
    assert holds(written, now, {})
    assert not tells_something_new(written, now)
    lowered = two_engines(1, "0.05", cap=8)
    assert not roughly_holds(written, lowered, {})
    assert tells_something_new(written, lowered)


def followed(figures: Iterable[float]) -> list[float]:
    """When a figure is written that goes like this, one a tick."""
    server = Server(Key("ns", "chat"), "uid", written=Status(), written_at=float("-inf"))
    writes = []
    for tick, figure in enumerate(figures):
        now, shown = tick * TICK_S, running(figure)
        server.scatters = server.scatters.then(shown.observed, now)
        if server.rewritten_in(shown, now) == 0:
            server.wrote(shown, now)
            writes.append(now)
    return writes


def running(number: float) -> Status:
    return Status(observed=ObservedStatus(running=max(0, round(number))))


@settings(max_examples=20)
@given(st.integers(4, 200), st.integers(0, 1000))
def test_what_scatters_by_itself_settles(level: int, seed: int) -> None:
    """Any tick may have another number; the first minutes tell how far they go."""
    random = Random(seed)
    noise = [random.gauss(level, level**0.5) for _ in range(600)]
    assert [at for at in followed(noise) if at > 120] == []


@given(st.integers(1, 200), st.integers(2, 8), st.booleans())
def test_a_step_and_the_way_back_are_told_in_time(level: int, factor: int, falls: bool) -> None:
    """A load that was even is not taken for one that scatters."""
    low, high = level, level * factor
    one, other = (high, low) if falls else (low, high)
    first, there, back = followed([one] * 60 + [other] * 60 + [one] * 60)
    assert first <= FIGURES_S
    assert 120 < there <= 120 + FIGURES_S
    assert 240 < back <= 240 + APART_S


@settings(max_examples=20)
@given(st.integers(4, 100), st.integers(200, 2000), st.integers(0, 1000))
def test_a_load_that_keeps_growing_is_told_however_slowly_and_noisily(
    level: int, ticks: int, seed: int
) -> None:
    """To five times as much, within minutes or an hour."""
    random = Random(seed)
    writes = followed(random.gauss(level + 4 * level * n / ticks, level**0.5) for n in range(ticks))
    assert [at for at in writes if at > ticks / 2]


@dataclass
class Engines:
    """One simulated engine under a load, in the place of the client of engines."""

    engine: Engine
    monotonic: Callable[[], float]
    streams: int = 0
    rate: float = 0.0
    several: bool = False
    """It speaks as two, between which its sequences go to and fro."""
    random: Random = field(default_factory=lambda: Random(5))

    async def scrape(self, target: Any, deadline_s: float) -> Sample | Failure:
        self.engine.load(streams=self.streams, rate=self.rate)
        self.engine.run_until(self.monotonic())
        told = parse_snapshot(speech.snapshot(self.engine), self.monotonic(), target.incarnation)
        return self.halved(told) if self.several and isinstance(told, Sample) else told

    def halved(self, told: Sample) -> Sample:
        (one,) = told.engines
        part = self.random.randint(0, one.running)
        other = replace(one, engine=1, running=part, waiting=0)
        return replace(told, engines=(replace(one, running=one.running - part), other))

    async def put(
        self, target: Any, setpoint: Any, generation: int, lease_s: float, deadline_s: float
    ) -> Applied:
        self.engine.put(setpoint.max_num_active_seqs, lease_s, setpoint.max_num_scheduled_tokens)
        state = EngineInForce(0, self.engine.cap, self.engine.budget)
        return Applied(self.engine.generation, (state,), agreed=True)

    def forget(self, pod: str) -> None:
        pass


class Service:
    """The operator's looks and ticks for one LlamaServer, and what they write."""

    def __init__(self, bench: Bench, engines: Engines) -> None:
        self.bench, self.engines = bench, engines

    async def writes(self, seconds: float) -> int:
        """How many writes to the API server these seconds cost."""
        self.bench.api.calls.clear()
        await asyncio.sleep(seconds)
        return sum(verb != "get" for verb, _ in self.bench.api.calls)

    @property
    def running(self) -> int:
        """As status tells."""
        number: int = self.bench.api.statuses[-1]["observed"]["running"]
        return number


@contextlib.asynccontextmanager
async def serving(**load: Any) -> AsyncIterator[Service]:
    """A fleet of one engine under this load, for as long as it takes to learn it."""
    clock = asyncio.get_running_loop().time
    bench = Bench(clock)
    write = bench.api.apply_status

    async def told(obj: Object) -> Object:
        """The watches tell of what was written."""
        answer: Object = await write(obj)
        live = bench.cache.server(KEY)
        assert live is not None
        bench.api.version += 1
        metadata = {**live["metadata"], "resourceVersion": str(bench.api.version)}
        bench.cache.put(LLAMASERVER, {**live, "metadata": metadata, "status": obj["status"]})
        return answer

    bench.api.apply_status = told
    engine = Engine(CPU_24M, words, seed=3, start=clock(), step_noise=0.04)
    engines = Engines(engine, clock, **load)
    queue = WorkQueue(bench.reconciler.look, monotonic=clock)
    bench.reconciler.queue = queue
    bench.reconciler.ticker = ticker = Ticker(
        cache=bench.cache,
        engines=engines,  # type: ignore[arg-type]
        mandate=Mandate(lambda: True, lambda: True),
        queue=queue,
        metrics=Metrics(),
        monotonic=clock,
        wall=lambda: NOW,
    )
    bench.declare(slo={"interTokenLatency": {"target": "200ms"}})
    await bench.look()
    bench.rolled_out()
    bench.ready_pod("chat-0")
    queue.add(KEY)
    task = asyncio.create_task(queue.run())
    try:
        await asyncio.sleep(600)
        yield Service(bench, engines)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await ticker.close()


@pytest.mark.looptime
@pytest.mark.parametrize("load", [{}, {"several": True}], ids=["one engine", "two engines"])
async def test_ten_steady_minutes_cost_no_write(load: dict[str, Any]) -> None:
    async with serving(streams=12, **load) as service:
        assert await service.writes(600) == 0


@pytest.mark.looptime
async def test_chance_costs_a_write_only_when_it_goes_far() -> None:
    """A burst that is none of the usual is told, and that it is over: one or two in ten minutes, whatever
    the phase of the ticks; without bands they are sixty.
    """
    async with serving(rate=0.7) as service:
        assert await service.writes(600) <= 3


def test_coefficients_that_give_way_to_each_other_are_the_same_model() -> None:
    """As many streams as ever tell what a step takes, and not which part of it is each decode's."""
    learned = {"a_s": "0.00514", "b_s": "0.000554", "context": "229", "g_s": "0", "c_s": "0.002", "d_s": "0"}
    other = {**learned, "a_s": "0.00716", "b_s": "0.000385"}
    twelve = ObservedStatus(running=12)
    assert holds(Status(model=learned, observed=twelve), Status(model=other, observed=twelve), {})
    alone = ObservedStatus(running=1)
    assert not holds(Status(model=learned, observed=alone), Status(model=other, observed=alone), {})


@pytest.mark.looptime
async def test_a_load_that_doubles_is_told_within_ten_seconds() -> None:
    async with serving(streams=8) as service:
        before = service.running
        assert 7 <= before <= 8, "somebody's prompt is read now and then"
        service.engines.streams = 20
        assert await service.writes(FIGURES_S + TICK_S) >= 1
        assert near(service.running, len(service.engines.engine.running), share=FAR * SHARE)
