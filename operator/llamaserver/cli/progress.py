"""How far a long computation is, on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

QUIET_S = 2.0
"""What takes less says nothing."""
TERMINAL_S, LOG_S = 0.2, 10.0
"""How often a terminal, or a log, is told."""


class Progress:
    """A line that is written over on a terminal, and a line now and then elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._began = time.monotonic()
        self._every = TERMINAL_S if self._stream.isatty() else LOG_S
        self._told = self._began + QUIET_S - self._every
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def tell(self, what: str, share: float) -> None:
        """`share` of `what` is done, 0 to 1."""
        now = time.monotonic()
        if now - self._told < self._every:
            return
        self._told = now
        line = f"{what}: {100 * share:3.0f} %, {now - self._began:.0f} s"
        if self._stream.isatty():
            self._drawn = True
            self._stream.write(f"\r\x1b[K{line}")
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()
