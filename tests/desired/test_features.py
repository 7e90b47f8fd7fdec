"""Models from images, adapters, templates, parsers, speculation, keys: what each becomes in the pod."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from llamaserver.api import effective, parse

Object = dict[str, Any]
Make = Callable[..., Any]

ADAPTERS = [
    {"name": "sql", "uri": "pvc://adapters/text/sql"},
    {"name": "de", "uri": "hf://org/llama-de"},
    {"name": "fr", "uri": "pvc://adapters/fr"},
    {"name": "it", "uri": "oci://registry.example.com/adapters/it:1"},
    {"name": "es", "uri": "file:///opt/adapters/es"},
]

OFFLOADING = {
    "spec.accelerator": {"resourceName": "nvidia.com/gpu", "count": 1},
    "spec.engine.kvOffloading": {"size": "16Gi"},
    "spec.engine.resources": {"requests": {"memory": "2Ti"}},
}
"""The least that offloads."""


def after(args: list[str], flag: str, count: int) -> list[str]:
    start = args.index(flag) + 1
    return args[start : start + count]


@pytest.mark.parametrize(
    ("uri", "image", "path", "name"),
    [
        ("oci://ghcr.io/org/llama-8b:1.2", "ghcr.io/org/llama-8b:1.2", "/mnt/model", "llama-8b"),
        ("oci://ghcr.io/org/llama:1/models/8b", "ghcr.io/org/llama:1", "/mnt/model/models/8b", "8b"),
        ("oci://registry:5000/llama:1", "registry:5000/llama:1", "/mnt/model", "llama"),
        (
            f"oci://ghcr.io/org/llama@sha256:{'0' * 64}/w",
            f"ghcr.io/org/llama@sha256:{'0' * 64}",
            "/mnt/model/w",
            "w",
        ),
    ],
)
def test_a_model_in_an_image_is_mounted_as_a_volume(
    uri: str, image: str, path: str, name: str, pod: Make, changed: Make
) -> None:
    spec = pod({"spec.model.uri": uri})
    assert {"name": "model", "image": {"reference": image}} in spec["volumes"]
    container = spec["containers"][0]
    assert {"name": "model", "mountPath": "/mnt/model", "readOnly": True} in container["volumeMounts"]
    assert container["args"][0] == path
    assert effective(parse(changed({"spec.model.uri": uri})).spec).served_names == (name,)


class TestAdapters:
    """LoRA adapters beside the model."""

    def test_every_adapter_is_named_with_its_path(self, engine: Make) -> None:
        args = engine({"spec.model.lora": {"adapters": ADAPTERS}})["args"]
        assert "--enable-lora" in args
        assert [json.loads(word) for word in after(args, "--lora-modules", 5)] == [
            {"name": "sql", "path": "/mnt/adapters/0/text/sql"},
            {"name": "de", "path": "org/llama-de"},
            {"name": "fr", "path": "/mnt/adapters/0/fr"},
            {"name": "it", "path": "/mnt/adapters/1"},
            {"name": "es", "path": "/opt/adapters/es"},
        ]

    def test_a_claim_or_image_is_mounted_once_however_many_adapters_it_holds(self, pod: Make) -> None:
        spec = pod({"spec.model.lora": {"adapters": ADAPTERS}})
        carriers = [volume for volume in spec["volumes"] if volume["name"].startswith("adapter-")]
        assert carriers == [
            {"name": "adapter-0", "persistentVolumeClaim": {"claimName": "adapters", "readOnly": True}},
            {"name": "adapter-1", "image": {"reference": "registry.example.com/adapters/it:1"}},
        ]
        mounts = [m["mountPath"] for m in spec["containers"][0]["volumeMounts"] if "adapter" in m["name"]]
        assert mounts == ["/mnt/adapters/0", "/mnt/adapters/1"]

    @pytest.mark.parametrize(("count", "given", "at_once"), [(1, None, 1), (5, None, 5), (5, 2, 2)])
    def test_adapters_do_not_wait_for_each_other_unless_told_to(
        self, count: int, given: int | None, at_once: int, engine: Make
    ) -> None:
        """vLLM's own default holds a single adapter in a batch."""
        lora = {"adapters": ADAPTERS[:count], **({"maxLoras": given} if given else {})}
        assert f"--max-loras={at_once}" in engine({"spec.model.lora": lora})["args"]

    def test_many_adapters_do_not_all_take_memory_at_once(self, engine: Make) -> None:
        many = [{"name": f"a{number}", "uri": f"hf://org/a{number}"} for number in range(30)]
        assert "--max-loras=8" in engine({"spec.model.lora": {"adapters": many}})["args"]


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({"spec.engine.quantization": "fp8"}, ["--quantization=fp8"]),
        (
            {"spec.engine.toolCallParser": "llama3_json"},
            ["--enable-auto-tool-choice", "--tool-call-parser=llama3_json"],
        ),
        ({"spec.engine.reasoningParser": "deepseek_r1"}, ["--reasoning-parser=deepseek_r1"]),
        (
            {"spec.engine.speculativeConfig": {"method": "ngram", "numSpeculativeTokens": 4}},
            ['--speculative-config={"method":"ngram","num_speculative_tokens":4}'],
        ),
        (
            {"spec.model.chatTemplate": {"configMapKeyRef": {"name": "t", "key": "v3.jinja"}}},
            ["--chat-template=/etc/llamaserver/chat-template/template.jinja"],
        ),
    ],
)
def test_a_field_becomes_its_flags_and_nothing_else_changes(
    changes: Object, arguments: list[str], engine: Make
) -> None:
    made, plain = engine(changes)["args"], engine()["args"]
    assert [word for word in made if word not in plain] == arguments
    assert [word for word in made if word in plain] == plain


def test_a_chat_template_is_found_where_the_engine_looks_for_it(pod: Make) -> None:
    spec = pod({"spec.model.chatTemplate": {"configMapKeyRef": {"name": "t", "key": "v3.jinja"}}})
    (volume,) = (one for one in spec["volumes"] if one["name"] == "chat-template")
    assert volume["configMap"] == {"name": "t", "items": [{"key": "v3.jinja", "path": "template.jinja"}]}
    (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "chat-template")
    assert mount["mountPath"] == "/etc/llamaserver/chat-template"


def test_an_api_key_reaches_the_engine_by_reference_alone(engine: Make) -> None:
    container = engine({"spec.engine.apiKeySecretRef": {"name": "keys"}})
    (variable,) = (entry for entry in container["env"] if entry["name"] == "VLLM_API_KEY")
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "VLLM_API_KEY"}}
    assert not any("api-key" in word for word in container["args"])


def test_a_variable_may_come_from_a_field_of_the_pod(engine: Make) -> None:
    source = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    container = engine({"spec.engine.env": [{"name": "NODE_NAME", "valueFrom": source}]})
    assert {"name": "NODE_NAME", "valueFrom": source} in container["env"]


class TestOffloading:
    """KV cache in the host's memory."""

    @pytest.mark.parametrize(
        ("size", "gib"),
        [
            ("16Gi", "16"),
            ("512Mi", "0.5"),
            ("16G", "14.901161"),
            ("1.5Ti", "1536"),
            (17179869184, "16"),
            ("1Mi", "0.000976"),
        ],
    )
    def test_the_size_is_given_in_gib_and_never_more_than_was_written(
        self, size: str | int, gib: str, engine: Make
    ) -> None:
        args = engine(OFFLOADING | {"spec.engine.kvOffloading": {"size": size}})["args"]
        assert f"--kv-offloading-size={gib}" in args
        assert "--kv-offloading-backend=native" in args, "0.14 is the first release that has this default"

    @pytest.mark.parametrize(
        ("extra", "shared", "told"),
        [
            (["-pp", "2"], "20Gi", "16Gi"),
            (["-dp", "2"], "36Gi", "32Gi"),
            (["-dp", "4", "-dpl", "2"], "36Gi", "32Gi"),
        ],
    )
    def test_shared_memory_has_room_for_it_once_an_engine(
        self, extra: list[str], shared: str, told: str, pod: Make, changed: Make
    ) -> None:
        """Ranks of one engine share what lies there; data-parallel ranks are engines of their own."""
        local = {
            "spec.accelerator": {"resourceName": "nvidia.com/gpu", "count": 2},
            "spec.engine.extraArgs": extra,
        }
        given = OFFLOADING | local
        volume = next(one for one in pod(given)["volumes"] if one["name"] == "shm")
        assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": shared}
        status = effective(parse(changed(given)).spec).to_status(150).to_dict()
        assert status["kvOffloading"] == told

    def test_without_it_nothing_is_said_of_it(self, engine: Make, changed: Make) -> None:
        assert not any("offload" in argument for argument in engine()["args"])
        assert "kvOffloading" not in effective(parse(changed({})).spec).to_status(150).to_dict()
