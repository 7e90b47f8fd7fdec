"""The schema for checks without a cluster: a real kubeconform takes what is right and names mistakes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cluster import binaries
from cluster.progress import Progress
from cluster.settings import Settings
from harness.manifests import llamaserver
from llamaserver.api.jsonschema import FILE_NAME
from llamaserver.cli.main import main

Object = dict[str, Any]
Check = Callable[..., dict[str, str]]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """`check(objects or files)`: what kubeconform says against those that it does not take, by name."""
    programs = binaries.ensure(Settings.from_environment(), Progress(to_stderr=True))
    schemas = tmp_path_factory.mktemp("schemas")
    made = CliRunner().invoke(main, ["crd", "--json-schema", "--output", str(schemas)])
    assert (schemas / FILE_NAME).exists(), made.output
    location = f"{schemas}/{{{{.ResourceKind}}}}_{{{{.ResourceAPIVersion}}}}.json"

    def run(*given: Object | Path) -> dict[str, str]:
        files = [str(one) for one in given if isinstance(one, Path)]
        objects = [one for one in given if not isinstance(one, Path)]
        flags = ["-strict", "-verbose", "-output=json", "-ignore-missing-schemas"]
        done = subprocess.run(
            [programs / "kubeconform", *flags, f"-schema-location={location}", *(files or ["-"])],
            input=yaml.safe_dump_all(objects),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        found = json.loads(done.stdout)["resources"]
        judged = [one for one in found if one["status"] != "statusSkipped"]
        assert len([one for one in judged if one["kind"] == "LlamaServer"]) >= 1, done.stdout
        return {one["name"]: one["msg"] for one in judged if one["status"] != "statusValid"}

    return run


def test_every_example_is_valid(check: Check) -> None:
    assert check(*sorted(EXAMPLES.glob("*.yaml"))) == {}


def test_what_the_demo_serves_is_valid(check: Check) -> None:
    objective = {"interTokenLatency": {"target": "20ms"}}
    kwargs: Object = {"image": "x:y", "runtime_class": "vllm", "tuning": "Auto", "objective": objective}
    assert check(llamaserver("chat", "ns", **kwargs)) == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"spec.engine.maxNumSeq": 64}, "/spec/engine"),
        ({"spec.engine.maxNumSeqs": "64"}, "/spec/engine/maxNumSeqs"),
        ({"spec.engine.gpuMemoryUtilization": 0}, "/spec/engine/gpuMemoryUtilization"),
        ({"spec.engine.gpuMemoryUtilization": 1.1}, "/spec/engine/gpuMemoryUtilization"),
        ({"spec.tuning.mode": "auto"}, "/spec/tuning/mode"),
        ({"spec.model": None}, "model"),
        ({"spec.podTemplate.spec.hostNetwork": True}, "/spec/podTemplate/spec"),
        ({"spec.engine.resources.limits": {"cpu": [1]}}, "/spec/engine/resources/limits"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    changes: Object, says: str, check: Check, changed: Callable[..., Object]
) -> None:
    assert says in check(changed(changes))["chat"]


def test_content_that_kubernetes_knows_better_is_left_to_it(
    check: Check, changed: Callable[..., Object]
) -> None:
    volumes = [{"name": "v", "csi": {"driver": "d", "volumeAttributes": {"a": "b"}}}]
    limits = {"cpu": 8, "memory": "48Gi"}
    given = {"spec.podTemplate.spec.volumes": volumes, "spec.engine.resources.limits": limits}
    assert check(changed(given)) == {}
