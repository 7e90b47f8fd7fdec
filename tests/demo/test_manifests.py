"""The resources of the demo and the scenarios are ones the operator accepts; its pods keep to the rules."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from demo.flow import CHAT, LONG
from demo.load import requests
from demo.settings import Settings
from demo.settings import parse as settings_of
from demo.toolbox import files, pods
from harness.manifests import (
    BLOCK_TOKENS,
    CEILING,
    CPU_SHARE,
    KV_BLOCKS,
    MAX_MODEL_LEN,
    llamaserver,
    namespace,
    script_pod,
    slo,
)
from llamaserver.api import parse


@pytest.fixture
def settings() -> Settings:
    return settings_of([])


@pytest.mark.parametrize("tuning", ["Off", "Auto"])
@pytest.mark.parametrize("budget", [None, "Fixed", "Auto"])
@pytest.mark.parametrize("objective", [None, slo(20)])
def test_the_operator_accepts_the_demos_resource(
    settings: Settings, tuning: str, budget: str | None, objective: dict | None
) -> None:
    resource = llamaserver(
        "chat",
        settings.namespace,
        image=settings.engine_image,
        runtime_class=settings.runtime_class,
        tuning=tuning,
        prefill_budget=budget,
        objective=objective,
    )
    server = parse(resource)
    assert server.spec.engine.max_num_seqs == CEILING


def test_the_chat_load_fits_the_cache_at_the_ceiling_and_the_long_one_does_not() -> None:
    tokens = KV_BLOCKS * BLOCK_TOKENS
    mean_chat = sum(CHAT.prompt) / 2 + sum(CHAT.output) / 2 / 2
    assert CEILING * mean_chat < 0.75 * tokens
    assert CEILING * (LONG.prompt[0] + LONG.output[0]) > 2 * tokens
    assert LONG.prompt[1] + LONG.output[1] <= MAX_MODEL_LEN


def test_every_pod_is_restricted_and_asks_for_cpu(settings: Settings) -> None:
    url = "http://10.0.0.1:80"
    for spec in (pod["spec"] for pod in pods(settings, url)):
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "cpu" in container["resources"]["requests"]
        assert spec["runtimeClassName"] == "vllm"
    complete = dataclasses.replace(settings, runtime_class=None)
    assert all("runtimeClassName" not in pod["spec"] for pod in pods(complete, url))


def test_scripts_and_trace_fit_a_configmap(settings: Settings) -> None:
    found = files(settings, requests(CHAT))
    assert {"recorder.py", "bench.py", "streams.py", "trace.jsonl"} == set(found["data"])
    # `kubectl apply` writes the whole object into an annotation.
    assert len(json.dumps(found)) < 262_144


def test_what_the_demo_runs_beside_the_engine_meets_the_level_of_its_namespace(api_server: Any) -> None:
    assert api_server.create(namespace("level")).status == 201
    content = script_pod("image", None, ["true"], "files", CPU_SHARE)
    metadata = {"name": "load", "namespace": "level"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": content}
    admitted = api_server.create(pod)
    assert admitted.status == 201, admitted.message
    pod["metadata"], pod["spec"] = {**metadata, "name": "root"}, {**content, "hostNetwork": True}
    assert api_server.create(pod).status == 403, "the level is enforced"
