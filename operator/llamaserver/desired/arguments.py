"""The arguments of `vllm serve`. The image's entrypoint is `vllm serve` itself, so that vLLM is PID 1 and
sees SIGTERM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.features import LoRASpec
from llamaserver.api.managed import flag_name
from llamaserver.api.names import ENGINE_PORT
from llamaserver.api.release import (
    ACCESS_LOG_FILTER_SINCE,
    HISTOGRAM_BUCKETS_SINCE,
    SSL_REFRESH_SINCE,
    Release,
)
from llamaserver.api.source import Scheme, Source, parse_uri
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.weights import is_downloaded_first
from llamaserver.desired.shutdown import Shutdown
from llamaserver.desired.tls import CERTIFICATE, KEY, TLS_DIR
from llamaserver.desired.weights import below, model_argument

ADAPTERS_MOUNT: Final = "/mnt/adapters"
"""Where the claims and images of adapters are mounted, each in a folder that has its number."""
CHAT_TEMPLATE_DIR: Final = "/etc/llamaserver/chat-template"
CHAT_TEMPLATE_FILE: Final = "template.jinja"

_ACCESS_LOG: Final = "--disable-access-log-for-endpoints"
_QUIET_PATHS: Final = "/health,/metrics,/ping,/llamaserver/v1/snapshot"
"""What probes and scrapes ask every few seconds, which would drown the log of what users ask."""
_BUCKETS: Final = "--custom-histogram-buckets"
LATENCY_BOUNDARIES_MS: Final = (
    *(1, 2.5, 5, 6, 7, 8, 9, 10, 12.5, 15, 17.5, 20, 22.5, 25, 27.5, 30, 35, 40, 45, 50, 60, 70, 75, 80, 90),
    *(100, 120, 150, 175, 200, 250, 300, 350, 400, 500, 750, 1000, 1500, 2500, 5000, 7500),
    *(10_000, 20_000, 40_000, 80_000),
)
"""Upper edges of the histograms of inter-token latencies. vLLM's own are among them, so that queries go on
working; from 5 to 500 ms each is at most a quarter above the one before. Fixed, whatever the objective and
wherever its figures come from: both take effect without a rollout, and an argument does not.
"""


def arguments(
    spec: LlamaServerSpec, effective: EffectiveSpec, release: Release, shutdown: Shutdown
) -> list[str]:
    """The model first, as `vllm serve` wants it, then our flags in a fixed order, then the user's own."""
    return [*_ours(spec, effective, release, shutdown), *(spec.engine.extra_args or ())]


def adapter_volumes(spec: LlamaServerSpec) -> list[Source]:
    """The claims and images that adapters lie on, each once; a volume has the number of its place here."""
    sources = [parse_uri(adapter.uri) for adapter in (spec.model.lora.adapters if spec.model.lora else ())]
    carriers = (source._replace(path="") for source in sources if source.scheme in (Scheme.PVC, Scheme.OCI))
    return list(dict.fromkeys(carriers))


def _ours(
    spec: LlamaServerSpec, effective: EffectiveSpec, release: Release, shutdown: Shutdown
) -> Iterator[str]:
    engine = spec.engine
    yield model_argument(spec)
    if spec.model.revision is not None and not is_downloaded_first(spec):
        yield f"--revision={spec.model.revision}"
    yield from ("--served-model-name", *effective.served_names)
    yield f"--port={ENGINE_PORT}"
    if engine.tls is not None:
        yield f"--ssl-certfile={TLS_DIR}/{CERTIFICATE}"
        yield f"--ssl-keyfile={TLS_DIR}/{KEY}"
        if release.has(SSL_REFRESH_SINCE):
            yield "--enable-ssl-refresh"
    yield f"--max-num-seqs={effective.max_num_seqs}"
    yield f"--max-num-batched-tokens={effective.max_num_batched_tokens}"
    if engine.max_model_len is not None:
        yield f"--max-model-len={engine.max_model_len}"
    yield f"--tensor-parallel-size={effective.tensor_parallel_size}"
    if engine.gpu_memory_utilization is not None:
        yield f"--gpu-memory-utilization={engine.gpu_memory_utilization:g}"
    if engine.kv_offloading is not None:
        yield f"--kv-offloading-size={engine.kv_offloading.gib}"
        yield "--kv-offloading-backend=native"
    yield from _features(spec)
    if shutdown.drain is not None:
        yield f"--shutdown-timeout={shutdown.drain}"
    given = {flag_name(argument) for argument in engine.extra_args or ()}
    if release.has(ACCESS_LOG_FILTER_SINCE) and _ACCESS_LOG not in given:
        yield f"{_ACCESS_LOG}={_QUIET_PATHS}"
    if release.surely_has(HISTOGRAM_BUCKETS_SINCE) and _BUCKETS not in given:
        edges = [edge / 1000 for edge in LATENCY_BOUNDARIES_MS]
        yield f"{_BUCKETS}={json.dumps({'inter_token_latency': edges}, separators=(',', ':'))}"


def _features(spec: LlamaServerSpec) -> Iterator[str]:
    """What the engine can do beside generating text; nothing where the spec says nothing of it."""
    engine = spec.engine
    if engine.quantization is not None:
        yield f"--quantization={engine.quantization}"
    if engine.speculative_config is not None:
        given = engine.speculative_config.model_dump(mode="json", exclude_none=True, by_alias=False)
        yield f"--speculative-config={json.dumps(given, separators=(',', ':'))}"
    if spec.model.chat_template is not None:
        yield f"--chat-template={CHAT_TEMPLATE_DIR}/{CHAT_TEMPLATE_FILE}"
    if engine.tool_call_parser is not None:
        yield "--enable-auto-tool-choice"
        yield f"--tool-call-parser={engine.tool_call_parser}"
    if engine.reasoning_parser is not None:
        yield f"--reasoning-parser={engine.reasoning_parser}"
    if spec.model.lora is not None:
        yield from _lora(spec, spec.model.lora)


def _lora(spec: LlamaServerSpec, lora: LoRASpec) -> Iterator[str]:
    carriers = adapter_volumes(spec)
    yield "--enable-lora"
    yield f"--max-loras={lora.at_once}"
    if lora.max_lora_rank is not None:
        yield f"--max-lora-rank={lora.max_lora_rank}"
    if lora.max_cpu_loras is not None:
        yield f"--max-cpu-loras={lora.max_cpu_loras}"
    yield "--lora-modules"
    for adapter in lora.adapters:
        source = parse_uri(adapter.uri)
        carrier = source._replace(path="")
        mount = f"{ADAPTERS_MOUNT}/{carriers.index(carrier)}" if carrier in carriers else ""
        # As JSON, for in the shorter form a name could hold a comma or an equals sign.
        yield json.dumps({"name": adapter.name, "path": below(mount, source)}, separators=(",", ":"))
