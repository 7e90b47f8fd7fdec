"""Which engines have to be told something now: what differs from what is wanted, and leases that need
renewal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from llamaserver.control import Setpoint
from llamaserver.observe import EngineState, Sample

RENEW_AT = 0.5
"""A lease is renewed when less than this share of it is left."""


@dataclass(frozen=True, slots=True)
class InForce:
    """What a pod runs with: the lowest over its engines, None where it is not known. The budget is the one
    that engines keep to, not what the tuner makes of it for a step.
    """

    num_seqs: int | None
    num_scheduled_tokens: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """One PUT that is due. `renewal` means that only the lease is renewed: nothing in force changes."""

    pod: str
    setpoint: Setpoint
    generation: int
    before: InForce
    renewal: bool


def in_force(sample: Sample) -> InForce:
    """What a pod's newest sample told."""
    return InForce(
        _lowest(engine.max_num_active_seqs for engine in sample.engines),
        _lowest(engine.kept_num_scheduled_tokens for engine in sample.engines),
    )


def generation(sample: Sample) -> int:
    """The last generation that a pod applied."""
    return max((engine.generation for engine in sample.engines), default=0)


def due(
    setpoints: Mapping[str, Setpoint],
    samples: Mapping[str, Sample],
    lease_s: float,
    claims: Collection[str] = (),
) -> list[Change]:
    """The changes to send now. Only pods that were read this very time are changed: never act on an old
    picture.

    A pod among `claims` is told again while it holds a lease, for the lease is somebody else's.
    """
    changes = []
    for pod, setpoint in sorted(setpoints.items()):
        sample = samples.get(pod)
        if sample is None or not sample.writable or not sample.engines:
            continue
        differs = any(_differs(engine, setpoint) for engine in sample.engines)
        at_start = all(_is_start(engine, setpoint) for engine in sample.engines)
        claimed = pod in claims and leased(sample)
        if differs or claimed or (not at_start and _ends_soon(sample, lease_s)):
            changes.append(Change(pod, setpoint, generation(sample) + 1, in_force(sample), not differs))
    return changes


def leased(sample: Sample) -> bool:
    """Whether a pod runs with a change that somebody has made."""
    return any(engine.lease_expires_in_s is not None for engine in sample.engines)


def _differs(engine: EngineState, setpoint: Setpoint) -> bool:
    cap = (
        engine.start_num_active_seqs if setpoint.max_num_active_seqs is None else setpoint.max_num_active_seqs
    )
    if cap is not None and not engine.live_cap and engine.max_num_active_seqs != cap:
        return True
    if engine.live_budget:
        return False
    budget = setpoint.max_num_scheduled_tokens
    if budget is None:
        budget = engine.start_num_scheduled_tokens or engine.max_num_batched_tokens
    return engine.kept_num_scheduled_tokens != budget


def _is_start(engine: EngineState, setpoint: Setpoint) -> bool:
    """The setpoint asks for nothing but the start values, which hold without a lease."""
    cap = setpoint.max_num_active_seqs
    return (cap is None or cap == engine.start_num_active_seqs) and setpoint.max_num_scheduled_tokens is None


def _ends_soon(sample: Sample, lease_s: float) -> bool:
    left = [engine.lease_expires_in_s for engine in sample.engines]
    return any(seconds is None or seconds < lease_s * RENEW_AT for seconds in left)


def _lowest(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
