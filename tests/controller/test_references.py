"""Specs that name objects which are not there: told with the field, and never acted upon before they are."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from llamaserver.api.status import RestartStatus
from llamaserver.cluster import ApiError, UnavailableError
from llamaserver.cluster.kinds import CLAIM, CONFIG_MAP, DEPLOYMENT, Object
from llamaserver.controller import references
from reconciling import Bench

AUTO = {"mode": "Auto", "minReplicas": 2, "maxReplicas": 8}
PVC = {"model": {"uri": "pvc://weights/llama"}}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def claimed(name: str) -> Object:
    cache = {"persistentVolumeClaim": {"claimName": name}}
    return {"model": {"uri": "hf://org/model", "cache": cache}, "scaling": AUTO}


def claim(*modes: str) -> Object:
    return {"spec": {"accessModes": list(modes)}}


def template(bench: Bench) -> str:
    return str(bench.api.objects[DEPLOYMENT, "chat"]["spec"]["template"])


def later(bench: Bench) -> None:
    """Everything that was read is old."""
    bench.server.seen = {
        ref: references.Referent(seen.at - references.KEPT_S, seen.known, seen.obj)
        for ref, seen in bench.server.seen.items()
    }


NAMED = {
    "a model": (PVC, "spec.model.uri"),
    "an adapter": (
        {
            "model": {
                "uri": "hf://org/model",
                "lora": {
                    "adapters": [{"name": "a", "uri": "hf://o/a"}, {"name": "b", "uri": "pvc://weights/b"}]
                },
            }
        },
        "spec.model.lora.adapters[1].uri",
    ),
    "a cache": (claimed("weights"), "spec.model.cache.persistentVolumeClaim.claimName"),
    "a volume": (
        {
            "podTemplate": {
                "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "weights"}}]}
            }
        },
        "spec.podTemplate.spec.volumes[0].persistentVolumeClaim.claimName",
    ),
}


@pytest.mark.parametrize(("spec", "field"), NAMED.values(), ids=NAMED)
async def test_a_claim_that_does_not_exist_is_told_at_once_and_waited_for(
    spec: Object, field: str, bench: Bench
) -> None:
    bench.declare(**spec)
    assert await bench.look() == references.AGAIN_S
    said = bench.condition("Accepted")
    assert (said["status"], said["reason"]) == ("False", "ReferenceNotFound")
    told = "there is no PersistentVolumeClaim weights in namespace ns: create it, or write the name of one"
    assert said["message"] == f"{field}: {told}"
    assert bench.condition("Ready")["reason"] == "ReferenceNotFound"
    assert bench.condition("Stalled")["status"] == "False", "it may come a moment later"
    assert (DEPLOYMENT, "chat") not in bench.api.objects, "its pods could only wait"

    bench.api.objects[CLAIM, "weights"] = claim("ReadWriteMany")
    later(bench)
    await bench.look()
    assert bench.condition("Accepted")["status"] == "True"
    assert "'claimName': 'weights'" in template(bench)


async def test_it_becomes_a_stall_when_it_lasts(bench: Bench) -> None:
    bench.declare(**PVC)
    await bench.look()
    bench.wall += timedelta(minutes=4)
    await bench.look()
    said = bench.condition("Stalled")
    assert (said["status"], said["reason"]) == ("True", "ReferenceNotFound")


async def test_what_serves_is_not_replaced_by_pods_that_could_not_start(bench: Bench) -> None:
    bench.declare(scaling=AUTO)
    await bench.look()
    bench.rolled_out()
    await bench.look()
    before = copy.deepcopy(bench.api.objects)
    bench.declare(**PVC, scaling=AUTO)
    await bench.look()
    assert bench.api.objects == before
    said = bench.condition("Accepted")
    assert said["reason"] == "ReferenceNotFound"
    assert said["message"].endswith("; the last accepted spec stays in force")
    assert "2 replicas serve the last accepted spec" in bench.condition("Ready")["message"]


async def test_a_stall_is_counted_from_when_it_was_missing_and_not_from_another_fault(bench: Bench) -> None:
    bench.declare(scaling={"mode": "Auto", "minReplicas": 3, "maxReplicas": 2})
    await bench.look()
    assert bench.condition("Stalled")["reason"] == "InvalidSpec"
    bench.wall += timedelta(hours=1)
    bench.declare(**PVC)
    for _ in range(2):
        await bench.look()
        assert bench.condition("Accepted")["reason"] == "ReferenceNotFound"
        assert bench.condition("Stalled")["status"] == "False"
        bench.wall += timedelta(minutes=1)
    bench.restarted()
    await bench.look()
    assert bench.condition("Stalled")["status"] == "False", "nor after a restart of the operator"
    bench.wall += timedelta(minutes=4)
    await bench.look()
    assert bench.condition("Stalled")["reason"] == "ReferenceNotFound"
    bench.restarted()
    await bench.look()
    assert bench.condition("Stalled")["reason"] == "ReferenceNotFound", "and it is no news after another"


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_replaces_no_pod_is_acted_upon_while_something_is_missing(
    bench: Bench, restarted: bool
) -> None:
    """A ConfigMap that is deleted under a healthy fleet takes away neither its brake nor its scaling."""
    bench.api.objects[CONFIG_MAP, "chats"] = {"data": {"llama": ""}}
    bench.declare(**TEMPLATE, scaling={"mode": "Fixed"}, replicas=2)
    await bench.look()
    bench.rolled_out()
    await bench.look()
    before = template(bench)
    del bench.api.objects[CONFIG_MAP, "chats"]
    later(bench)
    if restarted:
        bench.restarted()
    await bench.look()
    accepted = bench.condition("Accepted")
    assert accepted["reason"] == "ReferenceNotFound"
    assert accepted["message"].endswith(
        "; pods that run go on, none can start before it is there, and all else is in force"
    )
    assert "2 replicas serve it from before" in bench.condition("Ready")["message"]
    bench.declare(**TEMPLATE, scaling={"mode": "Fixed"}, replicas=3, suspend=True)
    await bench.look()
    assert bench.replicas() == 3
    assert bench.server.spec is not None
    assert bench.server.spec.suspended
    assert template(bench) == before

    bench.declare(
        **TEMPLATE, scaling={"mode": "Fixed"}, replicas=4, engine={"image": "vllm/vllm-openai:v0.31.0"}
    )
    await bench.look()
    assert template(bench) == before, "its pods could not start"
    assert bench.replicas() == 3
    assert bench.condition("Accepted")["message"].endswith("; the last accepted spec stays in force")


async def test_what_a_restart_has_chosen_is_not_given_back_while_something_is_missing(bench: Bench) -> None:
    """It would replace pods, though no field that starts them has changed."""
    bench.api.objects[CONFIG_MAP, "chats"] = {"data": {"llama": ""}}
    slo, tuning = {"interTokenLatency": {"target": "50ms"}}, {"restart": {"minInterval": "1h"}}
    bench.declare(**TEMPLATE, slo=slo, tuning=tuning)
    await bench.look()
    bench.server.restart = RestartStatus(max_num_seqs=96, time="2026-01-01T00:00:00Z")
    await bench.look()
    await bench.look()
    assert "--max-num-seqs=96" in (before := template(bench))
    del bench.api.objects[CONFIG_MAP, "chats"]
    later(bench)
    bench.declare(**TEMPLATE, slo=slo)
    await bench.look()
    assert template(bench) == before


TEMPLATE = {
    "model": {"uri": "hf://org/model", "chatTemplate": {"configMapKeyRef": {"name": "chats", "key": "llama"}}}
}
TOLD = "spec.model.chatTemplate.configMapKeyRef"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, f"{TOLD}.name: there is no ConfigMap chats in namespace ns"),
        ({}, f"{TOLD}.key: the ConfigMap chats has no key llama: add it, or write one that it has (none)"),
        ({"data": {"b": "", "a": ""}}, "write one that it has (a, b)"),
        ({"data": {"llama": ""}}, ""),
        ({"binaryData": {"llama": ""}}, ""),
    ],
)
async def test_a_chat_template_that_is_not_there_is_told(
    content: Object | None, said: str, bench: Bench
) -> None:
    """The kubelet tells of it in Events alone, and the pod waits without a word."""
    if content is not None:
        bench.api.objects[CONFIG_MAP, "chats"] = content
    bench.declare(**TEMPLATE)
    await bench.look()
    accepted = bench.condition("Accepted")
    assert (accepted["status"] == "False") is bool(said)
    assert said in accepted["message"]


async def test_every_missing_reference_is_told_at_once(bench: Bench) -> None:
    spec: dict[str, Any] = {"model": {**TEMPLATE["model"], **PVC["model"]}}
    bench.declare(**spec)
    await bench.look()
    said = bench.condition("Accepted")["message"]
    assert "spec.model.uri: " in said
    assert f"{TOLD}.name: " in said


async def test_another_claim_is_read_at_once_and_one_that_cannot_be_read_hinders_nothing(
    bench: Bench,
) -> None:
    bench.api.objects[CLAIM, "one"] = claim("ReadWriteOncePod")
    bench.api.objects[CLAIM, "many"] = claim("ReadWriteMany")
    bench.declare(**claimed("one"))
    await bench.look()
    said = bench.condition("Stalled")
    assert (said["reason"], "the claim one allows ReadWriteOncePod" in said["message"]) == (
        "ClaimNotShareable",
        True,
    )
    bench.declare(**claimed("many"))
    await bench.look()
    assert bench.condition("Stalled")["status"] == "False"
    for error in (ApiError(403, "Forbidden", "no"), UnavailableError(0, "Timeout", "no answer")):
        bench.api.refuses[CLAIM] = error
        bench.declare(**claimed(f"hidden-{error.status}"))
        await bench.look()
        assert bench.condition("Accepted")["status"] == "True"
        assert f"hidden-{error.status}" in template(bench)


async def test_what_is_there_is_not_asked_for_again_for_a_while(bench: Bench) -> None:
    bench.api.objects[CLAIM, "weights"] = claim("ReadOnlyMany")
    bench.declare(**PVC)
    await bench.look()
    bench.api.refuses[CLAIM] = ApiError(403, "Forbidden", "no")
    await bench.look()
    (seen,) = bench.server.seen.values()
    assert seen.known
    later(bench)
    await bench.look()
    (seen,) = bench.server.seen.values()
    assert not seen.known
