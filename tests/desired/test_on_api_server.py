"""The children on a real API server: taken strictly, applied twice without a change, admitted by Pod
Security.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from llamaserver.api.names import FIELD_MANAGER
from llamaserver.desired import DesiredFleet

Object = dict[str, Any]
Make = Callable[..., Any]

GOLDEN = sorted((Path(__file__).resolve().parent / "golden").glob("*.yaml"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_is_built_is_taken_strictly_and_applying_it_again_changes_nothing(
    path: Path, api_server: Any, namespace: str
) -> None:
    for obj in yaml.safe_load_all(path.read_text()):
        obj["metadata"]["namespace"] = namespace
        first = api_server.apply(obj, FIELD_MANAGER, query="force=true&fieldValidation=Strict")
        assert first.status == 201, first.message
        again = api_server.apply(obj, FIELD_MANAGER, query="force=true&fieldValidation=Strict")
        assert again.status == 200, again.message
        same = ("resourceVersion", "generation", "managedFields")
        assert [first.body["metadata"].get(key) for key in same] == [
            again.body["metadata"].get(key) for key in same
        ], "a change that is none would roll pods, or wake every watcher"


def test_the_pods_say_all_that_a_quota_may_ask_for(pod: Make) -> None:
    """A quota of cpu or memory refuses pods of which one container does not say how much it takes."""
    asked = {"cpu": 1, "memory": "2Gi"}
    spec = pod(
        {
            "spec.engine.resources": {"requests": asked, "limits": asked},
            "spec.model.cache.persistentVolumeClaim.claimName": "weights",
        }
    )
    for container in (*spec["initContainers"], *spec["containers"]):
        for part in ("requests", "limits"):
            assert set(container["resources"][part]) == {"cpu", "memory"}, container["name"]


def test_no_container_of_ours_is_limited_to_more_than_it_asks_for(pod: Make) -> None:
    """A LimitRange may bound the ratio, and a pod is Guaranteed only where all its containers are."""
    asked = {"cpu": 1, "memory": "2Gi"}
    spec = pod({"spec.engine.resources": {"requests": asked, "limits": asked}})
    assert [container["name"] for container in spec["initContainers"]] == ["tuner"]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["resources"]["requests"] == container["resources"]["limits"], container["name"]


LONGEST = "a" * 62 + "z"


def test_the_children_of_the_longest_name_are_taken(built: Make, api_server: Any, namespace: str) -> None:
    """Names of Services and values of labels end at 63 characters, names of ConfigMaps do not."""
    changes = {
        "metadata.name": LONGEST,
        "metadata.namespace": namespace,
        "spec.scaling.minReplicas": 2,
        "spec.model.cache.persistentVolumeClaim.claimName": "m" * 253,
        "spec.model.lora.adapters": [
            {"name": f"a{number}", "uri": f"pvc://{'c' * 240}{number}/a"} for number in range(64)
        ],
        "spec.model.chatTemplate.configMapKeyRef": {"name": "t" * 253, "key": "k" * 253},
        "spec.model.tokenSecretRef": {"name": "s" * 253, "key": "K" * 253},
        "spec.scheduling.nodeSelector": {f"{'d' * 253}/{'N' * 63}": "V" * 63},
        "spec.podTemplate.spec.containers": [
            {"name": "c" * 63, "image": "i", "ports": [{"containerPort": 1, "name": "p" * 15}]}
        ],
    }
    made = built(changes, fleet=DesiredFleet(2))
    assert set(made) == {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget"}
    for obj in made.values():
        answer = api_server.apply(obj, FIELD_MANAGER, query="force=true&fieldValidation=Strict")
        assert answer.status == 201, answer.message
    named = {"apiVersion": "llamaserver.dev/v1alpha1", "kind": "LlamaServer"}
    too_long = {**named, "metadata": {"name": f"{LONGEST}z", "namespace": namespace}}
    spec = {"model": {"uri": "hf://o/m"}, "engine": {"image": "i"}}
    refused = api_server.create({**too_long, "spec": spec})
    assert (refused.status, "at most 63 characters" in refused.message) == (422, True)


def test_a_claim_template_is_kept(built: Make, api_server: Any, namespace: str) -> None:
    """An API server that does not know dynamic resource allocation would drop the claim without a word."""
    claimed = {"resourceClaimTemplateName": "gpu", "count": 1}
    wanted = built({"metadata.namespace": namespace, "spec.accelerator": claimed})["Deployment"]
    made = api_server.apply(wanted, FIELD_MANAGER, query="force=true&fieldValidation=Strict")
    assert made.status == 201, made.message
    spec = made.body["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == [{"name": "accelerator", "resourceClaimTemplateName": "gpu"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "accelerator"}]


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "restricted"),
        ({"spec.model.cache.persistentVolumeClaim.claimName": "weights"}, "restricted"),
        ({"spec.accelerator": {"resourceName": "nvidia.com/gpu", "count": 1}}, "restricted"),
        ({"spec.accelerator": {"resourceName": "amd.com/gpu", "count": 1}}, "baseline"),
        ({"spec.accelerator": {"resourceName": "google.com/tpu", "count": 1}}, "baseline"),
    ],
)
def test_the_pods_are_admitted_by_pod_security(
    changes: Object, level: str, pod: Make, api_server: Any, namespace: str
) -> None:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    assert api_server.merge(named, labels).status == 200
    spec = pod(changes)
    obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "engine", "namespace": namespace},
        "spec": spec,
    }
    admitted = api_server.create(obj)
    assert admitted.status == 201, admitted.message
    obj["metadata"]["name"] = "root"
    obj["spec"] = {**spec, "hostNetwork": True}
    assert api_server.create(obj).status == 403, "the level is enforced"
