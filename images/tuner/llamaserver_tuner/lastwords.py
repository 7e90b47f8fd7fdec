"""The last words of an engine that cannot go on, where Kubernetes looks for them.

Of an engine that does not start, the end of the log tells only that it did not: the process that failed says
why first, and the front end's own traceback then fills what the kubelet keeps of the log (2 KiB). So the
first process that fails writes its error to the container's termination log, which the kubelet prefers to the
log and leaves empty until then. Outside of Kubernetes there is no such file, and nothing is written.
"""

from __future__ import annotations

import logging
from pathlib import Path

TERMINATION_LOG = Path("/dev/termination-log")
"""Kubernetes' default, where a container's `terminationMessagePath` says nothing else."""
LONGEST = 2048
"""Bytes of one error; the kubelet keeps 4 KiB."""

FATAL = (
    "EngineCore failed to start.",
    "EngineCore encountered a fatal error.",
    "WorkerProc failed to start.",
)
"""What vLLM logs with the error in a process that ends for it (v1/engine/core.py, multiproc_executor.py)."""
SECOND_HAND = ("WorkerProc initialization failed", "Engine core initialization failed")
"""Errors that say that another process had one."""


class LastWords(logging.Handler):
    """Writes the first fatal error of this container to its termination log."""

    def __init__(self, path: Path = TERMINATION_LOG) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's error if it is fatal and nobody has written one. Never raises."""
        try:
            error = record.exc_info[1] if record.exc_info else None
            if error is not None and str(record.msg).startswith(FATAL):
                self._write(words_of(error))
        except Exception:
            self.handleError(record)

    def _write(self, words: str) -> None:
        if not words or not self._path.exists() or self._path.stat().st_size > 0:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(words + "\n")


def words_of(error: BaseException) -> str:
    """An error and those that led to it, one a line, the first cause last; second-hand ones are left out."""
    lines: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(lines) < 8:
        line = f"{type(seen).__name__}: {seen}"
        if not any(phrase in line for phrase in SECOND_HAND):
            lines.append(line)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return "\n".join(lines).encode()[:LONGEST].decode(errors="ignore")


def listen(path: Path = TERMINATION_LOG) -> None:
    """Listen to vLLM's log in this process, once however often it is asked for."""
    logger = logging.getLogger("vllm")
    if not any(isinstance(handler, LastWords) for handler in logger.handlers):
        logger.addHandler(LastWords(path))
