"""The operator's own client on a simulated engine: it reads it, sets a cap, and the lease ends by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from certificates import self_signed
from engine_sim.sim import Sim, simulated
from llamaserver.control import Setpoint
from llamaserver.engine import Applied, EngineClient, KeyRing, Live, Refused, Target, Unavailable, capability
from llamaserver.observe import Sample, Source
from workbench import eventually

RING = KeyRing.new()
UID = "pod-uid"
LEAST_LEASE_S = 5.0


@dataclass
class Pod:
    """An engine and the operator's way to it."""

    sim: Sim
    client: EngineClient

    @property
    def target(self) -> Target:
        return Target("pod-0", UID, 0, "127.0.0.1", self.sim.server.port, tls=self.sim.scheme == "https")

    async def scrape(self) -> Sample:
        sample = await self.client.scrape(self.target, 5)
        assert isinstance(sample, Sample), sample
        return sample


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with EngineClient(key=lambda: RING.active, monotonic=time.monotonic, wall=time.time) as made:
        yield made


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of an engine that accepts this operator's changes."""
    for kid, pem in RING.public().items():
        (tmp_path / f"{kid}.pem").write_text(pem)
    return {"LLAMASERVER_POD_UID": UID, "LLAMASERVER_TUNER_KEYS_DIR": str(tmp_path)}


@pytest.fixture
async def pod(client: EngineClient, environment: dict[str, str]) -> AsyncIterator[Pod]:
    async with simulated(environment=environment) as sim:
        yield Pod(sim, client)


async def test_what_was_served_is_in_the_sample(pod: Pod) -> None:
    await asyncio.gather(*(pod.sim.complete(max_tokens=10) for _ in range(3)))
    sample = await pod.scrape()
    assert sample.source is Source.TUNER
    assert capability(sample) == Live(budget=True)
    assert (sample.arrived, sample.finished) == (3, 3)
    assert (sample.prompt_tokens, sample.generation_tokens, sample.itl.count) == (9, 30, 27)
    assert sample.ttft is not None
    assert sample.queue is not None
    assert (sample.ttft.count, sample.queue.count) == (3, 3)
    (engine,) = sample.engines
    assert (engine.max_num_seqs, engine.max_model_len, engine.kv_capacity_tokens) == (8, 1000, 20_000)
    assert engine.decode_steps is not None
    assert engine.decode_steps.n > 0


async def test_both_ways_to_read_it_say_the_same(pod: Pod) -> None:
    await asyncio.gather(*(pod.sim.complete(max_tokens=10) for _ in range(12)))
    told = await pod.scrape()
    async with simulated(environment={"VLLM_PLUGINS": "other"}) as plain:
        assert (await plain.complete())[0] == 200
        seen = await pod.client.scrape(Target("pod-1", "other", 0, "127.0.0.1", plain.server.port), 5)
        assert isinstance(seen, Sample), seen
        assert seen.source is Source.METRICS
        assert capability(seen) == Unavailable("NoTuner", "the engine serves /metrics alone")
    assert told.tpot is not None
    for name, count in (
        ("vllm:inter_token_latency_seconds_count", told.itl.count),
        ("vllm:request_time_per_output_token_seconds_count", told.tpot.count),
        ("vllm:prompt_tokens_total", told.prompt_tokens),
        ("vllm:generation_tokens_total", told.generation_tokens),
        ("vllm:request_success_total", told.finished),
    ):
        assert await pod.sim.counted(name) == count


async def test_a_cap_holds_until_its_lease_ends(pod: Pod) -> None:
    plant = pod.sim.server.core.plant
    load = [asyncio.create_task(pod.sim.complete(max_tokens=990)) for _ in range(40)]
    await eventually(lambda: len(plant.running) == 8)
    assert (await pod.scrape()).engines[0].running == 8

    answer = await pod.client.put(pod.target, Setpoint(3, 64), 1, LEAST_LEASE_S)
    assert isinstance(answer, Applied), answer
    assert answer.agreed
    await eventually(lambda: len(plant.running) == 3)
    (engine,) = (await pod.scrape()).engines
    assert (engine.running, engine.max_num_active_seqs, engine.generation) == (3, 3, 1)
    assert engine.max_num_scheduled_tokens == 64

    again = await pod.client.put(pod.target, Setpoint(5), 1, LEAST_LEASE_S)
    assert isinstance(again, Refused)
    assert (again.reason, again.generation) == ("StaleGeneration", 1)

    await eventually(lambda: len(plant.running) == 8)
    (engine,) = (await pod.scrape()).engines
    assert (engine.max_num_active_seqs, engine.max_num_scheduled_tokens) == (8, 2048)
    assert engine.lease_expires_in_s is None
    for task in load:
        task.cancel()


async def test_what_is_out_of_bounds_is_refused_by_name(pod: Pod) -> None:
    await pod.scrape()
    answer = await pod.client.put(pod.target, Setpoint(9), 1, 60)
    assert isinstance(answer, Refused)
    assert (answer.status, answer.reason) == (400, "OutOfBounds")
    assert await pod.sim.counted('llamaserver_retunes_total{result="rejected"') == 1


async def test_a_change_for_another_pod_is_refused(pod: Pod) -> None:
    other = Target("pod-1", "another", 0, "127.0.0.1", pod.sim.server.port)
    await pod.client.scrape(other, 5)
    answer = await pod.client.put(other, Setpoint(4), 1, 60)
    assert isinstance(answer, Refused)
    assert (answer.status, answer.reason) == (401, "WrongAudience")


async def test_by_tls_it_is_served_read_and_changed_alike(
    client: EngineClient, environment: dict[str, str], tmp_path: Path
) -> None:
    files = self_signed(tmp_path)
    flags = (f"--ssl-certfile={files.certificate}", f"--ssl-keyfile={files.key}")
    async with simulated(*flags, environment=environment) as sim:
        pod = Pod(sim, client)
        assert (await sim.complete())[0] == 200
        assert (await pod.scrape()).generation_tokens == 5
        answer = await client.put(pod.target, Setpoint(3, 64), 1, 60)
        assert isinstance(answer, Applied), answer
        assert (await pod.scrape()).engines[0].max_num_active_seqs == 3
