"""The contract with vLLM: its own parser understands what is rendered, and knows the flags that are managed.

vLLM is never installed beside the operator: LLAMASERVER_VLLM_PYTHON names the interpreter of an environment
that has it; `make test` builds one and sets the variable.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llamaserver.api.managed import MANAGED, managed_flag

Object = dict[str, Any]
Make = Callable[..., Any]

PYTHON = os.environ.get("LLAMASERVER_VLLM_PYTHON", "")
PROGRAM = Path(__file__).resolve().parent / "check_arguments.py"

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="LLAMASERVER_VLLM_PYTHON does not name an environment with vLLM"
)


EVERYTHING = {
    "spec.model.revision": "main",
    "spec.model.servedNames": ["a", "b"],
    "spec.engine.maxNumSeqs": 64,
    "spec.engine.maxNumBatchedTokens": 1024,
    "spec.engine.maxModelLen": 4096,
    "spec.engine.gpuMemoryUtilization": 0.85,
    "spec.engine.extraArgs": ["--enforce-eager"],
    "spec.tuning.numSeqs.max": 32,
    "spec.shutdown.drainTimeout": "90s",
}


def test_vllm_understands_what_is_rendered_and_knows_what_is_managed(engine: Make) -> None:
    """One process for all: importing vLLM takes half a minute."""
    argument_lists = [engine(EVERYTHING)["args"], engine()["args"], ["m", "--max-num-se=7"]]
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
    full, least, abbreviated = found["answers"]
    assert full == {
        "model_tag": "meta-llama/Llama-3.1-8B-Instruct",
        "revision": "main",
        "served_model_name": ["a", "b"],
        "port": 8000,
        "max_num_seqs": 64,
        "max_num_active_seqs": None,
        "max_num_batched_tokens": 1024,
        "max_model_len": 4096,
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.85,
        "shutdown_timeout": 90,
        "disable_access_log_for_endpoints": "/health,/metrics,/ping,/llamaserver/v1/snapshot",
    }
    assert (least["max_num_seqs"], least["max_num_active_seqs"]) == (256, None)
    assert abbreviated["max_num_seqs"] == 7, "vLLM takes abbreviations, so they must be refused too"

    managed = {flag for entry in MANAGED for flag in entry.flags}
    assert managed - set(found["options"]) == set(), "a flag that is refused and does not exist"
    refused = {option for option in found["options"] if managed_flag(option) is not None}
    assert refused == managed, "a flag of vLLM's that is refused by accident"
