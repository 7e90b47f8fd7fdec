"""How far a download is, as the init container that makes it tells it. What cannot be is not believed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

MOVING_S: Final = 60.0
"""A download of which no byte came for longer stands still."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of a model that are in the cache, of a `total` that is None until the hub has told it."""

    bytes: int
    total: int | None
    bytes_per_second: float
    silent_s: float
    """Seconds since the last byte came, or one that is there was checked."""

    @property
    def moves(self) -> bool:
        """Whether bytes come."""
        return self.silent_s <= MOVING_S

    def __str__(self) -> str:
        if self.total is None and self.bytes == 0:
            told = "the hub has not told yet how much there is"
        else:
            told = _of(self.bytes, self.total)
        if not self.moves:
            return f"{told}, no byte came for {round(self.silent_s / 60)} min"
        return f"{told}, {_rounded(self.bytes_per_second, 2**20)} MiB/s" if self.bytes_per_second else told


def read_progress(body: bytes) -> Progress | None:
    """What an answer says; None where it does not make sense."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    count, rate, silent = (_number(found.get(key)) for key in ("bytes", "bytes_per_second", "silent_s"))
    total = _number(found.get("total"))
    if count is None or rate is None or silent is None or (total is not None and total < count):
        return None
    return Progress(int(count), None if total is None else int(total), rate, silent)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _of(count: int, total: int | None) -> str:
    """Both in the unit that suits the larger one."""
    unit, name = (2**30, "GiB") if max(count, total or 0) >= 2**30 else (2**20, "MiB")
    of = "" if total is None else f" of {_rounded(total, unit)}"
    return f"{_rounded(count, unit)}{of} {name}"


def _rounded(count: float, unit: float) -> str:
    number = count / unit
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"
