"""How the objective of a scenario is made from what the default gives. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rule:
    """So many times a figure of the default's."""

    of: Literal["p50", "tail", "middle"] = "middle"
    """`tail` is the statistic that the objective is about. `middle` is the geometric mean of p50 and tail:
    below what the default does, so something has to give; above its median, so it can be reached without
    giving most of the throughput away.
    """
    times: float = 1.0
    part: str = ""
    """The part of a repeat whose figure it is; "" for all of them together."""

    def ms(self, p50_ms: float, tail_ms: float) -> float:
        """The objective in milliseconds."""
        figure = {"p50": p50_ms, "tail": tail_ms, "middle": math.sqrt(p50_ms * tail_ms)}[self.of]
        return round(self.times * figure, 1)

    def says(self, statistic: str) -> str:
        """The rule in words, for an objective about this statistic."""
        names = {"p50": "p50", "tail": statistic, "middle": f"p50 and {statistic}"}
        figure = f"the default's {names[self.of]}"
        if self.of == "middle":
            figure = f"the geometric mean of {figure}"
        if self.part:
            figure = f"{figure} in {self.part}"
        return figure if self.times == 1.0 else f"{self.times:g} times {figure}"

    @property
    def above_default(self) -> bool:
        """Whether the default holds the objective by the way it is made: then nothing has to give."""
        return self.of == "tail" and self.times >= 1.0


BETWEEN = Rule()
"""What holds where a scenario says nothing else."""
