"""What the law is to reach in a scenario, and whether it did: over the means of the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llamaserver.simulate.policies import LAW

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A figure of the law is to be at most this much; with `beside` the same over that policy's figure."""

    says: str
    figure: str
    most: float
    beside: str = ""


def reached(targets: Iterable[Target], policies: Json) -> list[dict[str, Any]]:
    """For each target its words, the bound, the value, and whether it is kept; both are None where what they
    need was not run. A figure that no seed has, since nothing was to recover, is kept without a value.
    """
    return [_reached(target, policies) for target in targets]


def _reached(target: Target, policies: Json) -> dict[str, Any]:
    value = _mean(policies, LAW, target.figure)
    if target.beside and value is not None:
        over = _mean(policies, target.beside, target.figure)
        value = value / over if over else None
    met = None if value is None else value <= target.most
    if policies.get(LAW, {}).get(target.figure, {}).get("seeds") == 0:
        met = True
    return {"says": target.says, "most": target.most, "value": value, "met": met}


def _mean(policies: Json, policy: str, figure: str) -> float | None:
    mean = policies.get(policy, {}).get(figure, {}).get("mean")
    return None if mean is None else float(mean)


def told(found: Json) -> str:
    """One of them in words."""
    if found["met"] is None:
        return f"{found['says']}: not run (at most {found['most']:g})"
    if found["value"] is None:
        return f"{found['says']}: nothing was to recover (at most {found['most']:g}): kept"
    verdict = "kept" if found["met"] else "NOT KEPT"
    return f"{found['says']}: {found['value']:.2f} (at most {found['most']:g}): {verdict}"
