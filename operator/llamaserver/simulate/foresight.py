"""What a replica does at the objective and what the trace asks of it: the plan of who knows both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from llamaserver.simulate.demand import Demand, constant, lengths_of
from llamaserver.simulate.outcome import Traced
from llamaserver.simulate.profiles import Profile
from llamaserver.simulate.rules.foresight import Foresight
from llamaserver.simulate.shapes import OVERLOAD

LOAD_S = 30.0
"""The load is that of stretches so long: what is shorter the queue takes."""


SATURATED_S = 320.0
"""How long a saturated replica is watched for what it serves."""


@dataclass(frozen=True)
class Serves:
    """What one saturated replica does under who sets its cap."""

    tokens_per_s: float
    sequences: float
    """That it runs at once."""


def saturated(demand: Demand, profile: Profile) -> Demand:
    """More clients than a replica has places for, asking what the demand asks."""
    streams = constant(round(OVERLOAD * profile.max_num_seqs))
    return Demand("saturated", SATURATED_S, streams=streams, lengths=lengths_of(demand))


def served(traced: Traced) -> Serves:
    """What a saturated replica did, once settled."""
    late = [m.cap for m in traced.moments if m.at > SATURATED_S / 2]
    return Serves(traced.outcome.tokens_per_s, median(late))


def loads(demand: Demand, profile: Profile, serves: Serves) -> list[float]:
    """Replicas that each stretch of LOAD_S fills."""
    count = max(1, math.ceil(demand.duration_s / LOAD_S - 1e-9))
    if not demand.requests:
        return [demand.streams((i + 0.5) * LOAD_S) / max(1.0, serves.sequences) for i in range(count)]
    tokens = [0] * count
    for request in demand.requests:
        if profile.takes(request.prompt, request.output):
            tokens[min(count - 1, int(request.at / LOAD_S))] += request.output
    lasting = [min(LOAD_S, demand.duration_s - i * LOAD_S) for i in range(count)]
    return [n / s / max(1e-9, serves.tokens_per_s) for n, s in zip(tokens, lasting, strict=True)]


def foresight(demand: Demand, profile: Profile, serves: Serves, cold_start_s: float) -> Foresight:
    """Who asks for N*(t), the most that [t, t + cold start] fills."""
    filled = loads(demand, profile, serves)
    reach = math.ceil(cold_start_s / LOAD_S - 1e-9)
    plan: list[tuple[float, int]] = []
    for i in range(len(filled)):
        wanted = max(1, math.ceil(max(filled[i : i + reach + 1]) - 1e-9))
        if not plan or plan[-1][1] != wanted:
            plan.append((i * LOAD_S, wanted))
    return Foresight(tuple(plan))
