"""Probes say what was proven; metrics end with what they are about."""

from __future__ import annotations

import json
import logging
import socket

import aiohttp
import pytest

from llamaserver.telemetry import Canary, HealthServer, LoopLag, Metrics, Probes
from llamaserver.telemetry.logs import JsonFormatter, KeyLogger


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_canary_grows_only_while_the_api_answers_and_the_watches_do_not() -> None:
    clock = Clock()
    canary = Canary(clock)
    for clock.now in range(0, 40, 4):
        canary.contact()
        canary.seen()
    assert canary.age() == 0
    clock.now = 500.0
    assert canary.age() == 0, "the API server is gone: nothing is known against the watches"
    canary.contact()
    assert canary.age() == 0, "after an outage the watches need time to come back"
    for clock.now in range(504, 664, 4):
        canary.contact()
    assert canary.age() == 160
    canary.seen()
    assert canary.age() == 0


def test_a_stalled_loop_and_silent_watches_are_unhealthy_and_a_missing_api_is_not() -> None:
    clock = Clock()
    lag, canary = LoopLag(clock), Canary(clock)
    probes = Probes(lag, canary, synced=lambda: True)
    assert probes.unhealthy() == ""
    clock.now = 200.0
    assert "event loop" in probes.unhealthy()
    lag = LoopLag(clock)
    probes = Probes(lag, canary, synced=lambda: True)
    assert probes.unhealthy() == ""
    for clock.now in range(200, 400, 4):
        canary.contact()
    lag._due = clock.now
    assert probes.unhealthy() == "", "there are no watches yet"
    canary.seen()
    for clock.now in range(400, 530, 4):
        canary.contact()
    lag._due = clock.now
    assert "watches" in probes.unhealthy()


async def test_an_empty_host_is_every_address() -> None:
    clock = Clock()
    probes = Probes(LoopLag(clock), Canary(clock), synced=lambda: True)
    async with HealthServer(probes, Metrics(), host="", port=0) as server:
        assert server._runner is not None
        hosts = {address[0] for address in server._runner.addresses}
        assert "0.0.0.0" in hosts
        assert not socket.has_ipv6 or "::" in hosts


async def test_the_endpoints_answer_as_the_probes_judge() -> None:
    clock = Clock()
    synced = False
    metrics = Metrics()
    probes = Probes(LoopLag(clock), Canary(clock), synced=lambda: synced)
    async with (
        HealthServer(probes, metrics, host="127.0.0.1", port=0) as server,
        aiohttp.ClientSession() as session,
    ):

        async def ask(path: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{server.port}{path}") as response:
                return response.status, await response.text()

        assert (await ask("/healthz")) == (200, "ok\n")
        assert (await ask("/readyz"))[0] == 503
        synced = True
        assert (await ask("/readyz"))[0] == 200
        probes.stopping = True
        assert (await ask("/readyz")) == (503, "stopping\n")
        clock.now = 100.0
        assert (await ask("/healthz"))[0] == 503
        status, text = await ask("/metrics")
        assert status == 200
        assert "llamaserver_watch_canary_age_seconds 0.0" in text


def test_what_is_not_known_has_no_value_and_what_is_gone_has_no_series() -> None:
    metrics = Metrics()
    metrics.set_server(metrics.slo_met, "ns", "chat", 1.0)
    metrics.set_cause("ns", "chat", "Healthy")
    metrics.set_cause("ns", "chat", "AtCapacity")
    text = metrics.exposition().decode()
    assert 'llamaserver_slo_met{name="chat",namespace="ns"} 1.0' in text
    assert 'cause="AtCapacity"' in text
    assert 'cause="Healthy"' not in text
    metrics.set_server(metrics.slo_met, "ns", "chat", None)
    assert "llamaserver_slo_met{" not in metrics.exposition().decode()
    metrics.forget("ns", "chat")
    assert 'namespace="ns"' not in metrics.exposition().decode()


def test_a_log_line_is_one_json_object_with_its_key(caplog: pytest.LogCaptureFixture) -> None:
    log = KeyLogger(logging.getLogger("test"), "ns", "chat")
    with caplog.at_level("INFO"):
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("the tick %s", "failed", extra={"pod": "chat-0"})
    line = json.loads(JsonFormatter().format(caplog.records[0]))
    assert line["message"] == "ns/chat: the tick failed"
    assert (line["namespace"], line["server"], line["pod"], line["level"]) == (
        "ns",
        "chat",
        "chat-0",
        "error",
    )
    assert "ValueError: no" in line["exception"]
