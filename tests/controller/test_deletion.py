"""A LlamaServer that is deleted at whatever point, and made anew under its name, against a real API server.

Nothing collects garbage here: the test takes away what the first one leaves, as late as it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fakes import FakeEngine
from llamaserver.api.names import child_labels
from llamaserver.controller import Operator
from workbench import Cluster, Object, condition, eventually, serving

CHILDREN = (
    ("apps/v1", "Deployment", "chat"),
    ("v1", "Service", "chat"),
    ("v1", "ConfigMap", "chat-tuner-keys"),
)
NOT_READY = {"image": "none", "imageID": "", "ready": False, "restartCount": 0}
FIXED = {"scaling": {"mode": "Fixed"}, "replicas": 2}
Phase = Callable[[Cluster, FakeEngine], Awaitable[None]]


async def says(cluster: Cluster, type_: str, reason: str) -> None:
    """Wait for the reason of a condition."""
    await eventually(
        lambda: cluster.get(cluster.server()), lambda it: condition(it, type_).get("reason") == reason
    )


async def starting(cluster: Cluster, engine: FakeEngine) -> None:
    await cluster.apply(cluster.server())
    await says(cluster, "Ready", "RollingOut")


async def with_pod(cluster: Cluster, engine: FakeEngine, status: Object) -> None:
    """One pod that does not serve, and a Deployment that has made it."""
    await cluster.apply(cluster.server())
    await eventually(lambda: cluster.get(cluster.deployment()))
    made = await cluster.pod("chat-0", engine)
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": made["status"]["startTime"]}
    waiting = {"name": "vllm", **NOT_READY, "state": {"waiting": {"reason": "PodInitializing"}}}
    common = {"phase": "Pending", "conditions": [unready], "containerStatuses": [waiting]}
    await cluster.merge(made, {"status": {**common, **status}}, "status")
    await cluster.rolled_out()
    none = {"readyReplicas": 0, "availableReplicas": 0}
    await cluster.merge(cluster.deployment(), {"status": none}, "status")


async def downloading(cluster: Cluster, engine: FakeEngine) -> None:
    engine.download = {"bytes": 1, "total": 4, "bytes_per_second": 1, "silent_s": 0.5}
    at_work = {"name": "model-download", **NOT_READY, "state": {"running": {}}}
    await with_pod(cluster, engine, {"initContainerStatuses": [at_work]})
    await says(cluster, "Ready", "Downloading")


async def unschedulable(cluster: Cluster, engine: FakeEngine) -> None:
    nowhere = {"reason": "Unschedulable", "message": "0/3 nodes are available"}
    await with_pod(cluster, engine, {"conditions": [{"type": "PodScheduled", "status": "False", **nowhere}]})
    await says(cluster, "Ready", "Unschedulable")


async def rolling_out(cluster: Cluster, engine: FakeEngine) -> None:
    await serving(cluster, engine)
    await cluster.merge(cluster.server(), {"spec": {"engine": {"maxNumSeqs": 32}}})
    await says(cluster, "Progressing", "RollingOut")


async def scaling_down(cluster: Cluster, engine: FakeEngine) -> None:
    """One of two pods does not tell its load, so that the step is held."""
    await serving(cluster, engine, **FIXED)
    await asyncio.to_thread(
        cluster.api.create_ready_pod, "chat-1", cluster.namespace, child_labels("chat"), "127.0.0.9"
    )
    await says(cluster, "MetricsAvailable", "SomePodsSilent")
    asked = await cluster.merge(cluster.server(), {"spec": {"replicas": 1}})
    generation = asked["metadata"]["generation"]
    await eventually(
        lambda: cluster.get(cluster.server()), lambda it: it["status"]["observedGeneration"] == generation
    )


async def stalled(cluster: Cluster, engine: FakeEngine) -> None:
    await serving(cluster, engine)
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    status = {"conditions": [late], "readyReplicas": 0, "availableReplicas": 0}
    await cluster.merge(cluster.deployment(), {"status": status}, "status")
    await says(cluster, "Stalled", "ProgressDeadlineExceeded")


PHASES: dict[str, Phase] = {
    phase.__name__: phase
    for phase in (starting, downloading, unschedulable, rolling_out, scaling_down, stalled)
}


@pytest.mark.parametrize("phase", PHASES)
async def test_who_goes_at_any_point_leaves_nothing_behind_and_the_next_of_the_name_begins_anew(
    cluster: Cluster, operator: Operator, engine: FakeEngine, phase: str
) -> None:
    await PHASES[phase](cluster, engine)
    await cluster.delete(cluster.server())
    await eventually(lambda: not operator.registry.known())
    assert await cluster.get(cluster.server()) is None, "something holds it back"
    left = await children(cluster)

    second = await cluster.apply(cluster.server())
    seen = await eventually(
        lambda: cluster.get(cluster.server()), lambda it: bool(condition(it, "Ready").get("message"))
    )
    assert "still being deleted" in condition(seen, "Ready")["message"]
    assert seen["status"].get("decisions") is None
    assert await children(cluster) == left, "the children of the one before are no longer its own"

    for child in (*CHILDREN, *(("v1", "Pod", f"chat-{number}") for number in range(2))):
        await cluster.delete(cluster.named(*child))
    made = await eventually(
        lambda: cluster.get(cluster.deployment()),
        lambda it: it is not None and owner(it) == second["metadata"]["uid"],
    )
    assert made["spec"]["template"]["spec"]["containers"][0]["args"]
    await says(cluster, "Accepted", "Valid")


def owner(obj: Object) -> str:
    return str(obj["metadata"]["ownerReferences"][0]["uid"])


async def children(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Name, resourceVersion and owner of each child that there is."""
    found = [await cluster.get(cluster.named(*child)) for child in CHILDREN]
    return [
        (obj["metadata"]["name"], obj["metadata"]["resourceVersion"], owner(obj))
        for obj in found
        if obj is not None
    ]
