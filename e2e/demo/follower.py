"""Reads along with the recorder in the cluster while the demo runs."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from demo.recording import Reading, parse
from harness.kube import Kube


class Follower:
    """`kubectl logs -f` of the recorder, kept in memory and in a file."""

    def __init__(self, kube: Kube, pod: str, namespace: str, file: Path) -> None:
        self._kube, self._pod, self._namespace = kube, pod, namespace
        self._file = file
        self._readings: list[Reading] = []
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read, in a thread."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._process = self._kube.start_kubectl("logs", "-f", self._pod, "-n", self._namespace)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._file.open("w") as out:
            for line in self._process.stdout:
                out.write(line)
                found = parse([line])
                with self._lock:
                    self._readings += found

    def readings(self) -> list[Reading]:
        """All readings so far."""
        with self._lock:
            return list(self._readings)

    def last(self) -> Reading | None:
        """The newest reading."""
        with self._lock:
            return self._readings[-1] if self._readings else None

    def mark(self) -> float:
        """The newest moment on the recorder's clock. Raises RuntimeError when nothing was read yet."""
        last = self.last()
        if last is None:
            raise RuntimeError("the recorder has not read the engine yet")
        return last.at

    def stop(self) -> None:
        """End the reading; what was read stays."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=10)
        if self._thread is not None:
            self._thread.join(timeout=10)
