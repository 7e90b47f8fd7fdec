"""The law against every baseline, scenario by scenario: by attainment and by cost.

Attainment is one less the share of windows missed, cost are the GPU-seconds of the run, both means over the
seeds. Who is no worse in both and better in one is better. Where a fixed number of replicas serves, cost is
the same for all and attainment alone decides. A baseline is what is not the law, a part of it, or the law's
caps beside other replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from control.ablations import ABLATIONS
from llamaserver.simulate.policies import BEST_CAP, BEST_PAIR, LAW, LAW_CAP

Json = Mapping[str, Any]
OURS = (LAW, LAW_CAP)
KNOWING = (BEST_CAP, BEST_PAIR)
"""Found in hindsight: nobody has them beforehand."""


class Verdict(StrEnum):
    """What a baseline is beside the law."""

    WORSE = "worse"
    SAME = "as good"
    CHEAPER = "cheaper, misses more"
    DEARER = "dearer, misses less"
    BETTER = "better"


@dataclass(frozen=True)
class Row:
    """One baseline in one scenario, with what the law did there beside it."""

    scenario: str
    baseline: str
    verdict: Verdict
    theirs: Json
    ours: Json


def verdict(theirs: tuple[float, float], ours: tuple[float, float]) -> Verdict:
    """Of (share missed, GPU-seconds)."""
    if theirs == ours:
        return Verdict.SAME
    misses_less, cheaper = theirs[0] < ours[0], theirs[1] < ours[1]
    if theirs[0] <= ours[0] and theirs[1] <= ours[1]:
        return Verdict.BETTER
    if misses_less or cheaper:
        return Verdict.DEARER if misses_less else Verdict.CHEAPER
    return Verdict.WORSE


def standing(scenarios: Json) -> list[Row]:
    """Every baseline in every scenario in which both were run."""
    rows = []
    for name, told in scenarios.items():
        ours = told.get(LAW)
        if ours is None or (us := _point(ours)) is None:
            continue
        for policy, theirs in told.items():
            if isinstance(theirs, Mapping) and _baseline(policy) and (them := _point(theirs)) is not None:
                rows.append(Row(name, policy, verdict(them, us), theirs, ours))
    return rows


def _baseline(policy: str) -> bool:
    return policy.partition("+")[0] not in OURS and policy not in ABLATIONS


def _point(figures: Json) -> tuple[float, float] | None:
    missed, spent = _mean(figures, "violated_window_share"), _mean(figures, "gpu_seconds")
    return None if missed is None or spent is None else (missed, spent)


def _mean(figures: Json, name: str) -> float | None:
    mean = figures.get(name, {}).get("mean")
    return None if mean is None else float(mean)


COUNTS = ("scenario", "baselines", *Verdict)
DETAILS = (
    "scenario",
    "baseline",
    "it is",
    "attainment, % (law)",
    "GPU-s (law)",
    "good tokens of the law's, %",
    "queue p95, s (law)",
)


def counts(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """How many baselines are what beside the law, by scenario; who is better is named."""
    by_scenario: dict[str, list[Row]] = {}
    for row in rows:
        by_scenario.setdefault(row.scenario, []).append(row)
    return [
        (name, str(len(some)), *(_of(some, which) for which in Verdict)) for name, some in by_scenario.items()
    ]


def _of(rows: Sequence[Row], which: Verdict) -> str:
    found = [_named(row) for row in rows if row.verdict is which]
    if which is Verdict.BETTER and found:
        return ", ".join(found)
    return str(len(found))


def details(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Every baseline that is not worse and not the same, with the figures that say why."""
    return [_detail(row) for row in rows if row.verdict not in (Verdict.WORSE, Verdict.SAME)]


def _detail(row: Row) -> tuple[str, ...]:
    missed, spent, wait = (
        [_mean(side, figure) for side in (row.theirs, row.ours)]
        for figure in ("violated_window_share", "gpu_seconds", "queue_p95_s")
    )
    made, law = (_mean(side, "goodput") for side in (row.theirs, row.ours))
    share = "-" if made is None or not law else f"{100 * made / law:.0f}"
    attained = [None if m is None else 1.0 - m for m in missed]
    return (
        row.scenario,
        _named(row),
        str(row.verdict),
        _beside(attained, 100.0, 1),
        _beside(spent, 1.0, 0),
        share,
        _beside(wait, 1.0, 1),
    )


def _named(row: Row) -> str:
    """With a mark where it was found in hindsight."""
    return f"{row.baseline} (hindsight)" if row.baseline in KNOWING else row.baseline


def _beside(pair: Sequence[float | None], factor: float, digits: int) -> str:
    theirs, ours = ("-" if value is None else f"{factor * value:.{digits}f}" for value in pair)
    return f"{theirs} ({ours})"


def summary(rows: Sequence[Row]) -> str:
    """One sentence: how often a baseline is what."""
    number = {which: sum(row.verdict is which for row in rows) for which in Verdict}
    return (
        f"Of {len(rows)} pairs of a scenario and a baseline, the baseline is worse than the law in "
        f"{number[Verdict.WORSE]}, as good in {number[Verdict.SAME]}, cheaper and misses more in "
        f"{number[Verdict.CHEAPER]}, dearer and misses less in {number[Verdict.DEARER]}, and better in "
        f"{number[Verdict.BETTER]}."
    )
