"""The arguments of `vllm serve`. The image's entrypoint is `vllm serve` itself, so that vLLM is PID 1 and
sees SIGTERM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.managed import flag_name
from llamaserver.api.model import Scheme, Source
from llamaserver.api.names import ENGINE_PORT
from llamaserver.api.server import LlamaServerSpec
from llamaserver.desired.release import ACCESS_LOG_FILTER_SINCE, Release
from llamaserver.desired.shutdown import Shutdown

MODEL_MOUNT: Final = "/mnt/model"
"""Where the claim of a pvc:// model is mounted, read-only."""

_ACCESS_LOG: Final = "--disable-access-log-for-endpoints"
_QUIET_PATHS: Final = "/health,/metrics,/ping,/llamaserver/v1/snapshot"
"""What probes and scrapes ask every few seconds, which would drown the log of what users ask."""


def arguments(
    spec: LlamaServerSpec, effective: EffectiveSpec, release: Release, shutdown: Shutdown
) -> list[str]:
    """The model first, as `vllm serve` wants it, then our flags in a fixed order, then the user's own."""
    return [*_ours(spec, effective, release, shutdown), *(spec.engine.extra_args or ())]


def model_argument(source: Source) -> str:
    """What vLLM loads: a repository, or a directory inside the container."""
    return f"{MODEL_MOUNT}/{source.path}" if source.scheme is Scheme.PVC else source.path


def _ours(
    spec: LlamaServerSpec, effective: EffectiveSpec, release: Release, shutdown: Shutdown
) -> Iterator[str]:
    engine = spec.engine
    yield model_argument(effective.source)
    if spec.model.revision is not None:
        yield f"--revision={spec.model.revision}"
    yield from ("--served-model-name", *effective.served_names)
    yield f"--port={ENGINE_PORT}"
    yield f"--max-num-seqs={effective.max_num_seqs}"
    yield f"--max-num-batched-tokens={effective.max_num_batched_tokens}"
    if engine.max_model_len is not None:
        yield f"--max-model-len={engine.max_model_len}"
    yield f"--tensor-parallel-size={effective.tensor_parallel_size}"
    if engine.gpu_memory_utilization is not None:
        yield f"--gpu-memory-utilization={engine.gpu_memory_utilization:g}"
    if shutdown.drain is not None:
        yield f"--shutdown-timeout={shutdown.drain}"
    given = {flag_name(argument) for argument in engine.extra_args or ()}
    if release.has(ACCESS_LOG_FILTER_SINCE) and _ACCESS_LOG not in given:
        yield f"{_ACCESS_LOG}={_QUIET_PATHS}"
