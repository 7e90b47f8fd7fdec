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
    ("resource", "level"),
    [
        (None, "restricted"),
        ("nvidia.com/gpu", "restricted"),
        ("amd.com/gpu", "baseline"),
        ("google.com/tpu", "baseline"),
    ],
)
def test_the_pods_are_admitted_by_pod_security(
    resource: str | None, level: str, pod: Make, api_server: Any, namespace: str
) -> None:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    assert api_server.merge(named, labels).status == 200
    spec = pod({"spec.accelerator": {"resourceName": resource, "count": 1}} if resource else {})
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
