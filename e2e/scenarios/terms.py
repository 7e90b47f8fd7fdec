"""Figures the scenarios share: how the operator is installed for them, and what their engines are held to."""

from __future__ import annotations

NAMESPACE = "llamaserver-e2e"
LEASE_S = 20
"""Short, so that a scenario can see a lease end."""
TICK_S = 2
PRE_STOP_S = 3
TARGET_MS = 12
"""Less than 32 streams at once take on any machine that this runs on: there is always a reason to cut."""

OPERATOR_VALUES = {
    "operator.leaseSeconds": LEASE_S,
    "operator.tickSeconds": TICK_S,
    "operator.preStopSeconds": PRE_STOP_S,
}
"""Of the chart."""
