"""Figures the scenarios share: how the operator is installed for them, and what their engines are held to."""

from __future__ import annotations

from harness.fleet import Fleet

NAMESPACE = "llamaserver-e2e"
LEASE_S = 30
"""Short, so that a scenario can see a lease end."""
TICK_S = 2
FEW_STREAMS, ROOM = 4, 1.25
LEAST_TARGET_MS = 10
MEASURED_S = 10.0
"""The objective is what a few streams at once take on this machine, with some room: the ceiling's 32 take a
multiple, so there is always a reason to cut, and a cap that holds it."""

OPERATOR_VALUES = {
    "operator.leaseSeconds": LEASE_S,
    "operator.tickSeconds": TICK_S,
}
"""Of the chart."""


def learned_cap(fleet: Fleet) -> float:
    """The cap that the operator keeps in the status, for its successor and for pods that start; 0 while there
    is none.
    """
    return float(fleet.status().get("model", {}).get("cap", 0))


def assert_near(cap: int, learned: float) -> None:
    """What was learned is taken up again, rather than found anew from a slow start or the ceiling.

    Not what was in force when the fault struck: that is lower for a while where something disturbs the
    machine, which has nothing to do with the engine that starts.
    """
    assert learned >= 1, "nothing had been learned"
    assert abs(cap - learned) <= max(2.0, 0.2 * learned), f"cap {cap} after the fault, {learned} learned"
