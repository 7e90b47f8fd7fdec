"""From what this machine does with one stream and with its ceiling, a target that lies between. Pure."""

from __future__ import annotations

from dataclasses import dataclass

STATISTIC = "p95"
POSITION = 0.45
"""Where between the two latencies the target lies: far enough below the ceiling's to be missed there, far
enough above a lone stream's to be reached with a batch worth having."""
LEAST_RATIO = 1.6
"""How much slower the ceiling must be than one stream for an objective between them to mean something."""


class NoRoomError(Exception):
    """This machine shows too little difference between one stream and the ceiling."""


@dataclass(frozen=True)
class Calibration:
    """The declared statistic of the inter-token latency, measured by the engine, in milliseconds."""

    one_stream_ms: float
    ceiling_ms: float
    ceiling: int
    target_ms: int


def calibrate(one_stream_s: float, ceiling_s: float, ceiling: int) -> Calibration:
    """Choose a target in whole milliseconds. Raises NoRoomError when there is no room for one."""
    if ceiling_s < LEAST_RATIO * one_stream_s:
        raise NoRoomError(
            f"the {STATISTIC} inter-token latency is {1e3 * one_stream_s:.1f} ms with one stream and "
            f"{1e3 * ceiling_s:.1f} ms with {ceiling}: too little room for an objective between the two. "
            "This machine is too busy: stop other work on it and run the demo again."
        )
    target = one_stream_s + POSITION * (ceiling_s - one_stream_s)
    return Calibration(
        one_stream_ms=round(1e3 * one_stream_s, 2),
        ceiling_ms=round(1e3 * ceiling_s, 2),
        ceiling=ceiling,
        target_ms=round(1e3 * target),
    )
