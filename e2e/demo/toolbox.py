"""What the demo runs in the cluster beside the operator: recorder, streaming client and benchmark."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.follower import Follower
from demo.load import Request, Shape, bench_flags, trace
from demo.settings import Settings
from harness.kube import Kube, KubeError, Object
from harness.manifests import CPU_SHARE, MODEL, MODEL_PATH, config_map, script_pod

RECORDER, CLIENT, BENCH = "recorder", "client", "bench"
"""Pods of their own: the clients' work must not keep the recorder from its readings."""
PODS = (RECORDER, CLIENT, BENCH)
ORDER, RESULT = "/tmp/order.json", "/tmp/result"
FILES = "demo-files"
RECORDER_CPU_SHARE = "200m"
HERE = Path(__file__).resolve().parent
SCRIPTS = {
    "recorder.py": HERE / "recorder.py",
    "bench.py": HERE / "bench.py",
    "streams.py": HERE.parent / "harness" / "streams.py",
}
RUN_BENCH = """set -e
printf %s "$1" > "$2.part" && mv "$2.part" "$2"
while [ ! -e "$3" ]; do sleep 0.3; done
cat "$3" && rm "$3"
"""
"""Order, its file, the result's file: starts the benchmark in its pod and prints what came out."""


def pods(settings: Settings, url: str) -> list[Object]:
    """The recorder, the benchmark, and a pod that only waits: the streaming client is started in it."""
    commands = {
        RECORDER: (["python3", "/files/recorder.py", url, "1"], RECORDER_CPU_SHARE),
        CLIENT: (["sleep", "infinity"], CPU_SHARE),
        BENCH: (["python3", "/files/bench.py", ORDER, RESULT], CPU_SHARE),
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": settings.namespace},
            "spec": script_pod(settings.engine_image, settings.runtime_class, command, FILES, cpu),
        }
        for name, (command, cpu) in commands.items()
    ]


def files(settings: Settings, work: list[Request]) -> Object:
    """The ConfigMap with the scripts and the trace."""
    texts = {name: path.read_text() for name, path in SCRIPTS.items()}
    return config_map(FILES, settings.namespace, {**texts, "trace.jsonl": trace(work)})


@dataclass(frozen=True)
class StreamsResult:
    """What the streaming client says at its end."""

    streams: int
    cut: int
    causes: dict[str, int]

    @classmethod
    def parse(cls, said: str) -> StreamsResult:
        """From the client's output. Raises KubeError when it ended without a word."""
        lines = [line for line in said.splitlines() if line.startswith("{")]
        if not lines:
            raise KubeError("the streaming client ended without a result")
        raw: dict[str, Any] = json.loads(lines[-1])
        return cls(raw["streams"], raw["cut"], raw["causes"])


class Toolbox:
    """What runs beside the operator, once it does."""

    def __init__(self, kube: Kube, settings: Settings, url: str) -> None:
        self._kube, self._settings, self.url = kube, settings, url
        self.follower = Follower(kube, RECORDER, settings.namespace, settings.output / "recording.jsonl")

    def start_streams(self, shape: Shape, seconds: float) -> subprocess.Popen[str]:
        """Begin a closed loop that hangs up after `seconds`. Read its output with `finish`."""
        flags = {
            "--url": self.url,
            "--model": MODEL,
            "--concurrency": shape.concurrency,
            "--seconds": seconds,
            "--prompt-min": shape.prompt[0],
            "--prompt-max": shape.prompt[1],
            "--output-min": shape.output[0],
            "--output-max": shape.output[1],
            "--seed": shape.seed,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        inside = ["python3", "/files/streams.py", *words, "--drop"]
        return self._kube.start_kubectl("exec", CLIENT, "-n", self._settings.namespace, "--", *inside)

    def finish(self, process: subprocess.Popen[str], timeout: float) -> StreamsResult:
        """Wait for a streaming client to end. Raises KubeError when it does not, or fails."""
        return StreamsResult.parse(self.said(process, timeout))

    def start_bench(self, shape: Shape, seconds: float) -> subprocess.Popen[str]:
        """Begin a run of `vllm bench serve` that ends after `seconds` of load. Its output is the result, for
        `load.unpack`.
        """
        flags = bench_flags(self.url, MODEL, MODEL_PATH, shape.concurrency, "/files/trace.jsonl")
        order = json.dumps({"seconds": seconds, "flags": flags})
        inside = ["sh", "-c", RUN_BENCH, "sh", order, ORDER, RESULT]
        return self._kube.start_kubectl("exec", BENCH, "-n", self._settings.namespace, "--", *inside)

    @staticmethod
    def said(
        process: subprocess.Popen[str], timeout: float, meanwhile: Callable[[], None] = lambda: None
    ) -> str:
        """What a client printed, once it has ended; `meanwhile` is called about once a second.

        Raises KubeError when it does not end in time, or fails.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                said, _ = process.communicate(timeout=min(1.0, timeout))
                break
            except subprocess.TimeoutExpired as error:
                if time.monotonic() >= deadline:
                    process.kill()
                    process.communicate()
                    raise KubeError(f"the client did not end within {timeout:.0f} s") from error
                meanwhile()
        if process.returncode != 0:
            raise KubeError(f"the client ended with {process.returncode}")
        return said
