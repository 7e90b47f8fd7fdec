"""The contract with vLLM: its own parser understands what is rendered, and knows the flags that are managed.

vLLM is never installed beside the operator: LLAMASERVER_VLLM_PYTHON names the interpreter of an environment
that has it; `make test` builds one and sets the variable.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from llamaserver.api.crd import crd
from llamaserver.api.features import TWINS, LoRASpec
from llamaserver.api.managed import MANAGED, managed_flag
from llamaserver.desired.arguments import LATENCY_BOUNDARIES_MS

Object = dict[str, Any]
Make = Callable[..., Any]

PYTHON = os.environ.get("LLAMASERVER_VLLM_PYTHON", "")
PROGRAM = Path(__file__).resolve().parent / "check_arguments.py"

ROOT = Path(__file__).resolve().parents[2]
BUCKETS = re.findall(r"--custom-histogram-buckets=(\{.*?\})", (ROOT / "docs" / "tuner.md").read_text())
"""What the documentation says to write into extraArgs."""

EVERYTHING = {
    "spec.model.revision": "main",
    "spec.model.servedNames": ["a", "b"],
    "spec.engine.maxNumSeqs": 64,
    "spec.engine.maxNumBatchedTokens": 1024,
    "spec.engine.maxModelLen": 4096,
    "spec.accelerator": {"resourceName": "nvidia.com/gpu", "count": 2},
    "spec.engine.tensorParallelSize": 2,
    "spec.engine.gpuMemoryUtilization": 0.85,
    "spec.engine.kvOffloading": {"size": "24Gi"},
    "spec.engine.resources": {"requests": {"memory": "64Gi"}},
    "spec.engine.extraArgs": ["--enforce-eager"],
    "spec.engine.tls": {"secretName": "chat-tls"},
    "spec.engine.quantization": "fp8",
    "spec.engine.toolCallParser": "llama3_json",
    "spec.engine.reasoningParser": "deepseek_r1",
    "spec.engine.speculativeConfig": {
        "method": "ngram",
        "model": "org/draft",
        "numSpeculativeTokens": 4,
        "promptLookupMax": 5,
        "promptLookupMin": 2,
    },
    "spec.model.chatTemplate": {"configMapKeyRef": {"name": "t", "key": "k"}},
    "spec.model.lora": {
        "adapters": [{"name": "sql,v=2", "uri": "pvc://adapters/sql"}, {"name": "de", "uri": "hf://org/de"}],
        "maxLoras": 2,
        "maxLoraRank": 32,
        "maxCpuLoras": 4,
    },
    "spec.tuning.numSeqs.max": 32,
    "spec.shutdown.drainTimeout": "90s",
}
"""Every field that shows in the arguments, and what they ask for."""

BESIDE = {
    "spec.model.tokenSecretRef": {"name": "t"},
    "spec.engine.image": "vllm/vllm-openai:v0.32.1",
    "spec.engine.imagePullPolicy": "Always",
    "spec.engine.env": [{"name": "A", "value": "1"}],
    "spec.engine.plugins": ["mine"],
    "spec.engine.apiKeySecretRef": {"name": "k"},
    "spec.engine.resources": {"limits": {"memory": "1Gi"}},
}
"""Fields of the model and of the engine that reach it by other ways."""

WHERE = {"spec.model.cache.persistentVolumeClaim": {"claimName": "c"}}
"""Fields that say where the model is, which is the first argument."""

RANKS = get_args(get_args(LoRASpec.model_fields["max_lora_rank"].annotation)[0])


def test_everything_is_every_field_of_the_model_and_the_engine(engine: Make) -> None:
    """So that a new one cannot be forgotten: it has to be given above, or to change no argument."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    fields = {f"spec.{group}.{name}" for group in ("model", "engine") for name in schema[group]["properties"]}
    given = {".".join(path.split(".")[:3]) for path in (*EVERYTHING, *BESIDE, *WHERE)}
    assert fields - given == {"spec.model.uri"}
    for path, value in BESIDE.items():
        assert engine({path: value})["args"] == engine()["args"], path
    assert engine(WHERE)["args"][1:] == engine()["args"][1:]


def test_everything_has_every_flag_that_can_be_rendered(engine: Make) -> None:
    written = set(
        re.findall(r'"(--[a-z-]+)', (ROOT / "operator/llamaserver/desired/arguments.py").read_text())
    )
    assert written - {word.partition("=")[0] for word in engine(EVERYTHING)["args"]} == set()


@pytest.mark.skipif(not PYTHON, reason="LLAMASERVER_VLLM_PYTHON does not name an environment with vLLM")
def test_vllm_understands_what_is_rendered_and_knows_what_is_managed(engine: Make) -> None:
    """One process for all: importing vLLM takes half a minute."""
    ranks = [engine({**EVERYTHING, "spec.model.lora.maxLoraRank": rank})["args"] for rank in RANKS]
    own = ["m", "--custom-histogram-buckets={}", *(f"--custom-histogram-buckets={b}" for b in BUCKETS)]
    argument_lists = [engine(EVERYTHING)["args"], engine()["args"], ["m", "--max-num-se=7"], own, *ranks]
    quiet = {"VLLM_LOGGING_LEVEL": "CRITICAL", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [PYTHON, "-W", "ignore", str(PROGRAM)],
        input=json.dumps(argument_lists),
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    full, least, abbreviated, overridden, *ranked = found["answers"]
    assert overridden["custom_histogram_buckets"] == json.loads(BUCKETS[-1])
    assert [one.get("max_lora_rank") for one in ranked] == [*RANKS]
    assert full == {
        "model_tag": "meta-llama/Llama-3.1-8B-Instruct",
        "revision": "main",
        "served_model_name": ["a", "b"],
        "port": 8000,
        "ssl_certfile": "/etc/llamaserver/tls/tls.crt",
        "ssl_keyfile": "/etc/llamaserver/tls/tls.key",
        "enable_ssl_refresh": True,
        "max_num_seqs": 64,
        "max_num_active_seqs": None,
        "max_num_batched_tokens": 1024,
        "max_model_len": 4096,
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.85,
        "kv_offloading_size": 24.0,
        "kv_offloading_backend": "native",
        "shutdown_timeout": 90,
        "disable_access_log_for_endpoints": "/health,/metrics,/ping,/llamaserver/v1/snapshot",
        "quantization": "fp8",
        "enable_auto_tool_choice": True,
        "tool_call_parser": "llama3_json",
        "reasoning_parser": "deepseek_r1",
        "speculative_config": {
            "method": "ngram",
            "model": "org/draft",
            "num_speculative_tokens": 4,
            "prompt_lookup_max": 5,
            "prompt_lookup_min": 2,
        },
        "chat_template": "/etc/llamaserver/chat-template/template.jinja",
        "enable_lora": True,
        "lora_modules": [
            {"name": "sql,v=2", "path": "/mnt/adapters/0/sql"},
            {"name": "de", "path": "org/de"},
        ],
        "max_loras": 2,
        "max_lora_rank": 32,
        "max_cpu_loras": 4,
        "enforce_eager": True,
        "custom_histogram_buckets": {"inter_token_latency": [edge / 1000 for edge in LATENCY_BOUNDARIES_MS]},
    }
    emitted = {word.partition("=")[0] for word in engine(EVERYTHING)["args"] if word.startswith("--")}
    assert emitted - set(found["options"]) == set()
    twins = {flag for twin in TWINS for flag in twin.flags}
    assert twins - set(found["options"]) == set(), "a flag that a field stands for and that does not exist"
    assert set(found["speculative"]) >= set(full["speculative_config"])
    assert (least["max_num_seqs"], least["max_num_active_seqs"]) == (256, None)
    assert abbreviated["max_num_seqs"] == 7, "vLLM takes abbreviations, so they must be refused too"

    offloading = found["offloading"]
    assert offloading == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "cpu_bytes_to_use": 24 * (1 << 30),
    }, "the size is that of all ranks together"

    secrets = {"spec.model.tokenSecretRef": {"name": "t"}, "spec.engine.apiKeySecretRef": {"name": "k"}}
    variables = {entry["name"] for entry in engine(secrets)["env"] if entry["name"].startswith("VLLM_")}
    assert variables - set(found["variables"]) == set(), "a variable that vLLM does not read"

    managed = {flag for entry in MANAGED for flag in entry.flags}
    assert managed - set(found["options"]) == set(), "a flag that is refused and does not exist"
    refused = {option for option in found["options"] if managed_flag(option) is not None}
    assert refused == managed, "a flag of vLLM's that is refused by accident"
