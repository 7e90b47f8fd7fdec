"""A server that looks like a vLLM without the tuner: /health and /metrics, and 404 for everything else.

Its image holds one static program, busybox, and starts in no time. The operator hands vLLM's arguments over,
the model's path first; as the image has no entrypoint, that path is what runs, and a script lies there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster.archive import pack, write
from cluster.images import BUSYBOX
from cluster.node import Node

IMAGE = "localhost/llamaserver/plain-engine:e2e"
MODEL_PATH = "/models/plain"
SCRIPT = """#!/bin/busybox sh
trap 'exit 0' TERM
/bin/busybox httpd -f -p 8000 -h /www &
wait
"""

_LABELS = 'engine="0",model_name="plain"'
_HISTOGRAMS = (
    "inter_token_latency_seconds",
    "time_to_first_token_seconds",
    "request_queue_time_seconds",
    "request_time_per_output_token_seconds",
    "iteration_tokens_total",
)
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_COUNTERS = (
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
)


def exposition() -> str:
    """What an idle vLLM says at /metrics."""
    lines = []
    for name in _GAUGES:
        lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{_LABELS}}} 0.0"]
    for name in _COUNTERS:
        lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{{{_LABELS}}} 0.0"]
    success = f'vllm:request_success_total{{{_LABELS},finished_reason="length"}} 0.0'
    lines += ["# TYPE vllm:request_success counter", success]
    for name in _HISTOGRAMS:
        lines.append(f"# TYPE vllm:{name} histogram")
        lines += [f'vllm:{name}_bucket{{{_LABELS},le="{edge}"}} 0.0' for edge in ("0.01", "0.1", "+Inf")]
        lines += [f"vllm:{name}_sum{{{_LABELS}}} 0.0", f"vllm:{name}_count{{{_LABELS}}} 0.0"]
    return "\n".join(lines) + "\n"


def load_image(node: Node, scratch: Path) -> None:
    """Make the image and hand it to the node."""
    root = scratch / "root"
    for folder in ("bin", "www", "models", "tmp"):
        (root / folder).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    (root / "www" / "health").write_text("")
    (root / "www" / "metrics").write_text(exposition())
    script = root / MODEL_PATH.removeprefix("/")
    script.write_text(SCRIPT)
    script.chmod(0o755)
    layer, archive = scratch / "layer.tar", scratch / "image.tar"
    pack(root, layer)
    write(archive, IMAGE, layer)
    node.exec("ctr", "--namespace=k8s.io", "images", "import", archive)
