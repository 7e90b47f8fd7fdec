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

from bench.figures import Figures, worst_tail_ms
from bench.scenarios import Scenario, seconds
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
LONG_WINDOWS = 3
"""A scenario whose repeats have so many windows gets half of the repeats, and `LONG_SWEEP` of the settings:
each of them says more, and takes as much more time.
"""
LONG_SWEEP = 2 / 3
COARSE_SHARE = 2 / 3
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
    repeats: int
    coarse: int
    refined: int
    most: int
    """Settings that the sweep tries at most, however much time is left."""
    seconds: float

    @property
    def tried(self) -> int:
        """Settings that the sweep tries in the time planned for it."""
        return self.coarse + self.refined


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
    statistic: str

    @property
    def caps(self) -> bool:
        """Whether a best cap is looked for."""
        return "best_cap" in self.policies

    @property
    def pairs(self) -> bool:
        """Whether a best pair is looked for."""
        return "best_pair" in self.policies


def plan(wanted: Wanted) -> list[Work]:
    """Give every scenario its share of settings to try: as many as there is time for."""
    slots = {s.name: s.slot_s(wanted.settle_s, wanted.window_s) + BETWEEN_S for s in wanted.scenarios}
    fixed = {s.name: fixed_s(wanted, s, slots[s.name]) for s in wanted.scenarios}
    left = 60 * wanted.minutes - sum(fixed.values())

    def takes(tried: int) -> float:
        return sum(_share(wanted, s, tried) * slots[s.name] for s in wanted.scenarios)

    tried = max((n for n in range(LEAST_SWEEP, MOST_SWEEP + 1) if takes(n) <= left), default=LEAST_SWEEP)
    grid = len(coarse_grid(wanted.caps, wanted.pairs, len(COARSE)))
    found = []
    for scenario in wanted.scenarios:
        slot, settings = slots[scenario.name], _share(wanted, scenario, tried)
        coarse = min(round(COARSE_SHARE * settings), grid)
        found.append(
            Work(
                scenario,
                slot,
                repeats(wanted, scenario),
                coarse,
                settings - coarse,
                _share(wanted, scenario, MOST_SWEEP),
                fixed[scenario.name] + settings * slot,
            )
        )
    return found


def is_long(scenario: Scenario) -> bool:
    """Whether a repeat has several windows, and takes the time of several."""
    return scenario.windows >= LONG_WINDOWS


def repeats(wanted: Wanted, scenario: Scenario) -> int:
    """Of every policy."""
    return math.ceil(wanted.repeats / 2) if is_long(scenario) else wanted.repeats


def kinds(wanted: Wanted) -> list[bool]:
    """Which bests are looked for: True for that of the caps alone."""
    return [caps_only for caps_only, asked in ((True, wanted.caps), (False, wanted.pairs)) if asked]


def _share(wanted: Wanted, scenario: Scenario, tried: int) -> int:
    """Settings that the sweep of a scenario tries where one of a single window tries `tried`."""
    if not (kinds(wanted) and scenario.sweeps):
        return 0
    return round(LONG_SWEEP * tried) if is_long(scenario) else tried


def fixed_s(wanted: Wanted, scenario: Scenario, slot_s: float) -> float:
    """Seconds of a scenario besides its sweep."""
    full = seconds(scenario.full, wanted.settle_s, wanted.window_s) + BETWEEN_S if scenario.full else slot_s
    return (
        START_S
        + CALIBRATION_SLOTS * full
        + len(wanted.variants) * WARM_S
        + rounds_s(wanted, scenario, slot_s)
    )


def rounds_s(wanted: Wanted, scenario: Scenario, slot_s: float) -> float:
    """Seconds of the rounds after the sweep. What was measured before them counts as a repeat."""
    count = repeats(wanted, scenario)
    slots = len(wanted.variants) * count
    if "default" in wanted.policies:
        slots += default_repeats(count) - (0 if scenario.full else CALIBRATION_SLOTS)
    if scenario.sweeps:
        slots += len(kinds(wanted)) * (count - 1)
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
    """Whether a setting holds the objective in every part: the tail that clients see, median over repeats."""
    return worst_tail_ms(repeats) <= target_ms


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
            f"{w.scenario.name:20} {w.slot_s:4.0f} s {w.coarse:7} {w.refined:8} {w.repeats:8} "
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
