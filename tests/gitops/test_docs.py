"""What the pages on GitOps and routing show is what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from llamaserver.api.names import (
    ENGINE_PORT,
    ENGINE_PORT_NAME,
    ENGINE_TLS_PORT_NAME,
    GROUP,
    KIND,
    NAME_LABEL,
    SERVICE_PORT,
    SERVICE_TLS_PORT,
    selector_labels,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"


def shown(page: str) -> Iterator[dict[str, Any]]:
    """The YAML documents on a page."""
    for block in re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S):
        yield from yaml.safe_load_all(block)


def test_an_inference_pool_selects_the_pods_at_their_port() -> None:
    (pool,) = (obj for obj in shown("routing.md") if obj["kind"] == "InferencePool")
    assert pool["spec"]["selector"] == {"matchLabels": selector_labels("chat")}
    assert pool["spec"]["targetPorts"] == [{"number": ENGINE_PORT}]
    (route,) = (obj for obj in shown("routing.md") if obj["kind"] == "HTTPRoute")
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])


def test_labels_and_ports_are_named() -> None:
    text = (DOCS / "routing.md").read_text()
    assert f"`{NAME_LABEL}: NAME`" in text
    assert f"{ENGINE_PORT}, called `{ENGINE_PORT_NAME}`" in text
    assert f"port {SERVICE_PORT}, called `{ENGINE_PORT_NAME}`" in text
    assert f"port {SERVICE_TLS_PORT}, called `{ENGINE_TLS_PORT_NAME}`" in text


def test_a_gateway_asks_engines_with_tls_at_their_port_of_the_service() -> None:
    (policy,) = (obj for obj in shown("routing.md") if obj["kind"] == "BackendTLSPolicy")
    (target,) = policy["spec"]["targetRefs"]
    assert (target["kind"], target["sectionName"]) == ("Service", ENGINE_TLS_PORT_NAME)
    name, namespace = target["name"], policy["metadata"]["namespace"]
    assert policy["spec"]["validation"]["hostname"] == f"{name}.{namespace}.svc"


def test_only_what_somebody_else_writes_is_to_be_ignored() -> None:
    (application,) = (obj for obj in shown("gitops.md") if obj.get("kind") == "Application")
    (ignored,) = application["spec"]["ignoreDifferences"]
    assert ignored == {"group": GROUP, "kind": KIND, "jsonPointers": ["/spec/replicas"]}
    assert f"resource.customizations.health.{GROUP}_{KIND}" in (DOCS / "gitops.md").read_text()


def test_health_checks_name_the_kind() -> None:
    (checks,) = (obj for obj in shown("gitops.md") if "healthChecks" in obj)
    assert [(check["kind"], check["apiVersion"].split("/")[0]) for check in checks["healthChecks"]] == [
        (KIND, GROUP)
    ]
