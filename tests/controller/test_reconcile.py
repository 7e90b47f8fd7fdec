"""One look at a LlamaServer, with an API server that keeps what is applied and refuses what it is told to."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import pytest

from llamaserver.api.names import child_labels
from llamaserver.cluster import ApiError
from llamaserver.cluster.kinds import (
    DEPLOYMENT,
    POD,
    POD_DISRUPTION_BUDGET,
    Object,
    kind_of,
)
from llamaserver.controller import reconcile, rollouts
from llamaserver.controller.queue import RetryLater
from llamaserver.controller.scaledown import LOOK_AGAIN_S, PATIENCE_S
from reconciling import KEY, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


AUTO = {"mode": "Auto", "minReplicas": 2, "maxReplicas": 8}


async def test_a_new_spec_is_never_called_ready_before_its_rollout(bench: Bench) -> None:
    bench.declare()
    await bench.look()
    bench.rolled_out()
    await bench.look()
    assert bench.condition("Ready")["status"] == "True"
    bench.declare(engine={"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 8})
    # The watches have not told of the write yet: what it answered is what counts.
    await bench.look()
    assert (bench.condition("Ready")["status"], bench.condition("Ready")["observedGeneration"]) == (
        "False",
        2,
    )
    assert bench.condition("Progressing")["status"] == "True"


async def test_a_refused_new_spec_is_neither_ready_nor_accepted(bench: Bench) -> None:
    bench.declare()
    await bench.look()
    bench.rolled_out()
    await bench.look()
    bench.api.refuses[DEPLOYMENT] = ApiError(403, "Forbidden", "exceeded quota")
    bench.declare(engine={"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 8})
    with pytest.raises(RetryLater):
        await bench.look()
    for type_, expected in (("Accepted", "False"), ("Ready", "False"), ("Stalled", "True")):
        assert (bench.condition(type_)["status"], bench.condition(type_)["reason"]) == (
            expected,
            "ApplyRefused",
        )


async def test_a_child_that_is_refused_does_not_stop_tuning(bench: Bench) -> None:
    bench.api.refuses[POD_DISRUPTION_BUDGET] = ApiError(403, "Forbidden", "no budgets here")
    bench.declare(scaling=AUTO)
    with pytest.raises(RetryLater):
        await bench.look()
    assert bench.ticker.servers == [bench.server]


async def test_what_is_left_of_an_earlier_server_is_said_to_be_waited_for(bench: Bench) -> None:
    bench.declare()
    await bench.look()
    for obj in bench.api.objects.values():
        obj["metadata"]["ownerReferences"] = [{"controller": True, "uid": "uid-of-an-earlier-one"}]
    bench.cache.drop(DEPLOYMENT, "ns", "chat")
    bench.declare(engine={"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 8})
    with pytest.raises(RetryLater):
        await bench.look()
    for type_ in ("Ready", "Progressing"):
        assert "still being deleted" in bench.condition(type_)["message"]
    assert bench.condition("Stalled")["status"] == "False"


async def test_a_decision_counts_once_and_not_against_what_somebody_did_later(bench: Bench) -> None:
    bench.declare(scaling=AUTO)
    await bench.look()
    bench.server.decided_replicas = 3
    await bench.look()
    assert bench.replicas() == 3
    await bench.look()
    live = bench.api.objects[DEPLOYMENT, "chat"]
    live["spec"]["replicas"] = 7
    bench.rolled_out()
    await bench.look()
    assert bench.replicas() == 7


@pytest.mark.parametrize(
    "change",
    [
        {"scaling": AUTO, "suspend": True},
        {"scaling": AUTO | {"maxReplicas": 9}},
        {"scaling": {"mode": "Recommend", "minReplicas": 2, "maxReplicas": 8}},
    ],
)
async def test_a_decision_does_not_outlive_what_it_was_made_under(bench: Bench, change: Object) -> None:
    bench.declare(scaling=AUTO)
    await bench.look()
    bench.server.decided_replicas = 6
    bench.declare(**change)
    await bench.look()
    assert bench.server.decided_replicas is None
    assert bench.replicas() == 2


def pod(name: str) -> Object:
    """A ready pod."""
    metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": child_labels("chat")}
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": metadata, "status": {"phase": "Running", "conditions": ready}}


async def test_a_scale_down_that_waits_for_figures_holds_nothing_else_up(bench: Bench) -> None:
    bench.declare(scaling={"mode": "Fixed"}, replicas=3)
    await bench.look()
    bench.rolled_out()
    for name in ("chat-0", "chat-1", "chat-2"):
        bench.cache.put(POD, pod(name))
    bench.declare(scaling={"mode": "Fixed"}, replicas=2, engine={**IMAGE, "maxNumSeqs": 8})
    assert await bench.reconciler.look(KEY) == LOOK_AGAIN_S
    assert bench.replicas() == 3
    assert "--max-num-seqs=8" in str(bench.api.objects[DEPLOYMENT, "chat"]["spec"]["template"])
    assert bench.api.statuses[-1]["observedGeneration"] == 2
    assert bench.server.shrinks_since is not None
    bench.server.shrinks_since -= PATIENCE_S
    await bench.look()
    assert bench.replicas() == 2


async def test_marks_that_are_refused_are_told_and_the_fleet_shrinks_all_the_same(bench: Bench) -> None:
    bench.declare(scaling={"mode": "Fixed"}, replicas=3)
    await bench.look()
    bench.rolled_out()
    for name in ("chat-0", "chat-1", "chat-2"):
        bench.cache.put(POD, pod(name))
    bench.api.refuses[POD] = ApiError(403, "Forbidden", "pods may not be patched")
    bench.declare(scaling={"mode": "Fixed"}, replicas=2)
    await bench.look()
    assert bench.replicas() == 3
    bench.server.shrinks_since = time.monotonic() - PATIENCE_S
    await bench.look()
    assert bench.replicas() == 2
    ((kind, message),) = bench.told.about("VictimUncertain")
    assert kind == "Warning"
    assert "pods may not be patched" in message
    assert bench.condition("Accepted")["status"] == "True"


IMAGE = {"image": "vllm/vllm-openai:v0.32.0"}


async def test_a_pod_template_is_refused_where_the_operator_is_told_to(bench: Bench) -> None:
    bench.declare()
    await bench.look()
    before = copy.deepcopy(bench.api.objects[DEPLOYMENT, "chat"])
    bench.reconciler.parts = replace(bench.reconciler.parts, allow_pod_template=False)
    privileged = {"name": "p", "image": "p", "securityContext": {"privileged": True}}
    bench.declare(podTemplate={"spec": {"containers": [privileged]}})
    await bench.look()
    said = bench.condition("Accepted")
    assert (said["status"], said["reason"]) == ("False", "InvalidSpec")
    assert "spec.podTemplate" in said["message"]
    assert "--allow-pod-template=false" in said["message"]
    assert bench.api.objects[DEPLOYMENT, "chat"] == before
    bench.declare()
    await bench.look()
    assert bench.condition("Accepted")["status"] == "True"


async def started(bench: Bench, **spec: Any) -> None:
    """A fleet that serves with `spec`."""
    bench.declare(**spec)
    await bench.look()
    bench.rolled_out()
    await bench.look()


def cause(bench: Bench) -> str | None:
    annotations: dict[str, str] = bench.api.objects[DEPLOYMENT, "chat"]["metadata"]["annotations"]
    return annotations.get("kubernetes.io/change-cause")


async def test_why_pods_are_replaced_and_what_it_means_is_told(bench: Bench) -> None:
    await started(bench, engine={**IMAGE, "maxModelLen": 8192})
    assert bench.told.about("Rollout") == []
    bench.declare(engine={**IMAGE, "maxModelLen": 16384})
    await bench.look()
    ((kind, message),) = bench.told.about("Rollout")
    assert kind == "Warning", "one replica and no spare accelerator: nobody is served for a while"
    assert message.startswith("spec.engine.maxModelLen: 8192 -> 16384: nothing is served")
    assert "spec.rollout.maxSurge: 1" in message
    (then,) = [
        obj
        for (_, reason, _), obj in zip(bench.told.events, bench.told.deployed, strict=True)
        if reason == "Rollout"
    ]
    assert then is not None
    assert "--max-model-len=16384" in then["spec"]["template"]["spec"]["containers"][0]["args"]
    said = bench.condition("Progressing")
    assert (said["status"], said["reason"]) == ("True", "RollingOut")
    assert "spec.engine.maxModelLen: 8192 -> 16384; nothing is served" in said["message"]


async def test_a_rollout_that_is_refused_is_announced_once_and_when_it_is_done(bench: Bench) -> None:
    await started(bench, engine=IMAGE)
    apply, bench.api.apply = bench.api.apply, refused_by(bench.api)
    bench.declare(engine={**IMAGE, "maxNumSeqs": 8})
    for _ in range(3):
        with pytest.raises(RetryLater):
            await bench.look()
    assert bench.condition("Accepted")["reason"] == "ApplyRefused"
    assert bench.told.about("Rollout") == [], "no pod is replaced"
    bench.api.apply = apply
    await bench.look()
    await bench.look()
    assert len(bench.told.about("Rollout")) == 1


def refused_by(api: Any) -> Any:
    """An API server that still answers, and takes no Deployment."""
    taken = api.apply

    async def apply(obj: Object, **how: Any) -> Object:
        if kind_of(obj) is DEPLOYMENT:
            raise ApiError(403, "Forbidden", "denied by a webhook")
        answer: Object = await taken(obj, **how)
        return answer

    return apply


async def test_a_reason_that_cannot_be_told_stops_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(bench, engine=IMAGE)

    def broken(*_: Any) -> str:
        raise KeyError("name")

    monkeypatch.setattr(rollouts, "rollout_reason", broken)
    monkeypatch.setattr(reconcile, "first_difference", broken)
    bench.declare(engine={**IMAGE, "maxNumSeqs": 8}, scaling=AUTO)
    await bench.look()
    args = bench.api.objects[DEPLOYMENT, "chat"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--max-num-seqs=8" in args
    assert bench.condition("Accepted")["status"] == "True"


async def test_a_rollout_that_nobody_notices_is_no_warning(bench: Bench) -> None:
    surge = {"rollout": {"maxSurge": 1}}
    await started(bench, engine=IMAGE, **surge)
    bench.declare(engine={**IMAGE, "maxNumSeqs": 8}, **surge)
    await bench.look()
    ((kind, message),) = bench.told.about("Rollout")
    assert kind == "Normal"
    assert "no pod ends before its successor serves" in message


async def test_the_reason_outlives_the_operator_and_other_writes_and_is_in_the_rollouts_history(
    bench: Bench,
) -> None:
    await started(bench, engine=IMAGE, scaling=AUTO)
    assert cause(bench) is None, "coming up for the first time replaces nothing"
    bench.declare(engine={**IMAGE, "maxNumSeqs": 8}, scaling=AUTO)
    await bench.look()
    assert cause(bench) == "spec.engine.maxNumSeqs: (absent) -> 8"
    bench.server.decided_replicas = 4
    await bench.look()
    assert (bench.replicas(), cause(bench)) == (4, "spec.engine.maxNumSeqs: (absent) -> 8")

    live = bench.api.objects[DEPLOYMENT, "chat"]
    live["status"] = {"replicas": 4, "updatedReplicas": 1, "readyReplicas": 3, "observedGeneration": 9}
    bench.registry.drop(KEY)
    bench.cache.put(DEPLOYMENT, live)
    await bench.look()
    assert (
        "1 of 4 replicas have the present spec: spec.engine.maxNumSeqs"
        in (bench.condition("Progressing")["message"])
    )


async def test_another_number_of_replicas_makes_nobody_unready_before_the_cluster_has_seen_it(
    bench: Bench,
) -> None:
    await started(bench, engine=IMAGE, scaling=AUTO)
    bench.rolled_out()
    await bench.look()
    for count in (4, 2):
        bench.server.decided_replicas = count
        await bench.look()
        live = bench.api.objects[DEPLOYMENT, "chat"]
        assert live["status"]["observedGeneration"] < live["metadata"]["generation"]
        assert (bench.replicas(), bench.condition("Ready")["status"]) == (count, "True")
        bench.rolled_out()
        await bench.look()
    assert bench.told.about("NotReady") == []

    bench.declare(engine={**IMAGE, "maxNumSeqs": 8}, scaling=AUTO)
    await bench.look()
    assert bench.condition("Ready")["reason"] == "RollingOut"


async def test_a_change_that_replaces_no_pod_announces_none(bench: Bench) -> None:
    await started(bench, engine=IMAGE)
    bench.declare(engine=IMAGE, slo={"interTokenLatency": {"target": "20ms"}}, rollout={"maxSurge": 1})
    await bench.look()
    assert bench.told.about("Rollout") == []
    assert bench.api.objects[DEPLOYMENT, "chat"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1


async def test_an_edit_of_the_deployment_is_undone_with_the_field_as_the_reason(bench: Bench) -> None:
    await started(bench, engine=IMAGE)
    live = bench.api.objects[DEPLOYMENT, "chat"]
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "vllm/vllm-openai:edited"
    live["metadata"]["generation"] += 1
    bench.rolled_out()
    await bench.look()
    ((_, message),) = bench.told.about("Rollout")
    assert message.startswith("spec.template.spec.containers[vllm].image: vllm/vllm-openai:edited -> ")
