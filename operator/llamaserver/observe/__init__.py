"""From what an engine says to what can be concluded from it. Pure: bytes, text and a clock go in, values come
out.
"""

from llamaserver.observe.distribution import quantile
from llamaserver.observe.exposition import parse_exposition
from llamaserver.observe.snapshot import EngineReport, parse_snapshot, read_snapshot, with_requests
from llamaserver.observe.types import (
    Distribution,
    EngineState,
    Failure,
    NoWindow,
    Sample,
    Source,
    StepMoments,
    Unusable,
    Window,
    Windows,
)
from llamaserver.observe.window import Memory, advance

__all__ = [
    "Distribution",
    "EngineReport",
    "EngineState",
    "Failure",
    "Memory",
    "NoWindow",
    "Sample",
    "Source",
    "StepMoments",
    "Unusable",
    "Window",
    "Windows",
    "advance",
    "parse_exposition",
    "parse_snapshot",
    "quantile",
    "read_snapshot",
    "with_requests",
]
