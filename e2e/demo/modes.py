"""The three ways in which the same overload is served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """What spec.tuning says during a run."""

    title: str
    tuning: str
    prefill_budget: str | None

    @property
    def spec(self) -> str:
        """What the resource says, in one line."""
        budget = "" if self.prefill_budget is None else f", prefillBudget: {self.prefill_budget}"
        return f"tuning.mode: {self.tuning}{budget}"


OFF = Mode("default", "Off", None)
CAP_ALONE = Mode("cap alone", "Auto", "Fixed")
BOTH = Mode("cap and budget", "Auto", "Auto")
