"""What the demo prints: every line with the time since its start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Prints lines such as `[ 12.3 s] text`."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        """One line, or several with the same indent."""
        first, *more = text.splitlines() or [""]
        print(f"[{self.elapsed:6.1f} s] {first}", flush=True)
        for line in more:
            print(f"{'':11}{line}", flush=True)

    def headline(self, text: str) -> None:
        """The beginning of a part."""
        print(flush=True)
        self.say(f"== {text}")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Say that something begins, and how long it took."""
        self.say(f"{text} ...")
        began = time.monotonic()
        yield
        self.say(f"{text}: done in {time.monotonic() - began:.1f} s")
