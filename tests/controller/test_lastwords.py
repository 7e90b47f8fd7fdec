"""What engines say when they end, as people have reported it, and what is made of it."""

from __future__ import annotations

import pytest

from llamaserver.api.conditions import Reason
from llamaserver.controller.lastwords import LONGEST_LINE, cause_of_death, death_by_exit_code

WORDS: list[tuple[str, Reason, str]] = [
    (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please "
        "try "
        "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
        Reason.OUT_OF_MEMORY_AT_START,
        "lower spec.engine.maxNumSeqs below 1024 or spec.engine.gpuMemoryUtilization",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.74 GiB. GPU 1 has a total capacity "
        "of "
        "23.57 GiB of which 605.88 MiB is free.",
        Reason.OUT_OF_MEMORY_AT_START,
        "maxModelLen or gpuMemoryUtilization",
    ),
    (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
        Reason.OUT_OF_MEMORY_AT_START,
        "use a larger accelerator",
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (262144), (36.0 GiB KV "
        "cache is "
        "needed, which is larger than the available KV cache memory (6.94 GiB). Based on the available "
        "memory, "
        "the estimated maximum model length is 50512. Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len` when initializing the engine.",
        Reason.KV_CACHE_TOO_SMALL,
        "lower spec.engine.maxModelLen (at most 50512 would fit)",
    ),
    (
        "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be "
        "stored in KV cache (2400). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`",
        Reason.KV_CACHE_TOO_SMALL,
        "(at most 2400 would fit)",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.",
        Reason.KV_CACHE_TOO_SMALL,
        "raise spec.engine.gpuMemoryUtilization",
    ),
    (
        "ValueError: Free memory on device cuda:0 (59.32/79.15 GiB) on startup is less than desired GPU "
        "memory "
        "utilization (0.9, 71.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
        "processes.",
        Reason.ACCELERATOR_MEMORY_IN_USE,
        "something else holds memory",
    ),
    (
        "ValueError: Available memory on node 0 (13.18/14.96 GiB) on startup is less than desired CPU memory "
        "utilization (0.92, 13.76 GiB).",
        Reason.ACCELERATOR_MEMORY_IN_USE,
        "lower spec.engine.gpuMemoryUtilization",
    ),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update "
        "your GPU "
        "driver",
        Reason.DRIVER_TOO_OLD,
        "spec.scheduling.nodeSelector",
    ),
    (
        "failed to create containerd task: OCI runtime create failed: runc create failed: error running "
        "hook #0: "
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9, please update your "
        "driver",
        Reason.DRIVER_TOO_OLD,
        "update the node's driver",
    ),
    (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was "
        "attempted "
        "on non supported HW",
        Reason.DRIVER_TOO_OLD,
        "an older CUDA",
    ),
    (
        "RuntimeError: Failed to infer device type, please set the environment variable",
        Reason.ACCELERATOR_NOT_FOUND,
        "spec.accelerator",
    ),
    (
        "RuntimeError: No CUDA GPUs are available",
        Reason.ACCELERATOR_NOT_FOUND,
        "spec.scheduling.runtimeClassName",
    ),
    (
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at "
        "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct.\n401 Client Error.",
        Reason.MODEL_ACCESS_DENIED,
        "spec.model.tokenSecretRef",
    ),
    (
        "huggingface_hub.utils._errors.GatedRepoError: 403 Client Error.\n\nCannot access gated repo for url "
        "https://huggingface.co/meta-llama/Meta-Llama-3-8B/resolve/main/config.json.\nAccess to model "
        "meta-llama/Meta-Llama-3-8B is restricted and you are not in the authorized list.",
        Reason.MODEL_ACCESS_DENIED,
        "ask for access",
    ),
    (
        "RepositoryNotFoundError: 401 Client Error.\n\nRepository Not Found for url: "
        "https://huggingface.co/api/"
        "models/meta-llama/Llama-9.\nIf you are trying to access a private or gated repo, make sure you are "
        "authenticated.",
        Reason.MODEL_NOT_FOUND,
        "correct spec.model.uri",
    ),
    (
        "OSError: meta-llama/Lama is not a local folder and is not a valid model identifier listed on "
        "'https://huggingface.co/models'",
        Reason.MODEL_NOT_FOUND,
        "a private repository looks the same",
    ),
    (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them "
        "in "
        "the cached files.",
        Reason.HUB_UNREACHABLE,
        "HF_ENDPOINT",
    ),
    (
        "ValueError: VLLM_PORT 'tcp://10.96.0.12:8000' appears to be a URI. This may be caused by a "
        "Kubernetes "
        "service discovery issue",
        Reason.PORT_VARIABLE_INVALID,
        "remove VLLM_PORT",
    ),
    (
        "ValueError: invalid literal for int() with base 10: 'tcp://10.96.0.12:8000'",
        Reason.PORT_VARIABLE_INVALID,
        "spec.engine.env",
    ),
    (
        "vllm serve: error: unrecognized arguments: --shutdown-timeout=120",
        Reason.ARGUMENT_REFUSED,
        "correct --shutdown-timeout=120 in spec.shutdown.drainTimeout, or use an image",
    ),
    (
        "vllm serve: error: argument --quantization/-q: invalid choice: 'fp9' (choose from 'fp8')",
        Reason.ARGUMENT_REFUSED,
        "correct --quantization/-q in spec.engine.quantization or spec.engine.extraArgs, or use an image",
    ),
    (
        "vllm serve: error: unrecognized arguments: --max-lora-rank=64",
        Reason.ARGUMENT_REFUSED,
        "correct --max-lora-rank=64 in spec.model.lora or",
    ),
    (
        "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', 'fp8')",
        Reason.ARGUMENT_REFUSED,
        "correct --kv-cache-dtype in spec.engine.extraArgs,",
    ),
    (
        "ValueError: Model architectures ['NewForCausalLM'] are not supported for now. Supported "
        "architectures: "
        "['LlamaForCausalLM']",
        Reason.MODEL_UNSUPPORTED,
        "newer vLLM",
    ),
    (
        "ValueError: User-specified max_model_len (200000) is greater than the derived max_model_len "
        "(max_position_embeddings=131072.0 in model's config.json).",
        Reason.ENGINE_SETTING_INVALID,
        "lower spec.engine.maxModelLen",
    ),
    (
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
        Reason.ENGINE_SETTING_INVALID,
        "spec.engine.tensorParallelSize",
    ),
    (
        "ValueError: The repository contains custom code which must be executed to correctly load the model.",
        Reason.ENGINE_SETTING_INVALID,
        "--trust-remote-code",
    ),
    (
        "HubUnreachableError: couldn't connect to 'https://hub.example/api/models/org/model/revision/main': "
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
        Reason.HUB_UNREACHABLE,
        "name the file by SSL_CERT_FILE in spec.engine.env",
    ),
    (
        "HubUnreachableError: what came of config.json is not what the hub announced (0123)",
        Reason.HUB_UNREACHABLE,
        "let the pods reach the hub",
    ),
    (
        "HubUnreachableError: couldn't connect to 'https://hub.example/api/models/org/model/revision/main': "
        "[Errno 111] Connection refused",
        Reason.HUB_UNREACHABLE,
        "set HF_HUB_OFFLINE=1 in spec.engine.env where all of the model is in the claim",
    ),
    (
        "OfflineModeIsEnabledError: HF_HUB_OFFLINE is set, and org/model is not in the cache",
        Reason.HUB_UNREACHABLE,
        "take HF_HUB_OFFLINE out of spec.engine.env",
    ),
    (
        "/usr/bin/python3: No module named llamaserver_tuner.download",
        Reason.STARTUP_FAILED,
        "upgrade the tuner image",
    ),
    (
        "/usr/bin/python3: Error while finding module specification for 'llamaserver_tuner.download' "
        "(ModuleNotFoundError: No module named 'llamaserver_tuner')",
        Reason.STARTUP_FAILED,
        "upgrade the tuner image",
    ),
    (
        "GatedRepoError: 403 Client Error from https://huggingface.co/org/model/resolve/0123/config.json: "
        "Access to model org/model is restricted and you are not in the authorized list.",
        Reason.MODEL_ACCESS_DENIED,
        "spec.model.tokenSecretRef",
    ),
    (
        "RefusedError: 401 Client Error from https://huggingface.co/api/models/org/model/revision/main: "
        "Invalid credentials in Authorization header",
        Reason.MODEL_ACCESS_DENIED,
        "put a valid one into the Secret of spec.model.tokenSecretRef",
    ),
    (
        "PermissionError: [Errno 13] Permission denied: '/var/cache/llamaserver/huggingface'",
        Reason.STARTUP_FAILED,
        "let user and group 65532 write to the claim",
    ),
    (
        "OSError: [Errno 30] Read-only file system: '/var/cache/llamaserver/huggingface'",
        Reason.STARTUP_FAILED,
        "let user and group 65532 write to the claim",
    ),
    (
        "OSError: [Errno 122] Disk quota exceeded: '/var/cache/llamaserver/huggingface/hub/tmp'",
        Reason.DISK_FULL,
        "a claim that is large enough",
    ),
    (
        "OSError: [Errno 28] No space left on device: '/var/cache/llamaserver/huggingface/hub/tmp'",
        Reason.DISK_FULL,
        "spec.model.cache",
    ),
    *(
        (said, Reason.STARTUP_FAILED, "tls.crt and tls.key of the Secret that spec.engine.tls names")
        for said in (
            "ssl.SSLError: [X509: KEY_VALUES_MISMATCH] key values mismatch (_ssl.c:3926)",
            "ssl.SSLError: [SSL] PEM lib (_ssl.c:3905)",
            "ssl.SSLError: [SSL: EE_KEY_TOO_SMALL] ee key too small (_ssl.c:3905)",
            "    ctx.load_cert_chain(certfile, keyfile, get_password)\n"
            "FileNotFoundError: [Errno 2] No such file or directory",
        )
    ),
]


@pytest.mark.parametrize(("said", "reason", "advice"), WORDS)
def test_what_was_said_names_the_cause_and_what_to_change(said: str, reason: Reason, advice: str) -> None:
    death = cause_of_death(said)
    assert death is not None
    assert death.reason is reason
    assert advice in death.advice
    assert death.line in said.replace("\n", " ") or "…" in death.line


@pytest.mark.parametrize(("said", "reason", "advice"), WORDS)
def test_it_is_found_among_what_a_log_says_around_it(said: str, reason: Reason, advice: str) -> None:
    before = "INFO 10-25 13:08:43 [core.py:96] Initializing a V1 LLM engine with config: model='m', "
    before += "trust_remote_code=True, dtype=torch.bfloat16\n"
    after = (
        "\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    )
    prefixed = "\n".join(f"(EngineCore_DP0 pid=223) ERROR 10-25 13:08:43 {line}" for line in said.split("\n"))
    death = cause_of_death(before + prefixed + after)
    assert death is not None
    assert death.reason is reason
    assert "Engine core initialization failed" not in death.line
    assert len(death.line) <= LONGEST_LINE


def test_the_error_is_quoted_and_not_the_code_that_raised_it() -> None:
    death = cause_of_death(
        '  File "huggingface_hub/_snapshot_download.py", line 382, in snapshot_download\n'
        "    raise LocalEntryNotFoundError(\n"
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder "
        "for the "
        "specified revision on the local disk and outgoing traffic has been disabled."
    )
    assert death is not None
    assert death.reason is Reason.HUB_UNREACHABLE
    assert death.line.startswith("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find")


@pytest.mark.parametrize(
    "said",
    [
        "",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "KeyError: 'rope_scaling'",
        "config: trust_remote_code=True, memory 40 GiB, model='meta-llama/Llama-3.1-8B'",
    ],
)
def test_what_names_no_cause_is_not_guessed_at(said: str) -> None:
    assert cause_of_death(said) is None


def test_a_long_line_is_cut_to_what_was_found_in_it() -> None:
    death = cause_of_death("x" * 5000 + " CUDA out of memory " + "y" * 5000)
    assert death is not None
    assert "out of memory" in death.line
    assert len(death.line) <= LONGEST_LINE


def test_an_exit_code_tells_something_or_nothing() -> None:
    assert "/dev/shm" in death_by_exit_code(135)
    assert "memory was short" in death_by_exit_code(137)
    assert "did not answer" in death_by_exit_code(143)
    assert death_by_exit_code(1) == death_by_exit_code(None) == ""
