"""A real `vllm serve` on loopback with the tuner in it, for whoever wants an engine and no cluster.

The tuner is laid out beside the server for this one run, as the init container does it in a pod. Changes are
signed by the caller, whose public keys lie in the folder `keys`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.machine import fast_dtype

POD_UID = "7d0c3f5e-loopback"
MODEL = "tiny"
"""The name that the model is served by."""
CEILING = 32
"""--max-num-seqs."""
START_BUDGET = 2048
"""--max-num-batched-tokens: the tokens that a step may hold at the start."""
MAX_MODEL_LEN = 1024
PLUGINS = "llamaserver_tuner_engine,llamaserver_tuner_http,llamaserver_tuner_stats"
SNAPSHOT = "/llamaserver/v1/snapshot"
HEALTHY_S = 300.0
STOP_S = 20.0
STAGE = Path(__file__).resolve().parents[2] / "images" / "tuner" / "stage.py"


@dataclass
class Loopback:
    """One running server. Calls block: whatever loads the server has a process of its own."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where the server is."""
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the JSON (or text) of one request."""
        request = urllib.request.Request(
            self.url + path, body, {**self.headers, **(headers or {})}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def snapshot(self) -> Any:
        """The tuner's snapshot as it comes. Raises RuntimeError when there is none."""
        status, content = self.request("GET", SNAPSHOT)
        if status != 200:
            raise RuntimeError(f"GET {SNAPSHOT}: {status}: {content}")
        return content

    def whole_snapshot(self) -> Any:
        """A snapshot with its engines as of now, for which a busy machine may take over a second.

        Raises RuntimeError when the engine core does not answer.
        """
        for _ in range(20):
            snapshot = self.snapshot()
            if snapshot["age_s"] == 0:
                return snapshot
        raise RuntimeError(f"the engine core is not reachable: {snapshot['message']}")

    def engine(self) -> Any:
        """The state of the first engine."""
        return self.whole_snapshot()["engines"][0]


@contextmanager
def serving(
    python: str | Path,
    model: str | Path,
    folder: Path,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    plugin: tuple[str, Path] | None = None,
) -> Iterator[Loopback]:
    """Start `vllm serve` with the tuner and wait until it is healthy; stop it at the end.

    `python` is the interpreter of an environment with vLLM. `folder` gets the tuner, the log and the folder
    `keys`. `plugin` is one more plugin's name and the folder that it is laid out in. Raises RuntimeError when
    the server does not come up.
    """
    (folder / "keys").mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "serve.log"
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            str(path) for path in (_staged(folder / "plugin"), *(() if plugin is None else plugin[1:]))
        ),
        "VLLM_PLUGINS": PLUGINS if plugin is None else f"{PLUGINS},{plugin[0]}",
        "LLAMASERVER_POD_UID": POD_UID,
        "LLAMASERVER_TUNER_KEYS_DIR": str(folder / "keys"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **(environment or {}),
    }
    command = [str(Path(python).parent / "vllm"), "serve", str(model), "--served-model-name", MODEL]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-num-seqs", str(CEILING), "--max-num-batched-tokens", str(START_BUDGET)]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--dtype", fast_dtype(), *flags]
    with log.open("wb") as output:
        # A session of its own: Ctrl-C is for the caller, who still has something to write down.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=variables, start_new_session=True
        )
    server = Loopback(port, process, log)
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        _stop(process)


def _staged(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, str(STAGE), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


def _wait_until_healthy(server: Loopback) -> None:
    print(f"starting vllm serve on port {server.port}, log in {server.log}", flush=True)
    started = time.monotonic()
    while time.monotonic() - started < HEALTHY_S:
        if server.process.poll() is not None:
            raise RuntimeError(
                f"vllm serve ended at its start; the log ends with\n{server.log.read_text()[-3000:]}"
            )
        with suppress(OSError):
            if server.request("GET", "/health")[0] == 200:
                print(f"healthy after {time.monotonic() - started:.0f} s", flush=True)
                return
        time.sleep(1.0)
    raise RuntimeError(f"vllm serve is not healthy after {HEALTHY_S:.0f} s; see {server.log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the session that this server leads, gently first."""
    for number in (signal.SIGCONT, signal.SIGTERM):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
