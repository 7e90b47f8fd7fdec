"""Figures the scenarios share: how the operator is installed for them, and what their engines are held to."""

from __future__ import annotations

from harness import prometheus
from harness.fleet import Fleet
from harness.kube import Object
from harness.manifests import CEILING

NAMESPACE = "llamaserver-e2e"
LEASE_S = 20
"""Short, so that a scenario can see a lease end."""
TICK_S = 2
PRE_STOP_S = 8
"""Half of the default, since every pod that ends takes as long; the node's rules for a Service follow within
some seconds.
"""
FEW_STREAMS, ROOM = 4, 1.25
LEAST_TARGET_MS = 10
MEASURED_S = 10.0
"""The objective is what a few streams at once take on this machine, with some room: the ceiling's 32 take a
multiple, so there is always a reason to cut, and a cap that holds it."""

MOST_SEQS = CEILING - 4
"""The objective may turn out to be loose: measured on a busy machine, it is met at the ceiling later.
A cap that is set at all is below it nevertheless.
"""

OPERATOR_VALUES = {
    "operator.leaseSeconds": LEASE_S,
    "operator.tickSeconds": TICK_S,
    "operator.preStopSeconds": PRE_STOP_S,
    "prometheus.url": prometheus.URL,
}
"""Of the chart. Prometheus runs only for the scenario that has figures from it."""


def pair_of(fleet: Fleet, **groups: Object) -> Object:
    """The shared fleet with two engines that nobody tunes; `groups` are more of its spec."""
    made = fleet.resource(scaling={"mode": "Fixed"}, replicas=2, tuning="Off", objective=None)
    made["spec"] |= groups
    return made


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
