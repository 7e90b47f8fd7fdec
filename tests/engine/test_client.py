"""The engine client against a fake engine: what an engine does is a value, never an exception."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from certificates import self_signed
from fakes import FakeEngine
from llamaserver.control import Setpoint
from llamaserver.engine import (
    Applied,
    EngineClient,
    KeyRing,
    Live,
    Refused,
    Target,
    Unavailable,
    Unreachable,
    capability,
)
from llamaserver.observe import Failure, Sample, Source, Unusable

RING = KeyRing.new()


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with EngineClient(key=lambda: RING.active, monotonic=time.monotonic, wall=time.time) as made:
        yield made


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(public_keys=RING.public()) as made:
        yield made


@pytest.fixture
async def sealed(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    """An engine whose certificate is for the Service's name, and that no authority vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_signed(tmp_path))
    async with FakeEngine(public_keys=RING.public(), tls=context) as made:
        yield made


def target(engine: FakeEngine, restarts: int = 0) -> Target:
    return Target("pod-0", engine.pod_uid, restarts, engine.host, engine.port, tls=engine.tls is not None)


async def test_the_snapshot_is_the_sample(client: EngineClient, engine: FakeEngine) -> None:
    engine.running = 3
    sample = await client.scrape(target(engine), 2)
    assert isinstance(sample, Sample)
    assert sample.source is Source.TUNER
    assert sample.engines[0].running == 3
    assert sample.incarnation == "uid-0/0/boot-0"
    assert capability(sample) == Live(budget=True)


async def test_without_the_route_metrics_are_read(client: EngineClient, engine: FakeEngine) -> None:
    engine.fault = "404"
    sample = await client.scrape(target(engine), 2)
    assert isinstance(sample, Sample), sample
    assert sample.source is Source.METRICS
    assert capability(sample) == Unavailable("NoTuner", "the engine serves /metrics alone")


async def test_several_api_servers_take_the_requests_from_metrics_and_stay_live(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.fault, engine.cap, engine.generation = "no-requests", 24, 3
    sample = await client.scrape(target(engine), 2)
    assert isinstance(sample, Sample), sample
    assert sample.source is Source.TUNER_AND_METRICS
    assert (sample.engines[0].max_num_active_seqs, sample.engines[0].generation) == (24, 3)
    assert sample.engines[0].decode_steps is not None
    assert (sample.itl.count, sample.generation_tokens) == (19, 20)
    assert capability(sample) == Live(budget=True)
    assert "SeveralApiServers" in sample.notes[0]
    answer = await client.put(target(engine), Setpoint(16), 4, 120)
    assert isinstance(answer, Applied), answer


async def test_a_tuner_without_a_way_to_the_engines_says_why_and_metrics_are_read(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.fault = "no-plugin"
    sample = await client.scrape(target(engine), 2)
    assert isinstance(sample, Sample), sample
    assert sample.source is Source.METRICS
    can = capability(sample)
    assert isinstance(can, Unavailable)
    assert can.reason == "EnginePluginMissing"


async def test_a_silent_engine_is_not_read_from_metrics(client: EngineClient, engine: FakeEngine) -> None:
    engine.fault = "silent"
    found = await client.scrape(target(engine), 2)
    assert isinstance(found, Failure)
    assert found.why is Unusable.ENGINE_SILENT


async def test_a_missing_route_is_not_asked_for_each_time_but_again_after_a_restart(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.fault = "404"
    for _ in range(3):
        await client.scrape(target(engine), 2)
    assert engine.scrapes == 1
    engine.fault = ""
    sample = await client.scrape(target(engine, restarts=1), 2)
    assert isinstance(sample, Sample)
    assert sample.source is Source.TUNER


@pytest.mark.parametrize("fault", ["500", "empty", "nan", "negative", "flood", "redirect"])
async def test_what_cannot_be_believed_is_a_failure(
    client: EngineClient, engine: FakeEngine, fault: str
) -> None:
    engine.fault = fault
    assert isinstance(await client.scrape(target(engine), 2), Failure)


async def test_a_missing_family_is_never_zero(client: EngineClient, engine: FakeEngine) -> None:
    engine.fault = "missing"
    sample = await client.scrape(target(engine), 2)
    # The tuner's digest is gone, so the engine's own histogram is read instead.
    assert isinstance(sample, Sample)
    assert sample.itl.count == 19


async def test_a_hung_engine_costs_its_deadline(client: EngineClient, engine: FakeEngine) -> None:
    engine.fault = "hang"
    result = await client.scrape(target(engine), 0.2)
    assert isinstance(result, Failure)
    assert result.why is Unusable.UNREACHABLE
    assert "0.2 s" in result.message


async def test_nobody_there_is_a_failure(client: EngineClient) -> None:
    result = await client.scrape(Target("pod-0", "uid", 0, "127.0.0.1", 1), 2)
    assert isinstance(result, Failure)
    assert result.why is Unusable.UNREACHABLE


async def test_a_signed_change_is_applied_and_read_back(client: EngineClient, engine: FakeEngine) -> None:
    await client.scrape(target(engine), 2)
    answer = await client.put(target(engine), Setpoint(16, 512), 1, 120)
    assert isinstance(answer, Applied), answer
    assert answer.agreed
    assert (answer.engines[0].max_num_active_seqs, answer.engines[0].max_num_scheduled_tokens) == (16, 512)
    assert engine.puts == [
        {"max_num_active_seqs": 16, "max_num_scheduled_tokens": 512, "generation": 1, "lease_seconds": 120}
    ]


async def test_engines_that_were_asked_for_the_same_budget_agree_whatever_a_step_gets(
    client: EngineClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuner lifts a budget, step by step, where less would starve somebody."""

    def engines() -> list[dict[str, Any]]:
        wanted = {"max_num_active_seqs": 16, "max_num_scheduled_tokens": 512}
        calm = {"engine": 0, **wanted, "wanted": wanted}
        return [calm, calm | {"engine": 1, "max_num_scheduled_tokens": 700}]

    await client.scrape(target(engine), 2)
    monkeypatch.setattr(engine, "read_back", engines)
    answer = await client.put(target(engine), Setpoint(16, 512), 1, 120)
    assert isinstance(answer, Applied), answer
    assert answer.agreed
    assert [one.max_num_scheduled_tokens for one in answer.engines] == [512, 512]


async def test_null_means_the_start_value(client: EngineClient, engine: FakeEngine) -> None:
    await client.scrape(target(engine), 2)
    await client.put(target(engine), Setpoint(16), 1, 120)
    answer = await client.put(target(engine), Setpoint(None), 2, 120)
    assert isinstance(answer, Applied)
    assert engine.cap == engine.ceiling


async def test_an_old_generation_is_refused_with_the_current_one(
    client: EngineClient, engine: FakeEngine
) -> None:
    engine.generation = 7
    await client.scrape(target(engine), 2)
    answer = await client.put(target(engine), Setpoint(16), 7, 120)
    assert answer == Refused(409, "StaleGeneration", "StaleGeneration", 7)


async def test_another_operators_key_changes_nothing(client: EngineClient, engine: FakeEngine) -> None:
    engine.public_keys = KeyRing.new().public()
    await client.scrape(target(engine), 2)
    answer = await client.put(target(engine), Setpoint(16), 1, 120)
    assert isinstance(answer, Refused)
    assert answer.reason == "UnknownKey"
    assert engine.cap == engine.ceiling


async def test_a_token_for_one_pod_is_worthless_at_another(client: EngineClient, engine: FakeEngine) -> None:
    engine.pod_uid = "another"
    await client.scrape(Target("pod-0", "uid-0", 0, engine.host, engine.port), 2)
    answer = await client.put(Target("pod-0", "uid-0", 0, engine.host, engine.port), Setpoint(16), 1, 120)
    assert isinstance(answer, Refused)
    assert answer.reason == "WrongAudience"


async def test_a_change_is_for_one_start_of_the_engine(client: EngineClient, engine: FakeEngine) -> None:
    """The pod's uid outlives its container, and generations begin at 0 again: the start is signed, too."""
    answer = await client.put(target(engine), Setpoint(16), 1, 120)
    assert isinstance(answer, Refused)
    assert answer.reason == "NotScraped"
    await client.scrape(target(engine), 2)
    engine.boot_id = "boot-1"
    answer = await client.put(target(engine), Setpoint(16), 1, 120)
    assert isinstance(answer, Refused)
    assert (answer.status, answer.reason, engine.puts) == (401, "WrongBoot", [])
    answer = await client.put(target(engine, restarts=1), Setpoint(16), 1, 120)
    assert isinstance(answer, Refused)
    assert answer.reason == "NotScraped"
    await client.scrape(target(engine, restarts=1), 2)
    assert isinstance(await client.put(target(engine, restarts=1), Setpoint(16), 1, 120), Applied)
    client.forget(engine.pod_uid)
    answer = await client.put(target(engine, restarts=1), Setpoint(16), 2, 120)
    assert isinstance(answer, Refused)


async def test_a_namesake_in_another_namespace_is_another_pod(
    client: EngineClient, engine: FakeEngine
) -> None:
    other = replace(target(engine), uid="uid-of-the-other")
    await client.scrape(target(engine), 2)
    answer = await client.put(other, Setpoint(16), 1, 120)
    assert isinstance(answer, Refused)
    assert answer.reason == "NotScraped"
    client.forget(other.uid)
    assert isinstance(await client.put(target(engine), Setpoint(16), 1, 120), Applied)


async def test_without_a_key_nothing_is_sent(engine: FakeEngine) -> None:
    async with EngineClient(key=lambda: None, monotonic=time.monotonic, wall=time.time) as keyless:
        answer = await keyless.put(target(engine), Setpoint(16), 1, 120)
    assert isinstance(answer, Refused)
    assert answer.reason == "NoSigningKey"


async def test_a_change_that_is_not_answered_is_unreachable(client: EngineClient, engine: FakeEngine) -> None:
    await client.scrape(target(engine), 2)
    engine.fault = "put-hang"
    answer = await client.put(target(engine), Setpoint(16), 1, 120, deadline_s=0.2)
    assert isinstance(answer, Unreachable)


async def test_an_unwritable_tuner_says_why(client: EngineClient, engine: FakeEngine) -> None:
    engine.fault = "unwritable"
    sample = await client.scrape(target(engine), 2)
    assert isinstance(sample, Sample)
    assert capability(sample) == Unavailable("NoPublicKeys", "no key is mounted")


async def test_an_engine_with_tls_is_read_and_changed_whatever_its_certificate_says(
    client: EngineClient, sealed: FakeEngine
) -> None:
    sample = await client.scrape(target(sealed), 2)
    assert isinstance(sample, Sample), sample
    assert capability(sample) == Live(budget=True)
    answer = await client.put(target(sealed), Setpoint(16), 1, 120)
    assert isinstance(answer, Applied), answer
    assert sealed.cap == 16
    sealed.fault = "404"
    plain = await client.scrape(target(sealed), 2)
    assert isinstance(plain, Sample), plain
    assert plain.source is Source.METRICS


async def test_one_asked_the_wrong_way_is_a_failure(
    client: EngineClient, engine: FakeEngine, sealed: FakeEngine
) -> None:
    for asked in (replace(target(engine), tls=True), replace(target(sealed), tls=False)):
        found = await client.scrape(asked, 2)
        assert isinstance(found, Failure), found
        assert found.why is Unusable.UNREACHABLE


@pytest.mark.parametrize(
    ("host", "tls", "url"),
    [
        ("10.0.0.7", False, "http://10.0.0.7:8000/metrics"),
        ("10.0.0.7", True, "https://10.0.0.7:8000/metrics"),
        ("fd00::7", True, "https://[fd00::7]:8000/metrics"),
    ],
)
def test_a_pod_is_asked_by_its_address(host: str, tls: bool, url: str) -> None:
    assert Target("pod-0", "uid", 0, host, 8000, tls).url("/metrics") == url
