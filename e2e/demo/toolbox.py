"""What the demo runs in the cluster beside the operator: recorder, streaming client and benchmark."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.follower import Follower
from demo.load import Request, Shape, bench_command, trace
from demo.settings import Settings
from harness.kube import Kube, KubeError, Object
from harness.manifests import CPU_SHARE, MODEL, MODEL_PATH, config_map, script_pod

RECORDER, CLIENT = "recorder", "client"
"""Pods of their own: the client's work must not keep the recorder from its readings."""
FILES = "demo-files"
RECORDER_CPU_SHARE = "200m"
HERE = Path(__file__).resolve().parent
SCRIPTS = {"recorder.py": HERE / "recorder.py", "streams.py": HERE.parent / "harness" / "streams.py"}


def pods(settings: Settings, url: str) -> list[Object]:
    """The recorder, and a pod that only waits: the streaming client is started in it."""
    commands = {
        RECORDER: (["python3", "/files/recorder.py", url, "1"], RECORDER_CPU_SHARE),
        CLIENT: (["sleep", "infinity"], CPU_SHARE),
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


def bench_job(settings: Settings, name: str, url: str, concurrency: int, streams: int) -> Object:
    """The Job that overloads the engine once, with as many streams from the head of the trace."""
    bench = bench_command(url, MODEL, MODEL_PATH, concurrency, streams, "/files/trace.jsonl")
    command = ["sh", "-c", bench]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": settings.namespace},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": 600,
            "template": {
                "spec": script_pod(
                    settings.engine_image, settings.runtime_class, command, FILES, cpu=CPU_SHARE
                )
            },
        },
    }


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
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise KubeError(f"the streaming client did not end within {timeout:.0f} s") from error
        if process.returncode != 0:
            raise KubeError(f"the streaming client ended with {process.returncode}")
        return StreamsResult.parse(said)
