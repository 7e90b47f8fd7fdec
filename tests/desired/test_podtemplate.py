"""What users add to the pods, and that what the operator needs stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llamaserver.api.names import child_labels, selector_labels
from llamaserver.api.podtemplate import OWN_INIT_CONTAINERS, OWN_LABELS, OWN_MOUNTS, OWN_VOLUMES

Object = dict[str, Any]
Make = Callable[..., Any]

CONTENT = "spec.podTemplate.spec"


def named(items: list[Object], name: str) -> Object:
    (found,) = (item for item in items if item["name"] == name)
    return found


def test_a_sidecar_stands_beside_the_engine_which_stays_the_first(pod: Make) -> None:
    sidecar = {"name": "proxy", "image": "proxy:1", "ports": [{"containerPort": 9000}]}
    spec = pod({f"{CONTENT}.containers": [sidecar]})
    assert [container["name"] for container in spec["containers"]] == ["vllm", "proxy"]
    assert spec["containers"][0] == pod()["containers"][0]
    assert spec["containers"][1] == sidecar


def test_an_init_container_comes_after_the_operators_own(pod: Make) -> None:
    spec = pod({f"{CONTENT}.initContainers": [{"name": "warm", "image": "warm:1"}]})
    assert [container["name"] for container in spec["initContainers"]] == ["tuner", "warm"]


def test_what_is_added_to_the_engine_leaves_the_rest_of_it_as_it_was(engine: Make) -> None:
    mount = {"name": "weights", "mountPath": "/mnt/weights", "readOnly": True}
    added = {
        "name": "vllm",
        "envFrom": [{"secretRef": {"name": "tracing"}}],
        "volumeMounts": [mount],
        "ports": [{"containerPort": 9400, "name": "dcgm"}],
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    plain = engine()
    made = engine({f"{CONTENT}.containers": [added]})
    assert made["volumeMounts"] == [*plain["volumeMounts"], mount]
    assert made["ports"] == [*plain["ports"], {"containerPort": 9400, "name": "dcgm"}]
    assert made["envFrom"] == [{"secretRef": {"name": "tracing"}}]
    assert made["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert made["securityContext"]["allowPrivilegeEscalation"] is False
    untouched = set(plain) - {"volumeMounts", "ports", "securityContext"}
    assert {key: made[key] for key in untouched} == {key: plain[key] for key in untouched}


def test_a_volume_is_added_and_one_of_the_same_name_takes_the_place_of_ours_as_a_whole(pod: Make) -> None:
    cache = {"name": "cache", "hostPath": {"path": "/var/cache/models"}}
    weights = {"name": "weights", "nfs": {"server": "files", "path": "/w"}}
    volumes = pod({f"{CONTENT}.volumes": [weights, cache]})["volumes"]
    assert named(volumes, "weights") == weights
    assert named(volumes, "cache") == cache, "an emptyDir beside a hostPath would be refused"
    assert [volume["name"] for volume in volumes].count("cache") == 1


def test_the_pods_own_settings_are_merged_key_by_key(pod: Make) -> None:
    spec = pod({f"{CONTENT}.securityContext": {"supplementalGroups": [44], "runAsUser": 1000}})
    assert spec["securityContext"]["supplementalGroups"] == [44]
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["runAsNonRoot"] is True
    other = pod({CONTENT: {"dnsPolicy": "None", "automountServiceAccountToken": True}})
    assert (other["dnsPolicy"], other["automountServiceAccountToken"]) == ("None", True)


def test_labels_come_beside_those_that_find_the_pods(built: Make) -> None:
    metadata = {"labels": {"team": "search"}, "annotations": {"sidecar.istio.io/inject": "false"}}
    deployment = built({"spec.podTemplate.metadata": metadata})["Deployment"]
    made = deployment["spec"]["template"]["metadata"]
    assert made["labels"] == {**child_labels("chat"), "team": "search"}
    assert made["annotations"] == metadata["annotations"]
    assert deployment["spec"]["selector"] == {"matchLabels": selector_labels("chat")}


@pytest.mark.parametrize("empty", [{}, {"metadata": {}}, {"spec": {}}, {"spec": {"containers": []}}])
def test_an_empty_template_adds_nothing(empty: Object, built: Make) -> None:
    assert built({"spec.podTemplate": empty}) == built()


FULL = {
    "spec.engine.tls": {"secretName": "chat-tls"},
    "spec.model": {
        "uri": "pvc://models/llama",
        "lora": {"adapters": [{"name": "a", "uri": "pvc://adapters/a"}]},
        "chatTemplate": {"configMapKeyRef": {"name": "t", "key": "k"}},
    },
}


def test_the_names_that_are_refused_are_those_that_the_operator_uses(pod: Make) -> None:
    spec = pod(FULL)
    fixed = {volume["name"] for volume in spec["volumes"]} - {"cache", "tmp", "shm", "adapter-0"}
    assert fixed == set(OWN_VOLUMES)
    mounts = {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert (mounts - {"/mnt/adapters/0"}) | {"/mnt/adapters"} == set(OWN_MOUNTS)
    assert {container["name"] for container in spec["initContainers"]} < set(OWN_INIT_CONTAINERS)
    assert set(child_labels("chat")) == set(OWN_LABELS)


class TestPlacement:
    """Where pods may run."""

    def test_spreads_of_the_users_take_the_place_of_ours_and_select_our_pods(self, pod: Make) -> None:
        zone = {
            "topologyKey": "topology.kubernetes.io/zone",
            "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule",
        }
        (spread,) = pod({"spec.scheduling.topologySpreadConstraints": [zone]})["topologySpreadConstraints"]
        assert spread == {**zone, "labelSelector": {"matchLabels": selector_labels("chat")}}

    def test_an_empty_list_spreads_nothing(self, pod: Make) -> None:
        assert pod({"spec.scheduling.topologySpreadConstraints": []})["topologySpreadConstraints"] == []

    def test_the_rest_is_passed_on(self, pod: Make) -> None:
        terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
        affinity = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        }
        given = {"affinity": affinity, "schedulerName": "volcano", "imagePullSecrets": [{"name": "registry"}]}
        spec = pod({"spec.scheduling": given})
        assert {key: spec[key] for key in given} == given
