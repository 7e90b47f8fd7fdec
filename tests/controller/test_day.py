"""A day in the life of a LlamaServer, with the operator in this process and a real API server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fakes import FakeEngine
from llamaserver.controller import Operator, Options
from workbench import Cluster, condition, eventually, running, serving


async def test_a_server_becomes_its_children(cluster: Cluster, operator: Operator) -> None:
    server = await cluster.apply(cluster.server())
    deployment = await eventually(lambda: cluster.get(cluster.deployment()))
    service = await eventually(lambda: cluster.get(cluster.named("v1", "Service", "chat")))
    keys = await eventually(lambda: cluster.get(cluster.named("v1", "ConfigMap", "chat-tuner-keys")))
    for child in (deployment, service, keys):
        (owner,) = child["metadata"]["ownerReferences"]
        # With these the garbage collector takes the children when the LlamaServer goes; no finalizer is
        # needed.
        assert owner["uid"] == server["metadata"]["uid"]
        assert owner["controller"] is True
        assert owner["blockOwnerDeletion"] is True
    assert len(keys["data"]) == 1
    assert "PRIVATE" not in next(iter(keys["data"].values()))


async def test_status_follows_the_rollout(cluster: Cluster, operator: Operator, engine: FakeEngine) -> None:
    await cluster.apply(cluster.server())
    seen = await eventually(lambda: cluster.get(cluster.server()), lambda it: condition(it, "Accepted"))
    assert condition(seen, "Accepted")["status"] == "True"
    assert condition(seen, "Ready")["status"] == "False"
    await cluster.pod("chat-0", engine)
    await cluster.rolled_out()
    seen = await eventually(
        lambda: cluster.get(cluster.server()), lambda it: condition(it, "Ready").get("status") == "True"
    )
    assert seen["status"]["observedGeneration"] == seen["metadata"]["generation"]
    assert seen["status"]["readyReplicas"] == 1
    assert condition(seen, "Progressing")["status"] == "False"
    assert condition(seen, "Stalled")["status"] == "False"
    assert seen["status"]["selector"].count("llamaserver.dev/name=chat") == 1


async def test_a_busy_engine_is_retuned_by_a_signed_change(
    cluster: Cluster, operator: Operator, engine: FakeEngine
) -> None:
    await serving(cluster, engine, slo={"interTokenLatency": {"target": "10ms"}})
    engine.running, engine.tokens_per_s, engine.itl_s = 40, 1600.0, 0.025
    await eventually(lambda: engine.cap < 40)
    seen = await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: (
            it["status"].get("tuning", {}).get("numSeqs") == engine.cap
            and it["status"].get("observed", {}).get("running") == 40
        ),
    )
    status = seen["status"]
    assert status["tuning"]["actuator"] == "Live"
    assert status["tuning"]["ceiling"] == 64
    assert condition(seen, "Tuned")["status"] == "True"
    assert status["observed"]["running"] == 40
    assert status["decisions"][0]["action"] == "NumSeqs"
    assert await eventually(lambda: cluster.events("Retuned"))
    labels = {"namespace": cluster.namespace, "name": "chat"}
    assert operator.metrics.registry.get_sample_value("llamaserver_requests_running", labels) == 40
    assert operator.metrics.registry.get_sample_value("llamaserver_requests_waiting", labels) == 0


def timed_writes(operator: Operator, kind: str) -> float:
    """How many writes of a kind the operator has timed."""
    count = operator.metrics.registry.get_sample_value("llamaserver_retune_seconds_count", {"kind": kind})
    return count or 0.0


async def test_leases_are_renewed_and_no_more(cluster: Cluster, options: Options, engine: FakeEngine) -> None:
    async with running(replace(options, lease_seconds=5.0)) as operator:
        await serving(cluster, engine, slo={"interTokenLatency": {"target": "10ms"}})
        engine.running, engine.tokens_per_s, engine.itl_s = 40, 1600.0, 0.025
        await eventually(lambda: engine.puts)
        engine.running, engine.tokens_per_s = 0, 0.0
        await asyncio.sleep(1)
        settled, cap = len(engine.puts), engine.cap
        changes = timed_writes(operator, "change")
        assert changes
        await eventually(lambda: len(engine.puts) > settled and timed_writes(operator, "renewal"))
        assert engine.cap == cap
        assert timed_writes(operator, "change") == changes
    assert engine.lease_ends is not None


async def test_users_objects_bear_no_trace(cluster: Cluster, operator: Operator, engine: FakeEngine) -> None:
    await serving(cluster, engine)
    seen = await cluster.get(cluster.server())
    assert seen is not None
    assert "finalizers" not in seen["metadata"]
    assert "annotations" not in seen["metadata"]
    managers = {(entry["manager"], entry.get("subresource")) for entry in seen["metadata"]["managedFields"]}
    assert managers == {("test", None), ("llamaserver-operator", "status")}


async def test_a_restart_writes_nothing(cluster: Cluster, options: Options, engine: FakeEngine) -> None:
    async with running(options):
        await serving(cluster, engine)
        await asyncio.sleep(1)
    before = await _versions(cluster)
    async with running(options) as again:
        await eventually(lambda: engine.scrapes and again.metrics.ticks.labels("ok")._value.get() > 5)
        written = {
            labels["resource"]: sample.value
            for metric in again.metrics.api_calls.collect()
            for sample in metric.samples
            if (labels := sample.labels) and labels["verb"] == "patch" and sample.name.endswith("_total")
        }
    assert written == {}
    assert await _versions(cluster) == before


async def test_drift_is_corrected(cluster: Cluster, operator: Operator, engine: FakeEngine) -> None:
    await serving(cluster, engine)
    service = cluster.named("v1", "Service", "chat")
    await cluster.merge(service, {"spec": {"selector": {"llamaserver.dev/name": "somebody-else"}}})
    await eventually(
        lambda: cluster.get(service), lambda it: it["spec"]["selector"]["llamaserver.dev/name"] == "chat"
    )


async def test_what_others_add_stays(cluster: Cluster, operator: Operator, engine: FakeEngine) -> None:
    await serving(cluster, engine)
    await cluster.merge(cluster.deployment(), {"metadata": {"labels": {"team": "search"}}})
    await cluster.merge(cluster.server(), {"spec": {"engine": {"maxNumSeqs": 32}}})
    live = await eventually(
        lambda: cluster.get(cluster.deployment()), lambda it: "32" in str(it["spec"]["template"])
    )
    assert live["metadata"]["labels"]["team"] == "search"


POD_TEMPLATE = {
    "metadata": {"labels": {"app": "theirs"}},
    "spec": {"containers": [{"name": "web", "image": "theirs:1"}]},
}
FOREIGN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Service": ("v1", "chat", {"spec": {"ports": [{"port": 1234}]}}),
    "ConfigMap": ("v1", "chat-tuner-keys", {"data": {"theirs": "kept"}}),
    "Deployment": (
        "apps/v1",
        "chat",
        {"spec": {"replicas": 3, "selector": {"matchLabels": {"app": "theirs"}}, "template": POD_TEMPLATE}},
    ),
    "PodDisruptionBudget": (
        "policy/v1",
        "chat",
        {"spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "theirs"}}}},
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_name_that_is_taken_is_left_alone(kind: str, cluster: Cluster, operator: Operator) -> None:
    version, name, content = FOREIGN[kind]
    foreign = await cluster.apply(cluster.named(version, kind, name, **content))
    # With more than one replica it wants a child of each kind.
    server = cluster.server(scaling={"minReplicas": 2})
    await cluster.apply(server)
    seen = await eventually(
        lambda: cluster.get(server), lambda it: condition(it, "Accepted").get("status") == "False"
    )
    said = condition(seen, "Accepted")
    assert said["reason"] == "Conflict"
    assert f"a {kind} named {name} exists and is not this LlamaServer's: rename" in said["message"]
    await cluster.merge(server, {"spec": {"suspend": True}})
    await eventually(
        lambda: cluster.get(server), lambda it: condition(it, "Accepted").get("observedGeneration") == 2
    )
    await cluster.delete(server)
    await eventually(lambda: not operator.registry.known())
    assert await cluster.get(foreign) == foreign


async def test_two_servers_of_one_name_for_clients_are_two(
    cluster: Cluster, operator: Operator, engines: list[FakeEngine]
) -> None:
    """Clients tell models by their served name, Kubernetes and routers by the LlamaServer's."""
    model = {"uri": "hf://org/model", "servedNames": ["llama"]}
    objective = {"interTokenLatency": {"target": "10ms"}}
    busy, idle = engines[:2]
    await serving(cluster, busy, "blue", model=model, slo=objective)
    await serving(cluster, idle, "green", model=model, slo=objective)
    for name in ("blue", "green"):
        for kind, version in (("Deployment", "apps/v1"), ("Service", "v1")):
            live = await cluster.get(cluster.named(version, kind, name))
            assert live is not None
            selector = live["spec"]["selector"]
            assert selector.get("matchLabels", selector)["llamaserver.dev/name"] == name

    busy.running, busy.tokens_per_s, busy.itl_s = 40, 1600.0, 0.025
    blue = await eventually(
        lambda: cluster.get(cluster.server("blue")),
        lambda it: it["status"].get("observed", {}).get("running") == 40,
    )
    green = await cluster.get(cluster.server("green"))
    assert green is not None
    assert not green["status"].get("observed", {}).get("running")
    for name, seen in (("blue", blue), ("green", green)):
        assert [pod["name"] for pod in seen["status"]["tuning"]["pods"]] == [f"{name}-0"]
        assert {one["pod"] for one in seen["status"].get("decisions", ()) if "pod" in one} <= {f"{name}-0"}

    before = await cluster.get(cluster.deployment("green"))
    await cluster.delete(cluster.server("blue"))
    await eventually(lambda: len(operator.registry.known()) == 1)
    assert await cluster.get(cluster.deployment("green")) == before
    seen = await cluster.get(cluster.server("green"))
    assert condition(seen, "Ready")["status"] == "True"


async def test_a_deleted_server_is_forgotten(
    cluster: Cluster, operator: Operator, engine: FakeEngine
) -> None:
    await serving(cluster, engine)
    await cluster.delete(cluster.server())
    await eventually(lambda: not operator.registry.known())
    scrapes = engine.scrapes
    await asyncio.sleep(1)
    assert engine.scrapes == scrapes
    assert f'namespace="{cluster.namespace}"' not in operator.metrics.exposition().decode()


async def _versions(cluster: Cluster) -> dict[str, str]:
    objects = [
        cluster.server(),
        cluster.deployment(),
        cluster.named("v1", "Service", "chat"),
        cluster.named("v1", "ConfigMap", "chat-tuner-keys"),
        cluster.named("v1", "Pod", "chat-0"),
    ]
    live = [await cluster.get(obj) for obj in objects]
    return {obj["kind"]: obj["metadata"]["resourceVersion"] for obj in live if obj is not None}
