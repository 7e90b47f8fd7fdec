"""Waiting for things to come true, with deadlines and with failures that say what was seen instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class WaitError(AssertionError):
    """Something did not come true in time."""


def until(
    what: str,
    check: Callable[[], T | None],
    timeout: float,
    *,
    every: float = 0.5,
    seen: Callable[[], object] | None = None,
) -> T:
    """The first value of `check` that is neither None nor False.

    Raises WaitError after `timeout` seconds; `what` completes "waited 30 s for ..." and `seen` tells the last
    state.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = check()
        if value is not None and value is not False:
            return value
        if time.monotonic() >= deadline:
            last = f"; last seen: {seen()}" if seen is not None else ""
            raise WaitError(f"waited {timeout:.0f} s for {what}{last}")
        time.sleep(every)


def stays(what: str, check: Callable[[], bool], seconds: float, *, every: float = 1.0) -> None:
    """Raise WaitError as soon as `check` is not true within `seconds`."""
    started = time.monotonic()
    while (gone := time.monotonic() - started) < seconds:
        if not check():
            raise WaitError(
                f"{what} should have stayed true for {seconds:.0f} s, and was not after {gone:.0f} s"
            )
        time.sleep(every)
