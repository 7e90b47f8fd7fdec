"""From what an engine says to what can be concluded from it. Pure: bytes, text and a clock go in, values come
out.
"""

from llamaserver.observe.distribution import quantile
from llamaserver.observe.exposition import parse_exposition, read_series
from llamaserver.observe.snapshot import EngineReport, parse_snapshot, read_snapshot, with_requests
from llamaserver.observe.types import (
    Distribution,
    Doubt,
    EngineState,
    Failure,
    Lengths,
    Load,
    NoWindow,
    Sample,
    Source,
    StepMoments,
    Still,
    Unusable,
    Window,
    Windows,
)
from llamaserver.observe.window import FORGIVEN_SCRAPES, Memory, advance

__all__ = [
    "FORGIVEN_SCRAPES",
    "Distribution",
    "Doubt",
    "EngineReport",
    "EngineState",
    "Failure",
    "Lengths",
    "Load",
    "Memory",
    "NoWindow",
    "Sample",
    "Source",
    "StepMoments",
    "Still",
    "Unusable",
    "Window",
    "Windows",
    "advance",
    "parse_exposition",
    "parse_snapshot",
    "quantile",
    "read_series",
    "read_snapshot",
    "with_requests",
]
