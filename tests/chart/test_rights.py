"""The operator with the rights that the chart gives, and no others, against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes import FakeEngine
from llamaserver.api.names import child_labels
from llamaserver.cluster import AioKube, LeaseTimes, load
from llamaserver.controller import Options
from workbench import Cluster, eventually, free_address, running, serving

Object = dict[str, Any]


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(host=free_address(), port=8000) as made:
        yield made


@pytest.mark.parametrize("scope", ["cluster-wide", "namespaced"])
async def test_a_whole_day_needs_no_other_right(
    api_server: Any,
    namespace: str,
    render: Callable[..., list[Object]],
    tmp_path: Path,
    engine: FakeEngine,
    scope: str,
) -> None:
    own = await asyncio.to_thread(api_server.create_namespace)
    named = scope == "namespaced"
    values: Object = {"watchNamespaces": [namespace]} if named else {}
    kinds = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    granted = [
        obj for obj in render(namespace=own, fullnameOverride=f"op-{own}", **values) if obj["kind"] in kinds
    ]
    for obj in granted:
        answer = await asyncio.to_thread(api_server.apply, obj)
        assert answer.status in (200, 201), answer.message
    kubeconfig = await asyncio.to_thread(_kubeconfig, api_server, own, f"op-{own}", tmp_path)
    options = Options(
        namespace=own,
        watch_namespaces=(namespace,) if named else (),
        identity="op",
        kubeconfig=kubeconfig,
        lease_name=f"op-{own}",
        signing_secret=f"op-{own}-signing-key",
        tuner_image="llamaserver/tuner:test",
        lease_times=LeaseTimes(duration_s=30, renew_deadline_s=20, retry_s=0.5),
        tick_seconds=0.3,
        http_host="127.0.0.1",
        http_port=0,
    )
    cluster = Cluster(api_server, namespace)
    async with running(replace(options, lease_seconds=30)) as operator:
        await serving(
            cluster, engine, slo={"interTokenLatency": {"target": "10ms"}}, scaling={"maxReplicas": 2}
        )
        engine.running, engine.tokens_per_s, engine.itl_s = 40, 1600.0, 0.025
        await eventually(lambda: engine.cap < 40)
        await eventually(lambda: cluster.events("Retuned"))
        budget = cluster.named("policy/v1", "PodDisruptionBudget", "chat")
        await eventually(lambda: cluster.get(budget))
        # Fewer replicas: the pod that is to go is marked, and the budget that is no longer wanted goes.
        await cluster.merge(cluster.server(), {"spec": {"scaling": {"mode": "Fixed"}, "replicas": 2}})
        await eventually(lambda: cluster.get(cluster.deployment()), lambda it: it["spec"]["replicas"] == 2)
        starting = cluster.named(
            "v1", "Pod", "chat-1", spec={"containers": [{"name": "vllm", "image": "none"}]}
        )
        starting["metadata"]["labels"] = child_labels("chat")
        await cluster.apply(starting)
        await cluster.merge(cluster.server(), {"spec": {"replicas": 1}})
        await eventually(lambda: cluster.get(cluster.deployment()), lambda it: it["spec"]["replicas"] == 1)
        await eventually(lambda: cluster.get(budget), lambda it: it is None)
        pod = await cluster.get(starting)
        assert pod is not None
        assert pod["metadata"]["annotations"] == {"controller.kubernetes.io/pod-deletion-cost": "-1"}
        assert operator.canary.age() < 5, "the lease is seen through the watches"
        outcomes = {
            (sample.labels["verb"], sample.labels["resource"], sample.labels["outcome"])
            for metric in operator.metrics.api_calls.collect()
            for sample in metric.samples
        }
        assert not [call for call in outcomes if call[2] == "Forbidden"]
    # The pod of an engine that hangs is evicted; on no day but one when an engine hangs.
    async with AioKube(await load(kubeconfig)) as kube:
        await kube.evict(namespace, "chat-1", pod["metadata"]["uid"])
    assert await cluster.get(starting) is None


def _kubeconfig(api_server: Any, namespace: str, account: str, folder: Path) -> str:
    """A kubeconfig with a token of the service account, as the kubelet would mount one."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    answer = api_server.request("POST", path, body)
    assert answer.status == 201, answer.message
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer.body["status"]["token"]}
    file = folder / "limited"
    file.write_text(yaml.safe_dump(config))
    return str(file)
