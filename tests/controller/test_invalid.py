"""A spec that the API server takes and the operator cannot act upon: nothing is touched, tuning goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fakes import FakeEngine
from llamaserver.api import InvalidSpec, LlamaServer, parse
from llamaserver.controller import Options, reconcile
from workbench import Cluster, condition, eventually, running, serving


@pytest.fixture(autouse=True)
def stricter(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that refuses more than the CRD does, as a newer one may."""

    def strict(obj: Mapping[str, Any]) -> LlamaServer:
        if obj["spec"]["model"]["uri"].endswith("/refused"):
            raise InvalidSpec("spec.model.uri", "names a model that cannot be served: name another")
        return parse(obj)

    monkeypatch.setattr(reconcile, "parse", strict)


REFUSED = {"spec": {"model": {"uri": "hf://org/refused"}}}


async def test_the_last_good_workload_stays_and_tuning_goes_on_even_after_a_restart(
    cluster: Cluster, options: Options, engine: FakeEngine
) -> None:
    async with running(options):
        await serving(cluster, engine)
        before = await cluster.get(cluster.deployment())
        await cluster.merge(cluster.server(), REFUSED)
        seen = await eventually(
            lambda: cluster.get(cluster.server()),
            lambda it: condition(it, "Accepted").get("status") == "False",
        )
        assert seen["status"]["observedGeneration"] == seen["metadata"]["generation"]
        assert "name another" in condition(seen, "Accepted")["message"]
        assert condition(seen, "Ready")["status"] == "False"
        assert condition(seen, "Stalled")["reason"] == "InvalidSpec"
        scrapes = engine.scrapes
        await eventually(lambda: engine.scrapes > scrapes + 3)
        assert await cluster.events("InvalidSpec")
    async with running(options):
        scrapes = engine.scrapes
        await eventually(lambda: engine.scrapes > scrapes + 3)
        after = await cluster.get(cluster.deployment())
        assert before is not None and after is not None
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        await cluster.merge(cluster.server(), {"spec": {"model": {"uri": "hf://org/other"}}})
        seen = await eventually(
            lambda: cluster.get(cluster.server()),
            lambda it: condition(it, "Accepted").get("status") == "True",
        )
        assert condition(seen, "Stalled")["status"] == "False"


def volume(**source: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"volumes": [{"name": "weights", **source}]}}}


def affinity(**rule: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"scheduling": {"affinity": {"nodeAffinity": required}}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (volume(nfss={"server": "files", "path": "/"}), ("nfss", "field not declared in schema")),
        (volume(persistentVolumeClaim={}), ("persistentVolumeClaim.claimName", "Required value")),
        (
            {"scheduling": {"affinity": {"nodeAffinity": {"required": {}}}}},
            ("required", "field not declared in schema"),
        ),
        (affinity(key="zone", operator="Inn", values=["a"]), ("operator", "not a valid selector operator")),
        (affinity(key="zone", operator="In"), ("values", "Required value")),
    ],
    ids=["a volume", "a claim of no name", "an affinity", "its operator", "its values"],
)
async def test_content_that_only_kubernetes_can_judge_is_told_in_its_words_and_what_serves_is_left(
    change: dict[str, Any], words: tuple[str, ...], cluster: Cluster, options: Options, engine: FakeEngine
) -> None:
    async with running(options):
        await serving(cluster, engine)
        before = await cluster.get(cluster.deployment())
        await cluster.merge(cluster.server(), {"spec": change})
        seen = await eventually(
            lambda: cluster.get(cluster.server()),
            lambda it: condition(it, "Accepted").get("reason") == "ApplyRefused",
        )
        said = condition(seen, "Accepted")
        assert said["status"] == "False"
        assert [word for word in words if word not in said["message"]] == []
        assert condition(seen, "Stalled")["status"] == "True"
        after = await cluster.get(cluster.deployment())
        assert before is not None and after is not None
        assert after["metadata"]["generation"] == before["metadata"]["generation"]


async def test_a_spec_that_was_never_good_makes_nothing(cluster: Cluster, options: Options) -> None:
    server = cluster.server()
    server["spec"]["model"]["uri"] = "hf://org/refused"
    async with running(options):
        await cluster.apply(server)
        seen = await eventually(
            lambda: cluster.get(cluster.server()),
            lambda it: condition(it, "Accepted").get("status") == "False",
        )
        assert seen["status"]["observedGeneration"] == 1
        assert await cluster.get(cluster.deployment()) is None
