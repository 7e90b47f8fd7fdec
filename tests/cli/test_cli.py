"""The command line: what can be had without a cluster, and how mistakes are answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from llamaserver.api import reference
from llamaserver.api.crd import FILE_NAME, crd_yaml
from llamaserver.cli.main import main

SERVER = """\
apiVersion: llamaserver.dev/v1alpha1
kind: LlamaServer
metadata:
  name: chat
spec:
  model: {uri: hf://org/model}
  engine: {image: "vllm/vllm-openai:v0.32.0"}
"""


def call(*args: str, stdin: str = "", env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(main, list(args), input=stdin, env=env)


def test_the_crd_is_printed_or_written(tmp_path: Path) -> None:
    assert call("crd").output == crd_yaml()
    result = call("crd", "--output", str(tmp_path / "a"), "--output", str(tmp_path / "b"))
    assert result.exit_code == 0
    assert (tmp_path / "a" / FILE_NAME).read_text() == (tmp_path / "b" / FILE_NAME).read_text() == crd_yaml()


def test_the_crd_as_a_page_to_read(tmp_path: Path) -> None:
    assert call("crd", "--markdown").output == reference.reference()
    assert call("crd", "--markdown", "--output", str(tmp_path)).exit_code == 0
    assert (tmp_path / reference.FILE_NAME).read_text() == reference.reference()


def test_render_shows_what_a_server_becomes() -> None:
    result = call("render", "-", "--namespace", "team", "--tuner-image", "mirror/tuner:1", stdin=SERVER)
    assert result.exit_code == 0, result.output
    objects = {obj["kind"]: obj for obj in yaml.safe_load_all(result.output)}
    assert set(objects) == {"ConfigMap", "Service", "Deployment"}
    assert {obj["metadata"]["namespace"] for obj in objects.values()} == {"team"}
    assert "mirror/tuner:1" in str(objects["Deployment"])
    assert all("ownerReferences" not in obj["metadata"] for obj in objects.values())


def test_render_takes_what_the_operators_pod_is_told_but_its_namespace() -> None:
    env = {"LLAMASERVER_NAMESPACE": "system", "LLAMASERVER_TUNER_IMAGE": "mirror/tuner:1"}
    result = call("render", "-", stdin=SERVER, env=env)
    objects = list(yaml.safe_load_all(result.output))
    assert {obj["metadata"]["namespace"] for obj in objects} == {"default"}
    assert any("mirror/tuner:1" in str(obj) for obj in objects)


def test_render_takes_every_server_of_a_file_and_passes_over_the_rest() -> None:
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
    result = call("render", "-", stdin=f"{SERVER}---\n{other}---\n{SERVER.replace('chat', 'batch')}")
    names = [
        obj["metadata"]["name"] for obj in yaml.safe_load_all(result.output) if obj["kind"] == "Deployment"
    ]
    assert names == ["chat", "batch"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SERVER.replace("hf://org/model", "model"), "spec.model.uri"),
        (SERVER + "  replicas: 3\n", "spec.replicas"),
        ("kind: Pod\n", "no LlamaServer"),
        ("a: [", "no YAML"),
    ],
)
def test_render_names_the_field_and_the_cure(text: str, says: str) -> None:
    result = call("render", "-", stdin=text)
    assert result.exit_code == 1
    assert says in result.output


def test_without_a_cluster_run_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nothing")
    )
    result = call("run", "--http-host", "127.0.0.1", "--http-port", "0", env={"HOME": str(tmp_path)})
    assert result.exit_code == 1
    assert "--kubeconfig" in result.output


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--tick-seconds", "0"),
        ("--tick-seconds", "soon"),
        ("--tick-seconds", "15s"),
        ("--lease-seconds", "1"),
        ("--tuner-delivery", "Mail"),
        ("--prometheus-url", "prometheus:9090"),
        ("--prometheus-token-file", "/nowhere"),
    ],
)
def test_a_value_that_cannot_be_is_refused(option: str, value: str) -> None:
    assert call("run", option, value).exit_code == 2


def test_what_is_for_a_prometheus_needs_one_and_no_password(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    result = call("run", "--prometheus-token-file", str(token))
    assert result.exit_code == 2
    assert "name that with --prometheus-url" in result.output
    result = call("run", "--prometheus-url", "http://me:secret@prometheus:9090")
    assert result.exit_code == 2
    assert "--prometheus-token-file" in result.output


@pytest.mark.parametrize("command", [[], ["run"], ["crd"], ["render"], ["simulate"], ["plan"]])
def test_help_is_worth_reading(command: list[str]) -> None:
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert len(result.output) > 300
