"""The rules that name a cause, one file a subject, and the order in which they are asked.

Each takes the facts of one tick and answers with a finding, or in words why it does not apply.
"""

from __future__ import annotations

from llamaserver.control.causes.demand import (
    admission_elsewhere,
    at_capacity,
    cap_limited,
    capacity_exhausted,
    idle,
)
from llamaserver.control.causes.finding import Finding, Rule
from llamaserver.control.causes.health import healthy
from llamaserver.control.causes.latency import disturbed, infeasible, over_batched
from llamaserver.control.causes.memory import kv_pressure
from llamaserver.control.causes.prefill import prefill_interference
from llamaserver.control.causes.sight import stale, stalled

CHAIN: tuple[Rule, ...] = (
    stalled,
    stale,
    kv_pressure,
    prefill_interference,
    infeasible,
    disturbed,
    over_batched,
    cap_limited,
    capacity_exhausted,
    at_capacity,
    admission_elsewhere,
    idle,
)

__all__ = ["CHAIN", "Finding", "Rule", "healthy"]
