"""An engine without the tuner is served and diagnosed; the status says that its cap cannot be moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.node import Node
from harness.kube import Kube
from harness.manifests import llamaserver, namespace, slo
from harness.plain_engine import IMAGE, MODEL_PATH, load_image
from harness.server import Server
from scenarios.terms import LEAST_TARGET_MS, NAMESPACE

NAME = "plain"


@pytest.fixture
def plain(kube: Kube, operator: None, tmp_path: Path) -> Iterator[Server]:  # noqa: ARG001
    """A LlamaServer whose engine has /health and /metrics and nothing else."""
    load_image(Node(), tmp_path)
    kube.apply(namespace(NAMESPACE))
    server = Server(kube, NAME, NAMESPACE)
    resource = llamaserver(
        NAME,
        NAMESPACE,
        image=IMAGE,
        runtime_class=None,
        tuning="Auto",
        objective=slo(LEAST_TARGET_MS),
        cpu="10m",
    )
    resource["spec"]["model"] = {"uri": f"file://{MODEL_PATH}", "servedNames": ["plain"]}
    resource["spec"]["engine"]["resources"] = {"requests": {"cpu": "10m", "memory": "32Mi"}}
    server.apply(resource)
    server.wait_ready()
    yield server
    kube.delete("llamaserver", NAME, NAMESPACE)


def test_the_status_says_that_the_cap_cannot_be_moved(plain: Server) -> None:
    said = plain.wait_condition("Tuned", "False", 60, reason="ActuatorUnavailable")
    assert "tuner" in said["message"].lower()
    plain.wait_condition("MetricsAvailable", "True", 30)
    status = plain.status()
    assert status["tuning"]["actuator"] == "Unavailable"
    assert "numSeqs" not in status["tuning"], "a cap that nobody can read must not be shown"
