"""What clients want of a fleet: requests that come by themselves, and streams that follow their answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llamaserver.simulate.lengths import Lengths, chat


def constant(value: float) -> Callable[[float], float]:
    return lambda _: value


nothing = constant(0)


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when it comes, in seconds from the start, and its lengths in tokens."""

    at: float
    prompt: int
    output: int
    hash_ids: tuple[int, ...] = ()
    """For each full block of the prompt (`prefixes.BLOCK` tokens) a number that stands for it and all before
    it, as in Mooncake's traces; empty where nothing is known of shared prefixes."""


@dataclass(frozen=True)
class Demand:
    """The load of one run. Two runs under the same demand meet the same requests at the same times."""

    name: str
    duration_s: float
    requests: Sequence[Request] = ()
    """In the order of their times: an open loop, which does not slow down when answers do."""
    streams: Callable[[float], float] = nothing
    """Closed-loop clients over time, each asking again as soon as it is answered."""
    lengths: Lengths = chat
    """Of what the closed-loop clients ask."""
    source: str = ""
    """Where it comes from, with what its licence wants to be said."""
    step_s: float | None = None
    """When the load steps up and stays so for a while, seconds; None where it does no such thing."""


def lengths_of(demand: Demand) -> Lengths:
    """Lengths as the traffic has them: drawn from its requests, or as its clients ask."""
    requests = demand.requests
    if not requests:
        return demand.lengths

    def draw(rng: random.Random, _: float) -> tuple[int, int]:
        one = requests[rng.randrange(len(requests))]
        return one.prompt, one.output

    return draw
