"""The result as JSON: what build/bench/engine.json holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from bench.figures import Figures, parts, spread, summary
from bench.measure import Measured
from bench.plan import DEFAULT, Pair, Wanted, holds, is_cap, pick

Json = dict[str, Any]


def result(
    wanted: Wanted,
    found: Iterable[Measured],
    *,
    started: str,
    machine: Mapping[str, Any],
    versions: Mapping[str, str],
    tuner_us: float | None = None,
    incomplete: str,
    seconds: float,
) -> Json:
    """Everything that is known. `incomplete` says why that is less than was asked for; "" when it is all.
    `tuner_us` is what the tuner's own work takes of a step, in microseconds.
    """
    measured = list(found)
    costs = [m.us_per_step for m in measured if m.us_per_step is not None]
    of_engine = next((m.versions for m in measured if m.versions), {})
    return {
        "started": started,
        "seconds": round(seconds, 1),
        "complete": not incomplete,
        "incomplete": incomplete,
        "machine": dict(machine),
        "versions": {**versions, **of_engine},
        "asked": {
            "repeats": wanted.repeats,
            "window_s": wanted.window_s,
            "settle_s": wanted.settle_s,
            "minutes": wanted.minutes,
            "statistic": wanted.statistic,
            "policies": list(wanted.policies),
        },
        "actuator_us_per_step": (tuner_us or 0.0) + max(costs, default=0.0) or None,
        "scenarios": {m.scenario.name: scenario(wanted, m) for m in measured if m.points},
    }


def scenario(wanted: Wanted, found: Measured) -> Json:
    """One scenario; a policy that was not measured, or a best that does not exist, is null."""
    target = found.target_ms
    said: Json = {
        "says": found.scenario.says,
        "complete": found.complete,
        "target_ms": target,
        "objective": {
            "statistic": found.statistic,
            "rule": found.scenario.objective.says(found.statistic),
            "default_p50_ms": found.default_p50_ms,
            "default_tail_ms": found.default_tail_ms,
        },
        "streams": found.streams,
        "streams_cut": found.cut,
        "load_average_before": found.load_average,
        "others_cores": others_cores(found),
    }
    if "default" in wanted.policies:
        said["default"] = fixed(found, DEFAULT) if DEFAULT in found.points else None
    for name, caps_only in (("best_cap", True), ("best_pair", False)):
        if name in wanted.policies:
            best = pick(found.points, target, caps_only, found.repeats) if target is not None else None
            said[name] = None if best is None else fixed(found, best)
    for name in wanted.variants:
        repeats = found.variants.get(name)
        said[name] = policy(repeats, target) if repeats else None
    said["sweep"] = [fixed(found, pair) for pair in sorted(found.points)]
    return said


def others_cores(found: Measured) -> float | None:
    """Cores that something else on the machine used: the median over all repeats of all policies."""
    repeats = [*found.points.values(), *found.variants.values()]
    known = [f.others_cores for of_one in repeats for f in of_one if f.others_cores is not None]
    return round(median(known), 3) if known else None


def fixed(found: Measured, pair: Pair) -> Json:
    """A fixed setting, as set: while a cap drains, or with a batch below it, less may be in force."""
    kind = {"cap": pair.cap, "budget": pair.budget, "budget_at_start": is_cap(pair)}
    return {**policy(found.points[pair], found.target_ms), **kind}


def policy(repeats: Sequence[Figures], target_ms: float | None) -> Json:
    """The medians over the repeats, and how far these lie apart."""
    return {
        **summary(repeats),
        "holds": target_ms is not None and holds(repeats, target_ms),
        "repeats": len(repeats),
        "parts": [asdict(part) for part in parts(repeats)],
        "spread": spread(repeats),
    }
