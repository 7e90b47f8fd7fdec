"""Who owns the number of replicas, by scaling mode, against a real API server."""

from __future__ import annotations

import asyncio

from fakes import FakeEngine
from llamaserver.controller import Operator, Options
from workbench import Cluster, Object, condition, eventually, running, serving


def scaling(mode: str, **more: int) -> Object:
    return {"scaling": {"mode": mode, **more}}


async def replicas(cluster: Cluster) -> int | None:
    live = await cluster.get(cluster.deployment())
    return None if live is None else live["spec"]["replicas"]


async def scale(cluster: Cluster, obj: Object, count: int) -> None:
    """What `kubectl scale` and an autoscaler do."""
    await cluster.merge(obj, {"spec": {"replicas": count}}, "scale")


async def test_fixed_follows_the_scale_subresource(cluster: Cluster, operator: Operator) -> None:
    await cluster.apply(cluster.server(**scaling("Fixed")))
    await eventually(lambda: replicas(cluster), lambda count: count == 1)
    await scale(cluster, cluster.server(), 3)
    await eventually(lambda: replicas(cluster), lambda count: count == 3)
    # Somebody who scales the Deployment is put right.
    await scale(cluster, cluster.deployment(), 7)
    await asyncio.sleep(0.5)
    await eventually(lambda: replicas(cluster), lambda count: count == 3)


async def test_external_leaves_the_number_to_its_owner(cluster: Cluster, operator: Operator) -> None:
    await cluster.apply(cluster.server(**scaling("External")))
    await eventually(lambda: replicas(cluster), lambda count: count == 1)
    await scale(cluster, cluster.deployment(), 3)
    await cluster.merge(cluster.server(), {"spec": {"engine": {"maxNumSeqs": 32}}})
    live = await eventually(
        lambda: cluster.get(cluster.deployment()), lambda it: "32" in str(it["spec"]["template"])
    )
    assert live["spec"]["replicas"] == 3


async def test_external_follows_an_autoscaler_of_the_resource_itself(
    cluster: Cluster, operator: Operator
) -> None:
    await cluster.apply(cluster.server(**scaling("External")))
    await eventually(lambda: replicas(cluster), lambda count: count == 1)
    await scale(cluster, cluster.server(), 4)
    await eventually(lambda: replicas(cluster), lambda count: count == 4)


async def test_giving_the_number_up_does_not_shrink_the_fleet(cluster: Cluster, operator: Operator) -> None:
    await cluster.apply(cluster.server(**scaling("Auto", minReplicas=4, maxReplicas=8)))
    await eventually(lambda: replicas(cluster), lambda count: count == 4)
    await cluster.merge(
        cluster.server(),
        {"spec": {"scaling": {"mode": "External", "minReplicas": None, "maxReplicas": None}}},
    )
    await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: it["status"].get("effective", {}).get("scalingMode") == "External",
    )
    assert await replicas(cluster) == 4


async def test_auto_keeps_its_bounds_and_its_number_over_a_restart(
    cluster: Cluster, options: Options
) -> None:
    async with running(options):
        await cluster.apply(cluster.server(**scaling("Auto", minReplicas=2, maxReplicas=6)))
        await eventually(lambda: replicas(cluster), lambda count: count == 2)
        await cluster.merge(cluster.server(), {"spec": {"scaling": {"minReplicas": 3}}})
        await eventually(lambda: replicas(cluster), lambda count: count == 3)
    await scale(cluster, cluster.deployment(), 5)
    async with running(options) as again:
        await eventually(lambda: again.registry.known())
        await asyncio.sleep(1)
        assert await replicas(cluster) == 5, "what runs is kept until something is decided"


async def test_suspended_keeps_what_runs_and_changes_no_engine(
    cluster: Cluster, operator: Operator, engine: FakeEngine
) -> None:
    await serving(cluster, engine, suspend=True, slo={"interTokenLatency": {"target": "10ms"}})
    engine.running, engine.tokens_per_s, engine.itl_s = 40, 1600.0, 0.025
    seen = await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: it["status"].get("observed", {}).get("running") == 40,
    )
    assert condition(seen, "Tuned")["reason"] == "Suspended"
    assert engine.puts == []


async def test_recommend_changes_no_engine(cluster: Cluster, operator: Operator, engine: FakeEngine) -> None:
    seen = await serving(
        cluster, engine, tuning={"mode": "Recommend"}, slo={"interTokenLatency": {"target": "10ms"}}
    )
    assert condition(seen, "Tuned")["reason"] == "Recommending"
    engine.running, engine.tokens_per_s, engine.itl_s = 40, 1600.0, 0.025
    await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: it["status"].get("observed", {}).get("running") == 40,
    )
    assert engine.puts == []
