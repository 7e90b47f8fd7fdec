"""How the objective of a scenario is made from what the default gives. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rule:
    """So many times a figure of the default's."""

    of: Literal["p50", "p95", "middle"] = "middle"
    """`middle` is the geometric mean of p50 and p95: below what the default does, so something has to give;
    above its median, so it can be reached without giving most of the throughput away.
    """
    times: float = 1.0

    def ms(self, p50_ms: float, p95_ms: float) -> float:
        """The objective in milliseconds."""
        figure = {"p50": p50_ms, "p95": p95_ms, "middle": math.sqrt(p50_ms * p95_ms)}[self.of]
        return round(self.times * figure, 1)

    @property
    def says(self) -> str:
        """The rule in words."""
        figure = "the geometric mean of the default's p50 and p95"
        if self.of != "middle":
            figure = f"the default's {self.of}"
        return figure if self.times == 1.0 else f"{self.times:g} times {figure}"


BETWEEN = Rule()
"""What holds where a scenario says nothing else."""
