"""Figures the scenarios share: how the operator is installed for them, and what their engines are held to."""

from __future__ import annotations

from harness.manifests import CEILING

NAMESPACE = "llamaserver-e2e"
LEASE_S = 30
"""Short, so that a scenario can see a lease end."""
TICK_S = 2
PRE_STOP_S = 3
TARGET_MS = 16
"""Less than 32 streams at once take, more than a few do, on any machine that this runs on: there is always a
reason to cut, and a cap that holds it."""

OPERATOR_VALUES = {
    "operator.leaseSeconds": LEASE_S,
    "operator.tickSeconds": TICK_S,
    "operator.preStopSeconds": PRE_STOP_S,
}
"""Of the chart."""


def assert_near(cap: int, before: int) -> None:
    """A cap that was known before is taken up again, not found anew from a slow start or the ceiling.

    What was in force when the fault struck may have been below what was learned: a busy machine makes the
    operator careful for a while. A third of the ceiling is far from any fresh start all the same.
    """
    most = max(before + max(2, before // 2), CEILING // 3)
    assert cap <= most, f"cap {cap} after the fault, {before} before it"
