"""Helm, as the cluster tool builds it, and the chart."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import binaries
from cluster.progress import Progress
from cluster.settings import Settings

CHART = Path(__file__).parents[2] / "charts" / "llamaserver-operator"
KUBE_VERSION = "1.34.0"

Object = dict[str, Any]
Render = Callable[..., list[Object]]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run helm; check `returncode` yourself."""
    programs = binaries.ensure(Settings.from_environment(), Progress(to_stderr=True))
    home = tmp_path_factory.mktemp("helm")
    env = os.environ | {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    env.pop("KUBECONFIG", None)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [str(programs / "helm"), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """`render(replicas=2)`: the objects the chart becomes with these values."""

    def rendered(namespace: str = "ops", **values: Any) -> list[Object]:
        flags = [
            flag for key, value in values.items() for flag in ("--set-json", f"{key}={json.dumps(value)}")
        ]
        done = helm(
            "template", "rel", str(CHART), "--namespace", namespace, "--kube-version", KUBE_VERSION, *flags
        )
        assert done.returncode == 0, done.stderr
        return [obj for obj in yaml.safe_load_all(done.stdout) if obj]

    return rendered
