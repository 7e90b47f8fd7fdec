"""What is measured in the time there is, and which fixed settings are tried. Pure.

A setting is a pair of cap and budget. The sweep tries the coarse ones first, then goes on where the best so
far has neighbours that were not tried. Whatever is picked as best is measured again in every round, and
picked anew after it, so a lucky window does not make a setting the best.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.figures import Figures
from bench.scenarios import Scenario
from harness.loopback import CEILING, START_BUDGET

START_S = 50.0
"""A server's start and end, and the filling of the first batch, on two cores."""
BETWEEN_S = 2.0
"""What a slot takes besides settling and windows: the change and its drain, two readings, the last events."""
CALIBRATION_SLOTS = 2
"""Repeats of the default that the objective is made from; they count among its repeats."""
WARM_S = 24.0
"""How long a variant of ours runs before it is measured for the first time: twelve ticks to learn in."""
LEAST_SWEEP, MOST_SWEEP = 6, 36
"""Settings that the sweep of a scenario tries. Time that is left over, too, goes into trying more."""
COARSE_SHARE = 2 / 3
LEAST_REPEATS = 2
"""A setting measured once is called the best only where none was measured twice."""
LEAST_CHUNK = 8
"""Prompt tokens that a step must have room for beside its decodes, for a setting to be worth trying."""
SMALLEST_CAPS, SMALLEST_CHUNKS = 1.1, 1.25
"""Caps, and rooms for prompts, closer than these factors are not told apart by a few windows."""
EQUAL = 0.99
"""Throughputs closer than this are equal: repeats of one setting differ by more."""


@dataclass(frozen=True, order=True)
class Pair:
    """A fixed setting."""

    cap: int
    budget: int

    @property
    def chunk(self) -> int:
        """Prompt tokens that a step has room for beside the decodes of a full batch."""
        return self.budget - self.cap


DEFAULT = Pair(CEILING, START_BUDGET)
COARSE: tuple[Pair, ...] = (
    Pair(16, START_BUDGET),
    Pair(32, 64),
    Pair(8, START_BUDGET),
    Pair(32, 128),
    Pair(24, 56),
    Pair(24, START_BUDGET),
    Pair(12, START_BUDGET),
    Pair(32, 48),
    Pair(16, 48),
    Pair(32, 256),
    Pair(24, 40),
    Pair(16, 32),
    Pair(4, START_BUDGET),
    Pair(24, 128),
    Pair(20, START_BUDGET),
    Pair(16, 96),
    Pair(12, 32),
    Pair(28, START_BUDGET),
    Pair(8, 24),
    Pair(28, 60),
    Pair(20, 52),
    Pair(12, 76),
)
"""The most telling first: however many are tried, caps and pairs have their share."""

Points = Mapping[Pair, Sequence[Figures]]
"""Every setting that was tried, with its repeats."""


@dataclass(frozen=True)
class Work:
    """What is planned for one scenario."""

    scenario: Scenario
    slot_s: float
    coarse: int
    refined: int
    seconds: float


@dataclass(frozen=True)
class Wanted:
    """What was asked for."""

    scenarios: tuple[Scenario, ...]
    policies: tuple[str, ...]
    variants: tuple[str, ...]
    repeats: int
    window_s: float
    settle_s: float
    minutes: float

    @property
    def caps(self) -> bool:
        """Whether a best cap is looked for."""
        return "best_cap" in self.policies

    @property
    def pairs(self) -> bool:
        """Whether a best pair is looked for."""
        return "best_pair" in self.policies


def plan(wanted: Wanted) -> list[Work]:
    """Give every scenario the same number of settings to try: as many as there is time for."""
    slots = {s.name: s.slot_s(wanted.settle_s, wanted.window_s) + BETWEEN_S for s in wanted.scenarios}
    fixed = {name: fixed_s(wanted, slot) for name, slot in slots.items()}
    left = 60 * wanted.minutes - sum(fixed.values())
    tried = 0
    if wanted.caps or wanted.pairs:
        tried = max(LEAST_SWEEP, min(MOST_SWEEP, int(left / sum(slots.values()))))
    coarse = min(round(COARSE_SHARE * tried), len(coarse_grid(wanted.caps, wanted.pairs, len(COARSE))))
    return [
        Work(s, slots[s.name], coarse, tried - coarse, fixed[s.name] + tried * slots[s.name])
        for s in wanted.scenarios
    ]


def fixed_s(wanted: Wanted, slot_s: float) -> float:
    """Seconds of a scenario besides its sweep."""
    return (
        START_S
        + CALIBRATION_SLOTS * slot_s
        + len(wanted.variants) * WARM_S
        + rounds_s(wanted, slot_s, swept=True)
    )


def rounds_s(wanted: Wanted, slot_s: float, swept: bool) -> float:
    """Seconds of the rounds after the sweep. What was measured before them counts as a repeat."""
    slots = len(wanted.variants) * wanted.repeats
    if "default" in wanted.policies:
        slots += default_repeats(wanted.repeats) - CALIBRATION_SLOTS
    slots += (wanted.caps + wanted.pairs) * max(0, wanted.repeats - swept)
    return slots * slot_s


def default_repeats(repeats: int) -> int:
    """Of the default: those that the objective is made from, and at least one beside the other policies."""
    return max(repeats, CALIBRATION_SLOTS + 1)


def coarse_grid(caps: bool, pairs: bool, count: int) -> list[Pair]:
    """The first `count` settings to try, from the smallest cap up: a raised cap needs no drain."""
    kinds = [pair for pair in COARSE if (caps and is_cap(pair)) or pairs]
    return sorted(kinds[:count])


def is_cap(pair: Pair) -> bool:
    """Whether the budget is what the engine started with: a cap alone."""
    return pair.budget == START_BUDGET


def holds(repeats: Sequence[Figures], target_ms: float) -> bool:
    """Whether a setting holds the objective: the median over its repeats of the p95 that clients see."""
    return median(figure.itl_p95_ms for figure in repeats) <= target_ms


def pick(points: Points, target_ms: float, caps_only: bool, repeats: int = 1) -> Pair | None:
    """The setting with most tokens a second of those that hold the objective; None when none does.

    Settings with fewer than `repeats` repeats count only where none has as many.
    """
    able = {
        pair: median(figure.tokens_per_s for figure in found)
        for pair, found in points.items()
        if found and (is_cap(pair) or not caps_only) and holds(found, target_ms)
    }
    told = {pair: rate for pair, rate in able.items() if len(points[pair]) >= repeats}
    best = told or able
    if not best:
        return None
    enough = EQUAL * max(best.values())
    # Of those that are as good as the best, the one that is known best.
    return max((pair for pair in best if best[pair] >= enough), key=lambda p: (len(points[p]), best[p], p))


def refine(points: Points, target_ms: float, caps_only: bool) -> Pair | None:
    """The next setting to try round the best; None when it has no neighbour left that would tell more."""
    tried = {pair for pair in points if is_cap(pair) or not caps_only}
    best = pick(points, target_ms, caps_only)
    if best is None:
        found = _smaller(min(tried), caps_only)
        return found if found is not None and found not in tried else None
    if caps_only:
        higher = min((pair.cap for pair in tried if pair.cap > best.cap), default=CEILING)
        cap = _between(best.cap, higher)
        return None if cap is None else Pair(cap, START_BUDGET)
    failed = {pair for pair in tried if not holds(points[pair], target_ms)}
    return next((pair for pair in _neighbours(best, tried, failed) if pair not in tried), None)


def _smaller(lowest: Pair, caps_only: bool) -> Pair | None:
    """For when nothing tried holds the objective: half of the smallest setting."""
    cap = max(1, lowest.cap // 2)
    if caps_only:
        return Pair(cap, START_BUDGET) if cap < lowest.cap else None
    chunk = LEAST_CHUNK if is_cap(lowest) else max(LEAST_CHUNK, lowest.chunk // 2)
    found = Pair(cap, cap + chunk)
    return found if found < lowest else None


def _neighbours(best: Pair, tried: Collection[Pair], failed: Collection[Pair]) -> list[Pair]:
    """Settings next to the best, halfway to those that were tried: first where there is most to be had."""
    found: list[Pair] = []
    for cap in sorted({pair.cap for pair in tried if pair.cap > best.cap}, reverse=True):
        lowest = min(pair for pair in tried if pair.cap == cap)
        if lowest in failed and (chunk := _between(LEAST_CHUNK, lowest.chunk, SMALLEST_CHUNKS)) is not None:
            found.append(Pair(cap, cap + chunk))
    same_cap = [pair.chunk for pair in tried if pair.cap == best.cap]
    above = min((c for c in same_cap if c > best.chunk), default=None)
    below = max((c for c in same_cap if c < best.chunk), default=LEAST_CHUNK)
    if above is not None and (chunk := _between(best.chunk, above, SMALLEST_CHUNKS)) is not None:
        found.append(Pair(best.cap, best.cap + chunk))
    higher = min((pair.cap for pair in tried if pair.cap > best.cap), default=CEILING)
    # The budget grows with the batch, or the prompts would wait for the decodes' tokens.
    found += [
        Pair(cap, START_BUDGET if is_cap(best) else cap + best.chunk)
        for cap in (higher, _between(best.cap, higher))
        if cap is not None and cap > best.cap
    ]
    if (chunk := _between(below, best.chunk, SMALLEST_CHUNKS)) is not None:
        found.append(Pair(best.cap, best.cap + chunk))
    return found


def _between(low: int, high: int, smallest: float = SMALLEST_CAPS) -> int | None:
    """The geometric middle of two values; None when they are too close to tell it from either."""
    middle = round(math.sqrt(low * high))
    return middle if low < middle < high and high / low > smallest else None


def describe(wanted: Wanted, work: Sequence[Work]) -> list[str]:
    """The plan, in lines for people."""
    lines = [
        f"{'scenario':20} {'slot':>6} {'coarse':>7} {'refined':>8} {'repeats':>8} {'minutes':>8}",
        *(
            f"{w.scenario.name:20} {w.slot_s:4.0f} s {w.coarse:7} {w.refined:8} {wanted.repeats:8} "
            f"{w.seconds / 60:8.1f}"
            for w in work
        ),
    ]
    total = sum(w.seconds for w in work) / 60
    lines.append(f"{len(work)} scenarios, about {total:.0f} minutes; asked for were {wanted.minutes:.0f}")
    if total > wanted.minutes + 0.5:
        lines.append(
            f"the smallest sweep, {LEAST_SWEEP} settings a scenario, already takes longer than asked for: "
            "fewer --scenarios, --policies or --repeats would fit"
        )
    return lines
