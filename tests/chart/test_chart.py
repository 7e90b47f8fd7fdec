"""The chart: what it becomes, that nothing unknown can be set, that its rights are those the code uses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from llamaserver.api.crd import FILE_NAME, crd, crd_yaml
from llamaserver.cli.main import run
from llamaserver.cluster.access import RIGHTS, Right, Scope

CHART = Path(__file__).parents[2] / "charts" / "llamaserver-operator"
GOLDEN = Path(__file__).parent / "golden"

Object = dict[str, Any]
Render = Callable[..., list[Object]]
Helm = Callable[..., subprocess.CompletedProcess[str]]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [obj for obj in objects if obj["kind"] == kind]


def test_lint_finds_nothing(helm: Helm) -> None:
    done = helm("lint", str(CHART), "--strict", "--kube-version", "1.34.0")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_charts_crd_is_the_generated_one(render: Render) -> None:
    cure = "renew it: llamaserver crd --output charts/llamaserver-operator/files"
    assert (CHART / "files" / FILE_NAME).read_text() == crd_yaml(), cure
    (rendered,) = of_kind(render(), "CustomResourceDefinition")
    assert rendered["spec"] == crd()["spec"]
    assert rendered["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_crd_can_be_left_out_or_not_kept(render: Render) -> None:
    assert not of_kind(render(crds={"enabled": False, "keep": True}), "CustomResourceDefinition")
    (rendered,) = of_kind(render(crds={"enabled": True, "keep": False}), "CustomResourceDefinition")
    assert "annotations" not in rendered["metadata"]


def rights(rules: list[Object]) -> dict[tuple[str, str], set[str]]:
    """(group, resource) to verbs, of rules as RBAC writes them."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def used(scope: Scope) -> dict[tuple[str, str], set[str]]:
    """The same of the table that the code checks its own calls against."""

    def fits(right: Right) -> bool:
        return right.scope is scope

    return {(right.group, right.resource): set(right.verbs) for right in filter(fits, RIGHTS)}


def test_the_rights_granted_are_the_rights_used(render: Render) -> None:
    objects = render()
    (cluster_wide,) = [
        role
        for role in of_kind(objects, "ClusterRole")
        if "-view" not in role["metadata"]["name"] and "-edit" not in role["metadata"]["name"]
    ]
    (own,) = of_kind(objects, "Role")
    assert rights(cluster_wide["rules"]) == used(Scope.WATCHED)
    assert rights(own["rules"]) == used(Scope.OWN)
    assert all(rule.get("resourceNames") for rule in own["rules"]), (
        "in its own namespace only what it knows by name"
    )
    assert own["metadata"]["namespace"] == "ops"


def test_no_right_is_a_wildcard_and_secrets_are_never_listed(render: Render) -> None:
    for role in of_kind(render(), "ClusterRole") + of_kind(render(), "Role"):
        for rule in role["rules"]:
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            if "secrets" in rule["resources"]:
                assert rule["resourceNames"]
                assert not {"list", "watch", "delete"} & set(rule["verbs"])


def test_with_namespaces_named_nothing_is_cluster_wide_but_the_roles_of_people(render: Render) -> None:
    objects = render(watchNamespaces=["chat", "batch"])
    assert not of_kind(objects, "ClusterRoleBinding")
    assert {role["metadata"]["name"] for role in of_kind(objects, "ClusterRole")} == {
        "rel-llamaserver-operator-view",
        "rel-llamaserver-operator-edit",
    }
    named = {role["metadata"]["namespace"]: role for role in of_kind(objects, "Role")}
    assert set(named) == {"ops", "chat", "batch"}
    for namespace in ("chat", "batch"):
        assert rights(named[namespace]["rules"]) == used(Scope.WATCHED)
    (env,) = [
        one["value"] for one in container(objects)["env"] if one["name"] == "LLAMASERVER_WATCH_NAMESPACES"
    ]
    assert env == "chat,batch"


def container(objects: list[Object]) -> Object:
    (deployment,) = of_kind(objects, "Deployment")
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    result: Object = only
    return result


def test_the_pod_meets_the_restricted_standard(render: Render) -> None:
    objects = render()
    (deployment,) = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(set(volume) <= {"name", "emptyDir"} for volume in pod["volumes"])


def variables() -> set[str]:
    """Those by which `llamaserver run` can be told its options."""
    prefix = run.context_settings["auto_envvar_prefix"]
    return {f"{prefix}_{name.upper()}" for parameter in run.params if (name := parameter.name)}


def test_every_variable_of_the_pod_is_an_option_of_the_command(render: Render) -> None:
    given = {one["name"] for one in container(render())["env"]}
    assert given <= variables(), given - variables()


@pytest.mark.parametrize("unset", ["kubeApiQps", "kubeApiBurst"])
def test_values_of_a_release_before_those_that_are_new_make_the_same_operator(
    render: Render, unset: str
) -> None:
    """As `helm upgrade --reuse-values` brings them."""
    assert container(render(**{f"operator.{unset}": None})) == container(render())


def test_values_of_a_release_before_prometheus_take_its_address_alone(render: Render) -> None:
    unset = {f"prometheus.{group}": None for group in ("tokenSecret", "caConfigMap")}
    usual, known = (render(**{"prometheus.url": "http://prometheus:9090"} | more) for more in ({}, unset))
    assert known == usual
    keyless = {"prometheus.tokenSecret": {"name": "prom", "key": None}}
    env = container(render(**{"prometheus.url": "http://prometheus:9090"} | keyless))["env"]
    named = {one["name"]: one.get("value") for one in env}
    assert named["LLAMASERVER_PROMETHEUS_TOKEN_FILE"] == "/etc/prometheus-token/token"


def test_more_than_one_replica_is_protected_and_spread(render: Render) -> None:
    assert not of_kind(render(), "PodDisruptionBudget")
    objects = render(replicas=2)
    assert of_kind(objects, "PodDisruptionBudget")
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]


def test_a_digest_wins_over_a_tag(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    objects = render(**{"image.digest": digest, "image.tag": "x"})
    assert container(objects)["image"] == f"llamaserver/operator@{digest}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("replica", "2"),
        ("image.repo", "x"),
        ("tuner.delivery", "Magic"),
        ("operator.leaseSeconds", "1"),
        ("watchNamespaces[0]", "Not_A_Namespace"),
        ("prometheus.url", "prometheus:9090"),
        ("prometheus.url", "http://me:secret@prometheus:9090"),
    ],
)
def test_what_is_not_a_value_is_refused(helm: Helm, key: str, value: str) -> None:
    done = helm("template", "rel", str(CHART), "--kube-version", "1.34.0", "--set", f"{key}={value}")
    assert done.returncode != 0


def test_a_prometheus_is_reached_with_what_is_kept_for_it(render: Render) -> None:
    keys = {"tokenSecret": {"name": "prom", "key": "bearer"}, "caConfigMap": {"name": "ca", "key": "ca.pem"}}
    objects = render(prometheus={"url": "https://thanos.example/tenant", **keys})
    env = {one["name"]: one.get("value") for one in container(objects)["env"]}
    assert set(env) <= variables()
    assert env["LLAMASERVER_PROMETHEUS_URL"] == "https://thanos.example/tenant"
    mounts = {one["mountPath"]: one["name"] for one in container(objects)["volumeMounts"]}
    (deployment,) = of_kind(objects, "Deployment")
    volumes = {one["name"]: one for one in deployment["spec"]["template"]["spec"]["volumes"]}
    folder, _, key = env["LLAMASERVER_PROMETHEUS_TOKEN_FILE"].rpartition("/")
    assert (volumes[mounts[folder]]["secret"], key) == ({"secretName": "prom"}, "bearer")
    folder, _, key = env["LLAMASERVER_PROMETHEUS_CA_FILE"].rpartition("/")
    assert (volumes[mounts[folder]]["configMap"], key) == ({"name": "ca"}, "ca.pem")


def test_without_a_prometheus_nothing_of_it_is_mounted(render: Render) -> None:
    assert "prometheus" not in str(of_kind(render(), "Deployment"))


@pytest.mark.parametrize("key", ["tokenSecret", "caConfigMap"])
def test_what_is_kept_for_a_prometheus_that_is_not_named_is_refused(helm: Helm, key: str) -> None:
    done = helm("template", "rel", str(CHART), "--set", f"prometheus.{key}.name=x")
    assert done.returncode != 0
    assert "prometheus.url" in done.stderr


def test_every_value_is_used_and_documented() -> None:
    text = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    for path in _leaves(yaml.safe_load((CHART / "values.yaml").read_text())):
        parents = [".".join(path[:length]) for length in range(len(path), 0, -1)]
        assert any(f".Values.{parent}" in text for parent in parents), (
            f"{'.'.join(path)} is not used by any template"
        )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("default", {}),
        ("namespaced", {"watchNamespaces": ["chat"], "replicas": 2, "podLabels": {"team": "serving"}}),
    ],
)
def test_golden(render: Render, name: str, values: Object) -> None:
    """What a cluster gets, to be looked at when it changes. Renew with LLAMASERVER_GOLDEN=write."""
    import os

    objects = [obj for obj in render(**values) if obj["kind"] != "CustomResourceDefinition"]
    text = yaml.safe_dump_all(objects, sort_keys=False, width=110)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("LLAMASERVER_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def _leaves(values: Object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for key, value in values.items():
        nested = isinstance(value, dict) and value and key not in ("resources",)
        found += _leaves(value, (*path, key)) if nested else [(*path, key)]
    return found
