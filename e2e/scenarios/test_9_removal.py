"""Deleting a LlamaServer takes its children with it; uninstalling the operator leaves nothing hanging."""

from __future__ import annotations

import json

from demo.release import INSTANCE
from demo.settings import RELEASE, Settings
from harness.fleet import Fleet
from harness.kube import Kube
from harness.server import NAME_LABEL
from harness.wait import until
from scenarios.terms import NAMESPACE

CHILDREN = "deployments,replicasets,services,configmaps,poddisruptionbudgets,pods"


def children(kube: Kube, name: str) -> list[str]:
    """Kind and name of everything that belongs to a LlamaServer."""
    found = kube.list(CHILDREN, NAMESPACE, f"{NAME_LABEL}={name}")
    return sorted(f"{item['kind']}/{item['metadata']['name']}" for item in found)


def terminating(kube: Kube) -> list[str]:
    """Everything of ours that waits for something before it can go."""
    said = json.loads(kube.kubectl("get", "llamaservers,deployments,pods,namespaces", "-A", "-o", "json"))
    return [
        f"{item['kind']}/{item['metadata']['name']}"
        for item in said["items"]
        if "deletionTimestamp" in item["metadata"]
    ]


def test_deleting_takes_all_children(kube: Kube, fleet: Fleet) -> None:
    kinds = {child.partition("/")[0] for child in children(kube, fleet.name)}
    assert {"Deployment", "ReplicaSet", "Service", "ConfigMap", "Pod"} <= kinds
    kube.delete("llamaserver", fleet.name, NAMESPACE)
    assert fleet.find() is None
    until(
        "all children to go",
        lambda: not children(kube, fleet.name),
        120,
        seen=lambda: children(kube, fleet.name),
    )


def test_uninstalling_leaves_nothing_hanging(kube: Kube, settings: Settings, fleet: Fleet) -> None:
    # Suspended, so that it costs nothing: what counts is that the resource exists while the operator goes.
    fleet.apply(fleet.resource(scaling={"mode": "Fixed"}, replicas=0))
    until("a Deployment", lambda: kube.get("deployment", fleet.name, NAMESPACE), 30)
    kube.helm("uninstall", RELEASE, "-n", settings.operator_namespace, "--wait")

    def left() -> list[str]:
        # By name: what `all` stands for changes with the resources that others have defined and taken back.
        kinds = f"{CHILDREN},secrets,serviceaccounts"
        found = kube.list(kinds, settings.operator_namespace, INSTANCE)
        return [f"{item['kind']}/{item['metadata']['name']}" for item in found]

    until("everything of the release to go", lambda: not left(), 60, seen=left)
    # The definition is kept, and with it every LlamaServer; without an operator it can still be deleted at
    # once.
    kube.kubectl("get", "crd", "llamaservers.llamaserver.dev")
    kube.delete("llamaserver", fleet.name, NAMESPACE, timeout=30)
    until(
        "all children to go",
        lambda: not children(kube, fleet.name),
        60,
        seen=lambda: children(kube, fleet.name),
    )
    until("nothing to be terminating", lambda: not terminating(kube), 60, seen=lambda: terminating(kube))
