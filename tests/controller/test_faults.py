"""What goes wrong in a cluster, and what must go on all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fakes import FakeEngine
from llamaserver.controller import Operator, Options
from workbench import Cluster, Proxy, condition, eventually, running, serving


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    url = urlsplit(cluster.api.url)
    assert url.hostname is not None and url.port is not None
    async with Proxy(url.hostname, url.port) as made:
        yield made


@pytest.fixture
def through(options: Options, proxy: Proxy, cluster: Cluster, tmp_path: Path) -> Options:
    """The operator's way to the API server leads through the proxy; the test's own does not."""
    return replace(options, kubeconfig=proxy.kubeconfig(cluster.api.kubeconfig, tmp_path), lease_seconds=5.0)


def busy(engine: FakeEngine) -> None:
    """More at once than a 10 ms objective allows: a cap is set, and its lease has to be renewed."""
    engine.running, engine.tokens_per_s, engine.itl_s = 40, 1600.0, 0.025


def applied(operator: Operator) -> float:
    """Changes that this operator has made to engines."""
    value: float = operator.metrics.retunes.labels("Applied")._value.get()
    return value


@pytest.mark.parametrize("fault", ["cut", "freeze"])
async def test_without_an_api_server_tuning_goes_on_and_status_catches_up(
    cluster: Cluster, through: Options, proxy: Proxy, engine: FakeEngine, fault: str
) -> None:
    async with running(through) as operator:
        await serving(cluster, engine, slo={"interTokenLatency": {"target": "10ms"}})
        busy(engine)
        await eventually(lambda: engine.cap < 40)
        if fault == "cut":
            await proxy.cut()
        else:
            proxy.freeze()
        await cluster.merge(cluster.server(), {"spec": {"tuning": {"numSeqs": {"min": 2}}}})
        await eventually(lambda: "llamaserver_is_leader 0.0" in operator.metrics.exposition().decode())
        before = len(engine.puts)
        await eventually(lambda: len(engine.puts) > before)
        assert engine.cap < engine.ceiling
        assert operator.probes.unhealthy() == "", "a restart would not bring the API server back"
        await proxy.restore()
        await eventually(
            lambda: cluster.get(cluster.server()),
            lambda it: it["status"]["observedGeneration"] == it["metadata"]["generation"],
        )


async def test_the_watches_come_back_by_themselves(
    cluster: Cluster, through: Options, proxy: Proxy, engine: FakeEngine
) -> None:
    async with running(through):
        await serving(cluster, engine)
        await proxy.cut()
        await asyncio.sleep(3)
        await proxy.restore()
        await cluster.apply(cluster.server("later"))
        await eventually(lambda: cluster.get(cluster.deployment("later")))


async def test_a_deletion_that_nobody_saw_is_noticed(
    cluster: Cluster, through: Options, proxy: Proxy, engine: FakeEngine
) -> None:
    async with running(through) as operator:
        await serving(cluster, engine)
        await cluster.apply(cluster.server("stays"))
        await eventually(lambda: len(operator.registry.known()) == 2)
        await proxy.cut()
        await cluster.delete(cluster.server())
        await asyncio.sleep(1)
        await proxy.restore()
        await eventually(lambda: sorted(key.name for key in operator.registry.known()) == ["stays"])


async def test_an_orderly_exit_hands_over_within_seconds(
    cluster: Cluster, options: Options, engine: FakeEngine
) -> None:
    async with running(options):
        async with running(replace(options, identity="another")) as first:
            pass
        async with running(replace(options, identity="second")) as standby:
            await serving(cluster, engine)
            assert standby.probes.unready() == "", "a standby is ready"
            assert standby.registry.known() == []
            told = standby.metrics.exposition().decode()
            assert "llamaserver_queue_oldest_age_seconds 0.0" in told, "a standby's queue does not grow"
            assert "llamaserver_queue_depth 0.0" in told
            assert "llamaserver_servers 1.0" in told
            del first


async def test_a_new_leader_takes_over_and_the_old_one_stops_changing_engines(
    cluster: Cluster, through: Options, options: Options, proxy: Proxy, engine: FakeEngine
) -> None:
    old = Operator(through)
    old_task = asyncio.create_task(old.run())
    try:
        await eventually(lambda: old.probes.unready() == "")
        await serving(cluster, engine, slo={"interTokenLatency": {"target": "10ms"}})
        busy(engine)
        await eventually(lambda: engine.cap < 40)
        async with running(replace(options, identity="new", lease_seconds=5.0)) as new:
            await proxy.cut()
            await eventually(lambda: new.registry.known())
            await eventually(lambda: applied(new) > 0)
            await asyncio.sleep(1)
            before = applied(old), applied(new)
            await eventually(lambda: applied(new) >= before[1] + 2)
            assert applied(old) == before[0]
            assert not old_task.done()
            await proxy.restore()
            assert await asyncio.wait_for(old_task, 30) == 1, "it has lost, and ends to start anew"
    finally:
        old.stop.set()
        await old_task


async def test_one_hung_engine_costs_the_others_nothing(
    cluster: Cluster, operator: Operator, engines: list[FakeEngine]
) -> None:
    well, hung, other = engines
    await serving(cluster, well, "well")
    await serving(cluster, hung, "ill")
    await serving(cluster, other, "other")
    hung.fault = "hang"
    await eventually(
        lambda: cluster.get(cluster.server("ill")),
        lambda it: condition(it, "MetricsAvailable").get("status") == "False",
    )
    before = well.scrapes, other.scrapes
    await asyncio.sleep(2)
    assert well.scrapes - before[0] >= 4
    assert other.scrapes - before[1] >= 4
    seen = await cluster.get(cluster.server("well"))
    assert condition(seen, "MetricsAvailable")["status"] == "True"
    ill = await cluster.get(cluster.server("ill"))
    assert condition(ill, "Ready")["status"] == "True", "Ready never depends on figures"


@pytest.mark.parametrize("fault", ["nan", "negative", "500", "empty"])
async def test_an_engine_that_lies_is_held_where_it_is(
    cluster: Cluster, operator: Operator, engine: FakeEngine, fault: str
) -> None:
    await serving(cluster, engine, slo={"interTokenLatency": {"target": "10ms"}})
    busy(engine)
    await eventually(lambda: engine.cap < 40)
    engine.fault = fault
    cap = engine.cap
    seen = await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: condition(it, "MetricsAvailable").get("status") == "False",
    )
    assert "chat-0" in condition(seen, "MetricsAvailable")["message"]
    await asyncio.sleep(2)
    assert engine.cap == cap


async def test_a_pod_that_is_ending_is_left_alone(
    cluster: Cluster, operator: Operator, engine: FakeEngine
) -> None:
    await serving(cluster, engine)
    pod = cluster.named("v1", "Pod", "chat-0")
    await cluster.merge(pod, {"metadata": {"finalizers": ["test/keep"]}})
    await cluster.delete(pod)
    seen = await eventually(
        lambda: cluster.get(cluster.server()), lambda it: it["status"]["readyReplicas"] == 0
    )
    assert seen["status"]["replicas"] == 0
    await asyncio.sleep(0.5)
    scrapes = engine.scrapes
    await asyncio.sleep(1)
    assert engine.scrapes == scrapes
    await cluster.merge(pod, {"metadata": {"finalizers": None}})


async def test_an_engine_that_knows_another_key_is_reported(
    cluster: Cluster, operator: Operator, engine: FakeEngine
) -> None:
    await serving(cluster, engine, slo={"interTokenLatency": {"target": "10ms"}})
    # The engine starts anew, with a key of somebody else mounted.
    engine.public_keys, engine.boot_id, engine.cap, engine.generation = {}, "boot-1", engine.ceiling, 0
    seen = await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: condition(it, "Tuned").get("status") == "False",
    )
    assert condition(seen, "Tuned")["reason"] == "RetuneFailed"
    assert "UnknownKey" in condition(seen, "Tuned")["message"]
