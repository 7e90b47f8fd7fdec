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
from llamaserver.control.causes.uneven import routing_imbalance, straggler

# What is nearer to the harm is asked first. Engines that hang or tell nothing, and memory that preempts, hurt
# most and are told of any replica. Then what a latency suffers from, of the replicas that keep up with each
# other: an illness that these have is the fleet's, and it is not cured with a straggler. What only the slow
# one suffers from is the straggler's own, so nobody is told to relax a target or to look at prefill for its
# sake. A cap that rises may end a queue by itself; what waits beside it is for the router while others have
# the room, and else for capacity.
CHAIN: tuple[Rule, ...] = (
    stalled,
    stale,
    kv_pressure,
    prefill_interference,
    infeasible,
    disturbed,
    over_batched,
    straggler,
    cap_limited,
    routing_imbalance,
    capacity_exhausted,
    at_capacity,
    admission_elsewhere,
    idle,
)

__all__ = ["CHAIN", "Finding", "Rule", "healthy"]
