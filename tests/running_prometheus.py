"""A real Prometheus as a process of its own, on a free loopback port."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

START_TIMEOUT_S = 30.0


@contextlib.contextmanager
def running_prometheus(folder_of_programs: Path, folder: Path, scrape: str) -> Iterator[str]:
    """The URL of a Prometheus that keeps its data in `folder`; `scrape` is the end of its configuration."""
    port = _free_port()
    config = folder / "prometheus.yml"
    config.write_text(f"global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n{scrape}")
    command = [
        folder_of_programs / "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=folder) as process:
        try:
            _wait_ready(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    pytest.fail(f"Prometheus did not start:\n{log.read_text()[-2000:]}")
