"""What the tool says while it works: one line a step, with the seconds since it began."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT_SECONDS = 30.0
WORTH_A_CLOSING_LINE_SECONDS = 2.0


class Progress:
    """Prints steps with elapsed time. A step that takes long says so every half minute."""

    def __init__(self, to_stderr: bool = False) -> None:
        self._stream = sys.stderr if to_stderr else sys.stdout
        self._started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Print one line."""
        print(f"[{self.elapsed:6.1f} s] {text}", file=self._stream, flush=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Announce `text`, and how long it took once it was more than a moment."""
        self.say(text)
        began = time.monotonic()
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(HEARTBEAT_SECONDS):
                self.say(f"  still at it after {time.monotonic() - began:.0f} s: {text}")

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            ended.set()
        if (took := time.monotonic() - began) > WORTH_A_CLOSING_LINE_SECONDS:
            self.say(f"  took {took:.1f} s: {text}")
