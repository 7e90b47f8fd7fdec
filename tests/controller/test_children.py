"""What a LlamaServer's children cost the API server, and whose objects are never touched."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from llamaserver.cluster import ConflictError
from llamaserver.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    Kind,
    Object,
    kind_of,
)
from llamaserver.controller.queue import RetryLater
from reconciling import Bench

CHILDREN = {
    CONFIG_MAP: "chat-tuner-keys",
    SERVICE: "chat",
    DEPLOYMENT: "chat",
    POD_DISRUPTION_BUDGET: "chat",
}
SEVERAL = {"scaling": {"mode": "Auto", "minReplicas": 2, "maxReplicas": 8}}
"""With a disruption budget."""


@pytest.fixture
def bench() -> Bench:
    return Bench()


def foreign(kind: Kind, name: str) -> Object:
    """An object that somebody else has made; no watch of ours tells of it."""
    metadata = {"namespace": "ns", "name": name, "uid": "uid-of-a-stranger", "generation": 1}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "data": {"theirs": "1"}}


async def test_a_new_server_costs_one_call_a_child_and_one_for_its_status(bench: Bench) -> None:
    bench.declare(**SEVERAL)
    await bench.look()
    assert bench.api.calls == [
        ("create", "ConfigMap"),
        ("create", "Service"),
        ("create", "Deployment"),
        ("create", "PodDisruptionBudget"),
        ("apply", "status"),
    ]
    bench.api.calls.clear()
    await bench.look()
    assert bench.api.calls == []


async def test_another_spec_costs_a_look_and_a_write_of_what_differs(bench: Bench) -> None:
    bench.declare()
    await bench.look()
    bench.api.calls.clear()
    bench.declare(engine={"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 8})
    await bench.look()
    assert bench.api.calls == [("get", "Deployment"), ("apply", "Deployment"), ("apply", "status")]


@pytest.mark.parametrize(("kind", "name"), CHILDREN.items(), ids=lambda it: getattr(it, "kind", it))
async def test_an_object_of_somebody_else_is_looked_at_and_left_alone(
    bench: Bench, kind: Kind, name: str
) -> None:
    theirs = foreign(kind, name)
    bench.api.objects[kind, name] = copy.deepcopy(theirs)
    bench.declare(**SEVERAL)
    for _ in range(2):
        with pytest.raises(RetryLater):
            await bench.look()
        assert bench.api.objects[kind, name] == theirs
    said = bench.condition("Accepted")
    assert (said["status"], said["reason"]) == ("False", "Conflict")
    assert ("apply", kind.kind) not in bench.api.calls


async def test_no_engine_starts_beside_a_service_of_somebody_else(bench: Bench) -> None:
    bench.api.objects[SERVICE, "chat"] = foreign(SERVICE, "chat")
    bench.declare()
    with pytest.raises(RetryLater):
        await bench.look()
    assert (DEPLOYMENT, "chat") not in bench.api.objects


async def test_what_was_made_and_never_told_of_is_found_by_its_name(bench: Bench) -> None:
    """The answer to a write was lost, and no watch has told yet."""
    bench.declare()
    await bench.look()
    made = copy.deepcopy(bench.api.objects)
    for kind, name in CHILDREN.items():
        bench.cache.drop(kind, "ns", name)
    bench.api.calls.clear()
    await bench.look()
    assert bench.api.objects == made
    assert [call for call in bench.api.calls if call[0] == "apply"] == []


async def test_an_object_that_takes_the_place_of_ours_at_the_last_moment_is_left_alone(
    bench: Bench,
) -> None:
    bench.declare()
    await bench.look()
    theirs = foreign(DEPLOYMENT, "chat")
    read = bench.api.get

    async def swapped(*of: Any) -> Object | None:
        live: Object | None = await read(*of)
        if live is not None and kind_of(live) is DEPLOYMENT:
            bench.api.objects[DEPLOYMENT, "chat"] = copy.deepcopy(theirs)
        return live

    bench.api.get = swapped
    bench.declare(engine={"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 8})
    with pytest.raises(RetryLater):
        await bench.look()
    assert bench.api.objects[DEPLOYMENT, "chat"] == theirs
    assert bench.condition("Stalled")["status"] == "False", "it is looked at once more"
    bench.api.get = read
    with pytest.raises(RetryLater):
        await bench.look()
    assert bench.condition("Accepted")["reason"] == "Conflict"
    assert bench.api.objects[DEPLOYMENT, "chat"] == theirs


async def test_a_conflict_that_is_not_about_the_name_is_told_in_the_api_servers_words(bench: Bench) -> None:
    said = 'Operation cannot be fulfilled on resourcequotas "team": the object has been modified'
    bench.api.refuses_creation[SERVICE] = ConflictError(409, "Conflict", said)
    bench.declare()
    with pytest.raises(RetryLater):
        await bench.look()
    assert bench.condition("Ready")["message"] == said
    assert bench.condition("Stalled")["status"] == "False"
    del bench.api.refuses_creation[SERVICE]
    await bench.look()
    assert (DEPLOYMENT, "chat") in bench.api.objects


async def test_while_others_wait_for_their_deployments_a_new_status_waits(bench: Bench) -> None:
    others = SimpleNamespace(depth=lambda: 3)
    bench.reconciler.queue = others  # type: ignore[assignment]
    bench.declare()
    again = await bench.look()
    assert (DEPLOYMENT, "chat") in bench.api.objects
    assert bench.api.statuses == []
    assert again is not None
    assert again <= 1.0
    await bench.look()
    assert bench.condition("Accepted")["status"] == "True", "it waits once"
