"""One look at a LlamaServer, with an API server that keeps what is applied and refuses what it is told to."""

from __future__ import annotations

import copy
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from llamaserver.cluster import ApiError, Recorder
from llamaserver.cluster.kinds import (
    CLAIM,
    DEPLOYMENT,
    LLAMASERVER,
    POD_DISRUPTION_BUDGET,
    Kind,
    Object,
    kind_of,
)
from llamaserver.controller.cache import Cache
from llamaserver.controller.children import Children
from llamaserver.controller.queue import Key, RetryLater
from llamaserver.controller.reconcile import Parts, Reconciler
from llamaserver.controller.runtime import Registry, Server
from llamaserver.desired import BuildSettings
from llamaserver.telemetry import Metrics

KEY = Key("ns", "chat")


class Api:
    """Keeps objects by kind and name. Nothing it keeps reaches a watch."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Kind, str], Object] = {}
        self.refuses: dict[Kind, ApiError] = {}
        self.statuses: list[Object] = []
        self.version = 100

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        if kind in self.refuses:
            raise self.refuses[kind]
        return copy.deepcopy(self.objects.get((kind, name)))

    async def apply(self, obj: Object, *, manager: str = "", force: bool = True) -> Object:
        kind, name = kind_of(obj), obj["metadata"]["name"]
        if kind in self.refuses:
            raise self.refuses[kind]
        live = self.objects.get((kind, name), {"metadata": {"generation": 0, "uid": f"uid-{name}"}})
        self.version += 1
        counted = {"generation": live["metadata"]["generation"] + 1, "resourceVersion": str(self.version)}
        kept = {**copy.deepcopy(obj), "metadata": {**live["metadata"], **obj["metadata"], **counted}}
        self.objects[kind, name] = kept | {"status": live.get("status", {})}
        return copy.deepcopy(self.objects[kind, name])

    async def apply_status(self, obj: Object) -> Object:
        self.statuses.append(copy.deepcopy(obj["status"]))
        return obj

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self.objects.pop((kind, name), None)


class Started:
    """In the place of the ticker."""

    def __init__(self) -> None:
        self.servers: list[Server] = []

    def start(self, server: Server) -> None:
        self.servers.append(server)


class Bench:
    """A reconciler and what it works with."""

    def __init__(self) -> None:
        self.api: Any = Api()
        self.cache = Cache(time.monotonic)
        self.registry = Registry()
        self.ticker = Started()
        self.generation = 0
        parts = Parts(
            kube=self.api,
            cache=self.cache,
            registry=self.registry,
            children=Children(self.api, self.cache),
            recorder=Recorder(self.api, instance="test", monotonic=time.monotonic),
            metrics=Metrics(),
            settings=lambda: BuildSettings(tuner_image="tuner:1", public_keys={"k": "pem"}),
            monotonic=time.monotonic,
            wall=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )
        self.reconciler = Reconciler(parts, ticker=self.ticker)  # type: ignore[arg-type]

    def declare(self, **spec: Any) -> None:
        """The LlamaServer as the watches tell of it."""
        self.generation += 1
        base = {"model": {"uri": "hf://org/model"}, "engine": {"image": "vllm/vllm-openai:v0.32.0"}}
        metadata = {
            "namespace": "ns",
            "name": "chat",
            "uid": "uid-server",
            "generation": self.generation,
            "resourceVersion": str(self.generation),
        }
        self.cache.put(
            LLAMASERVER,
            {
                "apiVersion": LLAMASERVER.api_version,
                "kind": LLAMASERVER.kind,
                "metadata": metadata,
                "spec": base | spec,
            },
        )

    def rolled_out(self) -> None:
        """The Deployment's controller is done, and the watches have told."""
        live = self.api.objects[DEPLOYMENT, "chat"]
        count = live["spec"]["replicas"]
        self.api.version += 1
        live["metadata"]["resourceVersion"] = str(self.api.version)
        live["status"] = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), count)
        live["status"]["observedGeneration"] = live["metadata"]["generation"]
        self.cache.put(DEPLOYMENT, live)

    async def look(self) -> None:
        await self.reconciler.look(KEY)

    def replicas(self) -> int:
        count: int = self.api.objects[DEPLOYMENT, "chat"]["spec"]["replicas"]
        return count

    @property
    def server(self) -> Server:
        found = self.registry.get(KEY)
        assert found is not None
        return found

    def condition(self, type_: str) -> Object:
        conditions: list[Object] = self.api.statuses[-1]["conditions"]
        return next(one for one in conditions if one["type"] == type_)


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


def claimed(name: str) -> Object:
    cache = {"persistentVolumeClaim": {"claimName": name}}
    return {"model": {"uri": "hf://org/model", "cache": cache}, "scaling": AUTO}


async def test_another_claim_is_read_at_once_and_one_that_cannot_be_read_hinders_nothing(
    bench: Bench,
) -> None:
    once = {"spec": {"accessModes": ["ReadWriteOncePod"]}}
    for name, modes in (("one", ["ReadWriteOncePod"]), ("many", ["ReadWriteMany"])):
        bench.api.objects[CLAIM, name] = copy.deepcopy(once) | {"spec": {"accessModes": modes}}
    bench.declare(**claimed("one"))
    await bench.look()
    assert bench.server.claim_problem
    bench.declare(**claimed("many"))
    await bench.look()
    assert bench.server.claim_problem == ""
    bench.api.refuses[CLAIM] = ApiError(403, "Forbidden", "no")
    bench.declare(**claimed("hidden"))
    await bench.look()
    assert bench.server.claim_problem == ""
    assert bench.api.statuses[-1]["observedGeneration"] == 3
