"""A real Prometheus scrapes simulated engines, and the operator reads those from it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from engine_sim.sim import Sim, simulated
from llamaserver.observe import Failure, Memory, NoWindow, Sample, Source, Unusable, Window, advance
from llamaserver.prometheus import CURES, Access, Prometheus, PrometheusSource
from running_prometheus import running_prometheus
from workbench import eventually

PODS = {"m-0": "uid-0/0", "m-1": "uid-1/0"}
TARGET = '  - {{targets: ["127.0.0.1:{port}"], labels: {{namespace: ns, pod: {pod}}}}}\n'


class Fleet:
    """Two engines, a Prometheus that scrapes both every second, and the operator's way to that."""

    sims: dict[str, Sim]
    running: dict[str, AsyncExitStack]
    process: ExitStack
    url: str
    source: PrometheusSource

    async def read(self) -> Mapping[str, Sample | Failure]:
        """The next that is new, or that is told."""

        async def look() -> Mapping[str, Sample | Failure] | None:
            await asyncio.sleep(self.source.wait_s("ns/m", 0.2))
            return await self.source.read("ns/m", "ns", PODS, 0.2)

        return await eventually(look, lambda found: found is not None)  # type: ignore[no-any-return]


@pytest.fixture
async def fleet(tmp_path: Path, prometheus_programs: Path) -> AsyncIterator[Fleet]:
    made = Fleet()
    made.sims, made.running = {}, {}
    async with AsyncExitStack() as stack:
        for pod in PODS:
            made.running[pod] = await stack.enter_async_context(AsyncExitStack())
            made.sims[pod] = await made.running[pod].enter_async_context(simulated())
        targets = "".join(TARGET.format(port=sim.server.port, pod=pod) for pod, sim in made.sims.items())
        scrape = f"scrape_configs:\n- job_name: vllm\n  static_configs:\n{targets}"
        made.process = stack.enter_context(ExitStack())
        made.url = made.process.enter_context(running_prometheus(prometheus_programs, tmp_path, scrape))
        asked = stack.enter_context(Prometheus(Access(made.url, timeout_s=10.0, retries=0, cures=CURES)))
        made.source = PrometheusSource(asked.samples, monotonic=time.monotonic, wall=time.time)
        stack.callback(made.source.close)
        yield made


async def test_what_was_served_comes_by_way_of_prometheus(fleet: Fleet) -> None:
    first: dict[str, Sample | Failure] = {}

    async def all_scraped() -> bool:
        first.update(await fleet.read())
        return all(isinstance(one, Sample) for one in first.values())

    await eventually(all_scraped)
    memory, _ = advance(Memory(), first, time.monotonic())
    await asyncio.gather(*(fleet.sims["m-0"].complete(max_tokens=10) for _ in range(5)))
    await fleet.sims["m-1"].complete(max_tokens=4)
    windows: dict[str, list[Window]] = {pod: [] for pod in PODS}

    async def told() -> bool:
        nonlocal memory
        memory, found = advance(memory, await fleet.read(), time.monotonic())
        for pod, window in found.items():
            if isinstance(window, Window):
                windows[pod].append(window)
        return [sum(w.finished or 0 for w in windows[pod]) for pod in PODS] == [5, 1]

    await eventually(told)
    assert [sum(w.generation_tokens for w in windows[pod]) for pod in PODS] == [50, 4]
    assert [sum(w.itl.count for w in windows[pod]) for pod in PODS] == [45, 3]
    last = windows["m-0"][-1]
    assert (last.last.source, last.last.incarnation) == (Source.PROMETHEUS, "uid-0/0")
    assert last.last.every_s == pytest.approx(1.0, abs=0.4)
    assert last.at == pytest.approx(time.monotonic(), abs=10.0)
    itl = last.last.itl
    assert itl.count == await fleet.sims["m-0"].counted("vllm:inter_token_latency_seconds_count")
    assert itl.sum_s == pytest.approx(await fleet.sims["m-0"].counted("vllm:inter_token_latency_seconds_sum"))


async def test_engines_that_are_scraped_no_more_are_held_and_then_told(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llamaserver.prometheus.source.LEAST_BACK_S", 4.0)
    memory = Memory()

    async def two_windows() -> bool:
        nonlocal memory
        memory, windows = advance(memory, await fleet.read(), time.monotonic())
        return [type(windows[pod]) for pod in PODS] == [Window, Window]

    await eventually(two_windows)
    await fleet.running["m-1"].aclose()
    whys: list[Unusable] = []
    messages: list[str] = []

    async def silent() -> bool:
        nonlocal memory
        found = await fleet.read()
        memory, windows = advance(memory, found, time.monotonic())
        if isinstance(window := windows["m-1"], NoWindow):
            whys.append(window.why)
        if isinstance(one := found["m-1"], Failure):
            messages.append(one.message)
        return bool(messages) and isinstance(windows["m-0"], Window)

    await eventually(silent)
    assert set(whys) == {Unusable.NOT_SCRAPED}, "never taken for an engine without work"
    assert "s old, and more than 4 s is too old to decide by" in messages[0]


async def test_a_prometheus_that_ends_is_told(fleet: Fleet) -> None:
    await eventually(fleet.read, lambda found: all(isinstance(one, Sample) for one in found.values()))
    fleet.process.close()
    found = await eventually(
        fleet.read, lambda found: all(isinstance(one, Failure) for one in found.values())
    )
    for one in found.values():
        assert one.why is Unusable.UNREACHABLE
        assert one.message.startswith(f"Prometheus {fleet.url} cannot be reached (")
        assert "check --prometheus-url (prometheus.url of the chart)" in one.message
        assert re.search(r"; the newest figures are \d+ s old$", one.message)
