"""What a rule answers with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llamaserver.control.facts import Facts
from llamaserver.control.state import DemandState
from llamaserver.control.types import Cause

Evidence = Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Finding:
    cause: Cause
    message: str
    advice: str
    evidence: Evidence


Rule = Callable[[Facts, DemandState], Finding | str]
"""A finding, or in words why the rule does not apply."""
