"""Ours, and further ways to realise what the law decides. To add one, add it to `VARIANTS`.

All of them run the operator's own code: the same observation, the same law, the same signed and leased
writes. A variant says what is made of the law's setpoint on the way to the engine, and what its part inside
the engine costs, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from llamaserver.control import Decision, Setpoint, State, joint

Realise = Callable[[Setpoint], Setpoint]


@dataclass(frozen=True)
class Variant:
    """One way to realise a setpoint."""

    name: str
    says: str
    """In one line, for people."""
    realise: Realise = field(default=lambda setpoint: setpoint)
    """From what the law wants to what is written."""
    budget_moves: bool = True
    """Whether the law may move the prefill budget (spec.tuning.prefillBudget)."""
    governor: str = ""
    """"step" or "kv" where a governor in the engine makes a budget of the law's plan for every step."""
    us_per_step: Callable[[Mapping[str, Any]], float | None] | None = None
    """Microseconds that the variant's part inside the engine takes a step, from the tuner's snapshot; None
    where it has no part there.
    """


@dataclass(frozen=True)
class StepPlan:
    """What the law would have of a step: its model, and T'. Seconds; see `control/joint.py`."""

    step_s: float
    a: float
    b: float
    g: float
    d: float
    c: float
    least: int

    def of(self, mode: str) -> dict[str, Any]:
        """As a governor in the engine reads it."""
        return {"mode": mode, **asdict(self)}


def step_plan(state: State, decision: Decision) -> StepPlan | None:
    """The plan behind a decision's budget; None where the budget is not moved."""
    budget = next((v for v in decision.trail if v.rule == "Budget"), None)
    model = state.model
    if budget is None or model is None:
        return None
    step_s = float(budget.evidence["step_ms"]) / 1e3
    return StepPlan(step_s, model.a_s, model.b_s, model.g_s, max(1e-9, model.d_s), model.c_s, joint.MIN_CHUNK)


def _governor_us(snapshot: Mapping[str, Any]) -> float | None:
    value = snapshot["engines"][0].get("governor_us_per_step")
    return None if value is None else float(value)


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("ours", "the operator, a decision every 2 s"),
        Variant("ours_cap_alone", "the same, the budget left at its start", budget_moves=False),
        Variant("ours_kv", "the same, the budget following contexts between decisions", governor="kv"),
        Variant(
            "ours_step",
            "the same, a budget for every step from a governor in the engine",
            governor="step",
            us_per_step=_governor_us,
        ),
    )
}
