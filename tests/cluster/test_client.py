"""The client against a real API server: apply, status, conflicts, lists, the traps of server-side apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llamaserver.cluster import AioKube, ApiError, ConflictError, UnavailableError
from llamaserver.cluster.kinds import (
    CONFIG_MAP,
    LEASE,
    LLAMASERVER,
    POD_DISRUPTION_BUDGET,
    SECRET,
    SERVICE,
    Object,
)


def config_map(namespace: str, name: str = "keys", **data: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": {"app": "test"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def llamaserver(namespace: str) -> Object:
    return {
        "apiVersion": "llamaserver.dev/v1alpha1",
        "kind": "LlamaServer",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"model": {"uri": "hf://org/model"}, "engine": {"image": "vllm:v0.32.0"}},
    }


async def test_what_is_not_there_is_none(kube: AioKube, namespace: str) -> None:
    assert await kube.get(CONFIG_MAP, namespace, "nothing") is None


async def test_apply_makes_changes_and_drops_fields(kube: AioKube, namespace: str) -> None:
    await kube.apply(config_map(namespace, a="1", b="2"))
    await kube.apply(config_map(namespace, a="3"))
    live = await kube.get(CONFIG_MAP, namespace, "keys")
    assert live is not None
    assert live["data"] == {"a": "3"}


async def test_applying_the_same_again_changes_nothing(kube: AioKube, namespace: str) -> None:
    first = await kube.apply(config_map(namespace, a="1"))
    again = await kube.apply(config_map(namespace, a="1"))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_apply_leaves_what_others_own(kube: AioKube, namespace: str, api_server: Any) -> None:
    await kube.apply(config_map(namespace, a="1"))
    api_server.apply({**config_map(namespace), "data": {"theirs": "yes"}}, manager="somebody")
    await kube.apply(config_map(namespace, a="2"))
    live = await kube.get(CONFIG_MAP, namespace, "keys")
    assert live is not None
    assert live["data"] == {"a": "2", "theirs": "yes"}


async def test_a_uid_binds_an_apply_to_one_incarnation(kube: AioKube, namespace: str) -> None:
    obj = config_map(namespace, a="1")
    obj["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111"
    with pytest.raises(ConflictError):
        await kube.apply(obj)
    assert await kube.get(CONFIG_MAP, namespace, "keys") is None


def service(namespace: str) -> Object:
    metadata = {"name": "keys", "namespace": namespace}
    spec = {"ports": [{"port": 80}], "selector": {"a": "b"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def deployment(namespace: str) -> Object:
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": pod}
    metadata = {"name": "keys", "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def budget(namespace: str) -> Object:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}}
    metadata = {"name": "keys", "namespace": namespace}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("child", [config_map, service, deployment, budget], ids=lambda it: it.__name__)
async def test_making_touches_nothing_of_that_name(
    child: Callable[[str], Object], kube: AioKube, namespace: str, api_server: Any
) -> None:
    wanted = child(namespace)
    wanted["metadata"]["labels"] = {"ours": "yes"}
    theirs = api_server.create(child(namespace)).body
    with pytest.raises(ConflictError):
        await kube.create(wanted)
    assert api_server.get(theirs).body == theirs
    api_server.request("DELETE", api_server.path(theirs))
    made = await kube.create(wanted)
    assert made["metadata"]["labels"] == {"ours": "yes"}
    with pytest.raises(ConflictError):
        await kube.create(wanted)


async def test_what_was_made_is_changed_as_what_was_applied(kube: AioKube, namespace: str) -> None:
    made = await kube.create(config_map(namespace, a="1", b="2"))
    (entry,) = made["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("llamaserver-operator", "Apply")
    changed = await kube.apply(config_map(namespace, a="1"))
    assert changed["data"] == {"a": "1"}, "a field that is no longer wanted goes"
    again = await kube.apply(config_map(namespace, a="1"))
    assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_status_is_written_without_touching_the_spec(
    kube: AioKube, namespace: str, api_server: Any
) -> None:
    made = api_server.apply(llamaserver(namespace)).body
    status = {"observedGeneration": 1, "replicas": 2}
    written = await kube.apply_status(
        {**llamaserver(namespace), "spec": None, "status": status} | {"spec": {}}
    )
    assert written["status"] == status
    assert written["spec"] == made["spec"]
    assert written["metadata"]["generation"] == made["metadata"]["generation"]


async def test_deleting_spares_another_incarnation(kube: AioKube, namespace: str, api_server: Any) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}},
    }
    made = await kube.apply(budget)
    await kube.delete(POD_DISRUPTION_BUDGET, namespace, "chat", "11111111-1111-1111-1111-111111111111")
    assert await kube.get(POD_DISRUPTION_BUDGET, namespace, "chat") is not None
    await kube.delete(POD_DISRUPTION_BUDGET, namespace, "chat", made["metadata"]["uid"])
    assert await kube.get(POD_DISRUPTION_BUDGET, namespace, "chat") is None
    await kube.delete(POD_DISRUPTION_BUDGET, namespace, "chat", made["metadata"]["uid"])


async def test_evicting_spares_another_incarnation_and_asks_the_budgets(
    kube: AioKube, namespace: str, api_server: Any
) -> None:
    uid = api_server.create_ready_pod("chat-0", namespace, {"a": "b"}, "10.0.0.1")["metadata"]["uid"]

    def there() -> bool:
        return bool(api_server.request("GET", f"/api/v1/namespaces/{namespace}/pods/chat-0").status == 200)

    await kube.evict(namespace, "chat-0", "11111111-1111-1111-1111-111111111111")
    assert there()
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"a": "b"}}},
    }
    made = await kube.apply(budget)
    with pytest.raises(UnavailableError, match="disruption budget"):
        await kube.evict(namespace, "chat-0", uid)
    assert there()
    await kube.delete(POD_DISRUPTION_BUDGET, namespace, "chat", made["metadata"]["uid"])
    await kube.evict(namespace, "chat-0", uid)
    assert not there()
    await kube.evict(namespace, "chat-0", uid)


async def test_lists_are_read_to_the_end(
    kube: AioKube, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llamaserver.cluster.client._PAGE", 2)
    for number in range(5):
        await kube.apply(config_map(namespace, f"keys-{number}"))
    listed = await kube.list(CONFIG_MAP, namespace, "app=test")
    assert [obj["metadata"]["name"] for obj in listed] == [f"keys-{number}" for number in range(5)]
    assert {obj["kind"] for obj in listed} == {"ConfigMap"}


async def test_a_lease_is_made_by_one_of_two(kube: AioKube, namespace: str) -> None:
    lease = {
        "apiVersion": LEASE.api_version,
        "kind": "Lease",
        "metadata": {"name": "leader", "namespace": namespace},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 30},
    }
    made = await kube.replace(lease)
    with pytest.raises(ApiError):
        await kube.replace({**lease, "spec": {"holderIdentity": "b"}})
    stale = {**lease, "metadata": {**lease["metadata"], "resourceVersion": "1"}}
    with pytest.raises(ConflictError):
        await kube.replace(stale)
    renewed = await kube.replace({**made, "spec": {**made["spec"], "leaseDurationSeconds": 31}})
    assert renewed["spec"]["holderIdentity"] == "a"


async def test_a_refusal_says_why(kube: AioKube, namespace: str) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"ports": [{"port": 99999}]},
    }
    with pytest.raises(ApiError, match="65535") as refused:
        await kube.apply(service)
    assert refused.value.status == 422


async def test_a_call_outside_the_table_of_rights_is_not_even_tried(kube: AioKube, namespace: str) -> None:
    with pytest.raises(PermissionError, match="delete secrets"):
        await kube.delete(SECRET, namespace, "anything", "uid")
    with pytest.raises(PermissionError, match="list secrets"):
        await kube.list(SECRET, namespace)
    with pytest.raises(PermissionError, match="update llamaservers"):
        await kube.replace(llamaserver(namespace))
    assert await kube.list(SERVICE, namespace) == []
    assert await kube.list(LLAMASERVER, namespace) == []
