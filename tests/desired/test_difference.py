"""The reason for a rollout, in words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from llamaserver.api.names import FIELD_MANAGER
from llamaserver.desired import BuildSettings, DesiredFleet, first_difference

Object = dict[str, Any]
Make = Callable[..., Any]

POD = "spec.template.spec"
GPU = {"resourceName": "nvidia.com/gpu", "count": 1}
ENV = [{"name": "A", "value": "1"}]

WORDS: list[tuple[Object, Object, str]] = [
    ({}, {}, ""),
    (
        {},
        {"spec.engine.maxNumSeqs": 128},
        f"{POD}.containers[vllm].args: --max-num-seqs=256 -> --max-num-seqs=128",
    ),
    ({}, {"spec.engine.extraArgs": ["-O3"]}, f"{POD}.containers[vllm].args: (absent) -> -O3"),
    ({"spec.engine.extraArgs": ["a", "b"]}, {"spec.engine.extraArgs": ["b", "a"]}, " -> "),
    (
        {},
        {"spec.engine.image": "vllm/vllm-openai:v0.33.0"},
        f"{POD}.containers[vllm].image: vllm/vllm-openai:v0.32.0 -> vllm/vllm-openai:v0.33.0",
    ),
    (
        {},
        {"spec.engine.env": ENV},
        f'{POD}.containers[vllm].env[A]: (absent) -> {{"name": "A", "value": "1"}}',
    ),
    (
        {"spec.engine.env": ENV},
        {},
        f'{POD}.containers[vllm].env[A]: {{"name": "A", "value": "1"}} -> (absent)',
    ),
    (
        {"spec.engine.env": ENV},
        {"spec.engine.env": [{"name": "A", "value": "2"}]},
        f"{POD}.containers[vllm].env[A].value: 1 -> 2",
    ),
    (
        {},
        {"spec.accelerator": GPU},
        f"{POD}.containers[vllm].resources",
    ),
    (
        {"spec.engine.resources.limits": {"memory": "1Gi"}},
        {"spec.engine.resources.limits": {"memory": "2Gi"}},
        f"{POD}.containers[vllm].resources.limits.memory: 1Gi -> 2Gi",
    ),
    ({"spec.engine.resources.limits": {"cpu": "1000m"}}, {"spec.engine.resources.limits": {"cpu": 1}}, ""),
    (
        {"spec.accelerator": GPU},
        {"spec.accelerator": GPU, "spec.engine.maxNumSeqs": 128},
        f"{POD}.containers[vllm].args: --max-num-seqs=256 -> --max-num-seqs=128",
    ),
    (
        {},
        {"spec.scheduling.nodeSelector": {"gpu": "h100"}},
        f'{POD}.nodeSelector: (absent) -> {{"gpu": "h100"}}',
    ),
    ({"spec.scheduling.runtimeClassName": "nvidia"}, {}, f"{POD}.runtimeClassName: nvidia -> (absent)"),
    (
        {},
        {"spec.startup.timeout": "31m"},
        f"{POD}.containers[vllm].startupProbe.failureThreshold: 360 -> 372",
    ),
    (
        {"spec.model.cache.persistentVolumeClaim.claimName": "a"},
        {"spec.model.cache.persistentVolumeClaim.claimName": "b"},
        f"{POD}.volumes[cache].persistentVolumeClaim.claimName: a -> b",
    ),
    ({"spec.scaling.minReplicas": 2}, {"spec.scaling.minReplicas": 3}, "spec.replicas: 2 -> 3"),
]


@pytest.mark.parametrize(("old", "new", "words"), WORDS)
def test_the_first_difference_between_two_builds(old: Object, new: Object, words: str, built: Make) -> None:
    found = first_difference(built(old)["Deployment"], built(new)["Deployment"])
    assert (words in found) if words else (found == "")


@pytest.mark.parametrize(("old", "new", "words"), WORDS)
def test_the_same_against_what_the_api_server_made_of_it(
    old: Object, new: Object, words: str, built: Make, api_server: Any, namespace: str
) -> None:
    """A live object has defaults, other spellings of quantities, and things that others put in."""
    there = {"metadata.namespace": namespace}
    before, after = (built({**changes, **there})["Deployment"] for changes in (old, new))
    applied = api_server.apply(before, FIELD_MANAGER)
    assert applied.status == 201, applied.message
    foreign = copy.deepcopy(
        {key: before[key] for key in ("apiVersion", "kind")}
        | {"metadata": {"name": "chat", "namespace": namespace, "annotations": {"x/y": "z"}}}
    )
    foreign["spec"] = {
        "template": {
            "spec": {
                "containers": [{"name": "vllm", "env": [{"name": "INJECTED", "value": "1"}]}],
                "volumes": [{"name": "injected", "emptyDir": {}}],
                "hostAliases": [{"ip": "127.0.0.2", "hostnames": ["x"]}],
            }
        }
    }
    live = api_server.apply(foreign, "somebody")
    assert live.status == 200, live.message
    assert first_difference(live.body, before) == "", "nothing differs from what was applied"
    found = first_difference(live.body, after)
    assert (words in found) if words else (found == "")


def test_drift_is_seen(built: Make, api_server: Any, namespace: str) -> None:
    wanted = built({"metadata.namespace": namespace}, fleet=DesiredFleet(2))["Deployment"]
    api_server.apply(wanted, FIELD_MANAGER)
    live = api_server.merge(wanted, {"spec": {"replicas": 5}}, "").body
    assert first_difference(live, wanted) == "spec.replicas: 5 -> 2"


def containers(*items: Object) -> Object:
    return {"spec": {"template": {"spec": {"containers": [{"name": "proxy", "env": list(items)}]}}}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([{"value": "1"}], [{"value": "2"}]),
        ([{"value": "1"}], [{"name": "A", "value": "1"}]),
        ([{"name": "A", "value": "1"}] * 2, [{"name": "A", "value": "2"}]),
        ([{"name": {"a": 1}}], [{"name": {"a": 2}}]),
        ([], [{"value": "2"}]),
    ],
)
def test_items_that_their_names_do_not_tell_apart_are_compared_as_a_whole(
    old: list[Object], new: list[Object]
) -> None:
    assert first_difference(containers(*old), containers(*old)) == ""
    assert first_difference(containers(*old), containers(*new)).startswith(f"{POD}.containers[proxy].env")


def test_a_value_of_any_length_gives_a_line(built: Make, settings: BuildSettings) -> None:
    new = built({"spec.engine.env": [{"name": "A", "value": "x" * 5000}]})["Deployment"]
    assert len(first_difference(built()["Deployment"], new)) < 300


@pytest.mark.parametrize("kind", ["Service", "ConfigMap"])
def test_other_kinds_are_compared_too(kind: str, built: Make) -> None:
    old, new = built()[kind], built()[kind]
    assert first_difference(old, new) == ""
    if kind == "ConfigMap":
        new["data"]["k2.pem"] = "PEM"
        assert first_difference(old, new) == "data[k2.pem]: (absent) -> PEM"
    else:
        new["spec"]["ports"][0]["port"] = 81
        assert first_difference(old, new).startswith("spec.ports[81]: (absent) -> {")
