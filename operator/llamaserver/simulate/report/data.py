"""A comparison as plain data, for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev
from typing import Any

from llamaserver.control import Objective
from llamaserver.simulate.compare import Result, Scenario
from llamaserver.simulate.outcome import FIGURES, SETTLE_S, Outcome
from llamaserver.simulate.policies import SAYS, SCALERS_SAY
from llamaserver.simulate.profiles import Calibrated, Profile
from llamaserver.simulate.routers import LEAST_LOADED
from llamaserver.simulate.rules.caps import Static

Json = dict[str, Any]
_T_975 = (math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t for a 95 % interval, by degrees of freedom."""


def said(objective: Objective) -> str:
    """The objective in words."""
    if objective.itl_s is None:
        return "no latency objective"
    return f"{measure(objective)} at most {1e3 * objective.itl_s:g} ms"


def measure(objective: Objective) -> str:
    """What is held below the target, in words."""
    of = "requests' times per output token" if objective.of_requests else "the inter-token latency"
    return f"{objective.itl_statistic} of {of}"


def asked(objective: Objective) -> Json:
    """The objective as data; the scope only where it is not the usual one."""
    found: Json = {"statistic": objective.itl_statistic.value, "target_s": objective.itl_s}
    return found | ({"scope": objective.itl_scope.value} if objective.of_requests else {})


def routed(scenario: Scenario) -> str:
    """How requests find their replica, in words to append; empty where it is as usual."""
    return "" if scenario.router == LEAST_LOADED else f"; {scenario.router} router"


def description(name: str) -> str:
    """What a policy is, in words."""
    caps, _, scaler = name.partition("+")
    return f"{SAYS[caps]}; replicas by {SCALERS_SAY[scaler]}" if scaler else SAYS[caps]


def setting(result: Result) -> str:
    """What was found in hindsight, in words; empty for policies that move."""
    static = result.policy.caps
    if not isinstance(static, Static) or static.cap is None:
        return ""
    return f"cap {static.cap}" + (f", budget {static.budget}" if static.budget is not None else "")


def document(scenario: Scenario, calibrated: Calibrated, results: Sequence[Result]) -> Json:
    """Everything that was asked and found. Times in seconds; None where nothing was measured.

    `policies.<name>` has `mean`, `ci95` (half the width of the interval over seeds; None with one seed) and
    `seeds`.
    """
    demand, objective = scenario.demand(scenario.seeds[0]), scenario.objective
    return {
        "demand": {
            "name": demand.name,
            "duration_s": demand.duration_s,
            "requests": len(demand.requests),
            "source": demand.source,
        },
        "profile": {
            "name": calibrated.name,
            "source": calibrated.source,
            **{name: getattr(scenario.profile, name) for name in Profile.__dataclass_fields__},
        },
        "objective": asked(objective),
        "replicas": {
            "start": scenario.replicas,
            "min": scenario.replicas_min,
            "max": scenario.replicas_max,
            "cold_start_s": scenario.cold_start_s,
        },
        "prefix_cache": scenario.prefix_cache,
        "router": scenario.router,
        "judged_from_s": SETTLE_S,
        "seeds": list(scenario.seeds),
        "policies": {r.policy.name: _policy(r) for r in results},
    }


def _policy(result: Result) -> Json:
    return {
        "says": description(result.policy.name),
        "setting": setting(result),
        "mean": figures(result.mean),
        "ci95": {name: interval(_values(result.outcomes, name)) for name in FIGURES},
        "seeds": [figures(outcome) for outcome in result.outcomes],
    }


def _values(outcomes: Sequence[Outcome], name: str) -> list[float]:
    """One figure of those that have it."""
    return [value for o in outcomes if (value := getattr(o, name)) is not None]


def figures(outcome: Outcome) -> Json:
    """One outcome; None where nothing was measured."""
    return {name: _finite(getattr(outcome, name)) for name in FIGURES}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean, by Student's t; None for less than two values."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    t = _T_975[len(values) - 1] if len(values) <= len(_T_975) else 2.0
    return t * stdev(values) / math.sqrt(len(values))
