"""From windows to a decision. Pure and deterministic: the clock is an argument, nothing here does I/O."""

from llamaserver.control.law import decide
from llamaserver.control.state import Learned, State, initial
from llamaserver.control.types import (
    Cause,
    Decision,
    Diagnosis,
    Fleet,
    Limits,
    Objective,
    Observed,
    Setpoint,
    StalledEngine,
    Verdict,
)

__all__ = [
    "Cause",
    "Decision",
    "Diagnosis",
    "Fleet",
    "Learned",
    "Limits",
    "Objective",
    "Observed",
    "Setpoint",
    "StalledEngine",
    "State",
    "Verdict",
    "decide",
    "initial",
]
