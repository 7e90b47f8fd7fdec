"""Runs in the cluster: reads one engine's snapshot once a second and prints a line of JSON for each reading.

    recorder.py http://HOST:PORT [SECONDS_BETWEEN]

It asks the engine itself and knows nothing of the operator, so what the demo reports does not rest on what
the operator says of itself. Standard library only: it runs in any image with Python 3.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import Any

PATH = "/llamaserver/v1/snapshot"
TIMEOUT_S = 5.0
ENGINE = (
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_scheduled_tokens",
    "running",
    "waiting",
    "preemptions",
    "kv",
    "generation",
    "retunes",
)
REQUESTS = ("itl", "ttft", "queue", "prompt_tokens", "generation_tokens", "finished", "arrived")
"""What is kept of a snapshot: the step moments are not needed and would double the size of a line."""


def keep(snapshot: Any) -> dict[str, Any]:
    """The parts of a snapshot that the report is made from; one engine, since the demo's pod has one."""
    (engine,), (requests,) = snapshot["engines"], snapshot["requests"].values()
    return {
        "pod_uid": snapshot["pod_uid"],
        "boot_id": snapshot["boot_id"],
        "vllm": snapshot["vllm"],
        "tuner": snapshot["tuner"],
        "writable": snapshot["writable"],
        "reason": snapshot["reason"],
        "engine": {key: engine[key] for key in ENGINE if key in engine},
        "requests": {key: requests[key] for key in REQUESTS if key in requests},
    }


def read(url: str) -> dict[str, Any]:
    """One reading, or why there is none."""
    try:
        with urllib.request.urlopen(url + PATH, timeout=TIMEOUT_S) as response:
            return {"snapshot": keep(json.load(response))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}


def main() -> None:
    url = sys.argv[1].rstrip("/")
    every = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    due = time.monotonic()
    while True:
        at, wall = time.monotonic(), time.time()
        print(json.dumps({"at": round(at, 3), "wall": round(wall, 3), **read(url)}), flush=True)
        due = max(due + every, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
