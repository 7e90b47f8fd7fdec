"""An engine that serves TLS: the certificate in its pods, and everything that asks it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llamaserver.api import parse
from llamaserver.desired import rollout_reason

Object = dict[str, Any]
Make = Callable[..., Any]

TLS = {"spec.engine.tls": {"secretName": "chat-tls"}}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
FOLDER = "/etc/llamaserver/tls"

PYTHON = os.environ.get("LLAMASERVER_VLLM_PYTHON", "")
PROGRAM = Path(__file__).resolve().parent / "check_refresh.py"


def secrets(spec: Object) -> list[Object]:
    """The Secrets among a pod's volumes."""
    return [volume for volume in spec["volumes"] if "secret" in volume]


def test_the_engine_is_given_certificate_and_key_of_the_secret(pod: Make) -> None:
    spec = pod(TLS)
    engine = spec["containers"][0]
    assert f"--ssl-certfile={FOLDER}/tls.crt" in engine["args"]
    assert f"--ssl-keyfile={FOLDER}/tls.key" in engine["args"]
    (volume,) = secrets(spec)
    source = volume["secret"]
    assert source["secretName"] == "chat-tls"
    assert [(item["key"], item["path"]) for item in source["items"]] == [("tls.crt",) * 2, ("tls.key",) * 2]
    mount = {"name": volume["name"], "mountPath": FOLDER, "readOnly": True}
    assert mount in engine["volumeMounts"]


def test_the_key_can_be_read_by_the_engines_group_and_by_nobody_else(pod: Make) -> None:
    spec = pod(TLS)
    (volume,) = secrets(spec)
    assert volume["secret"]["defaultMode"] == 0o440
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]


def test_no_other_container_has_the_key(pod: Make) -> None:
    spec = pod(
        {
            **TLS,
            "spec.model.cache.persistentVolumeClaim.claimName": "models",
            "spec.podTemplate.spec.containers": [{"name": "proxy", "image": "p"}],
        }
    )
    (volume,) = secrets(spec)
    having = [
        container["name"]
        for container in (*spec["initContainers"], *spec["containers"])
        if volume["name"] in {mount["name"] for mount in container.get("volumeMounts", ())}
    ]
    assert having == ["vllm"]


def test_a_missing_secret_is_told_by_the_first_container_that_runs_the_engines_image(pod: Make) -> None:
    """The kubelet tells of a variable in the pod's status, and of a volume nowhere that is read."""
    spec = pod({**TLS, "spec.model.cache.persistentVolumeClaim.claimName": "models"})
    (volume,) = secrets(spec)
    assert volume["secret"]["optional"] is True, "or the pod waits for the volume, and says nothing"
    download = next(one for one in spec["initContainers"] if one["name"] == "model-download")
    for container in (download, spec["containers"][0]):
        keys = [
            entry["valueFrom"]["secretKeyRef"]
            for entry in container["env"]
            if "valueFrom" in entry and "secretKeyRef" in entry["valueFrom"]
        ]
        assert keys == [{"name": "chat-tls", "key": "tls.crt"}], "the certificate, and never the key"


def test_probes_ask_by_tls_and_by_plain_http_without(engine: Make) -> None:
    for changes, port, scheme in ((TLS, "https", "HTTPS"), ({}, "http", None)):
        container = engine(changes)
        assert [(one["name"], one["containerPort"]) for one in container["ports"]] == [(port, 8000)]
        for probe in PROBES:
            asked = container[probe]["httpGet"]
            assert (asked["port"], asked.get("scheme"), asked["path"]) == (port, scheme, "/health")


def test_the_service_finds_each_pod_by_the_name_of_its_port(built: Make) -> None:
    """Pods from before a rollout to TLS are found at port 80 until the last has gone, and new ones never."""
    ports = {
        port["name"]: (port["port"], port["targetPort"], port["appProtocol"])
        for port in built(TLS)["Service"]["spec"]["ports"]
    }
    assert ports == {"https": (443, "https", "https"), "http": (80, "http", "http")}
    (plain,) = built()["Service"]["spec"]["ports"]
    assert plain["name"] == "http"


def test_without_it_the_pods_are_as_they_were(pod: Make) -> None:
    spec = pod()
    assert secrets(spec) == []
    assert "ssl" not in json.dumps(spec)
    assert "WATCHFILES" not in json.dumps(spec)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, TLS, 'spec.engine.tls: (absent) -> {"secretName": "chat-tls"}'),
        (TLS, {"spec.engine.tls": {"secretName": "b"}}, "spec.engine.tls.secretName: chat-tls -> b"),
        (TLS, {}, 'spec.engine.tls: {"secretName": "chat-tls"} -> (absent)'),
    ],
)
def test_a_rollout_for_it_says_so(
    before: Object, after: Object, words: str, built: Make, changed: Make
) -> None:
    old, new = built(before)["Deployment"], built(after)["Deployment"]
    specs = [parse(changed(changes)).spec.to_dict() for changes in (before, after)]
    assert rollout_reason(old, new, *specs) == words


@pytest.mark.parametrize(
    ("tag", "refreshed"), [("v0.7.3", False), ("v0.8.0", True), ("v0.32.0", True), ("latest", True)]
)
def test_a_renewed_certificate_is_waited_for_where_the_release_can(
    tag: str, refreshed: bool, engine: Make
) -> None:
    args = engine({**TLS, "spec.engine.image": f"vllm/vllm-openai:{tag}"})["args"]
    assert ("--enable-ssl-refresh" in args) is refreshed


def test_how_often_it_is_looked_for_may_be_changed(engine: Make) -> None:
    own = {"name": "WATCHFILES_POLL_DELAY_MS", "value": "60000"}
    entries = engine({**TLS, "spec.engine.env": [own]})["env"]
    assert [entry for entry in entries if entry["name"] == own["name"]] == [own]


@pytest.mark.skipif(not PYTHON, reason="LLAMASERVER_VLLM_PYTHON does not name an environment with vLLM")
def test_vllm_takes_up_every_renewal_of_a_mounted_secret(engine: Make, tmp_path: Path) -> None:
    """By its own means it sees the first one alone, for the kubelet turns a link to new files."""
    given = {entry["name"]: entry["value"] for entry in engine(TLS)["env"] if "value" in entry}
    watching = {name: value for name, value in given.items() if name.startswith("WATCHFILES_")}
    assert watching
    quick = watching | {"WATCHFILES_POLL_DELAY_MS": "200"}
    done = subprocess.run(
        [PYTHON, "-W", "ignore", str(PROGRAM), str(tmp_path)],
        env={**os.environ, "VLLM_LOGGING_LEVEL": "CRITICAL", "VLLM_NO_USAGE_STATS": "1", **quick},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["renewal 1", "renewal 2", "renewal 3"]
