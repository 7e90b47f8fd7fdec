"""Whether engines whose cap cannot be moved are restarted with another --max-num-seqs now.

Rather too seldom than too often: a restart costs every pod a start, and who has one replica has none
meanwhile. So it is done for an objective that has been missed for long, by what was measured, for a change
that is worth it, while nothing else is under way, and at most once in an interval that the user sets.

It does not swing. A number that was left because the objective was missed with it is an upper bound from then
on, one that was left because requests waited although the objective held is a lower bound, and each restart
goes strictly between the two. Both hold for the objective and the kind of load they were found under; with
others they say nothing any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llamaserver.control.line import Load
from llamaserver.control.recovery import LOOK_AGAIN_S, Standing, obstacle
from llamaserver.control.types import Found

SUSTAINED_S = 600.0
WORTH_A_CUT, WORTH_A_RAISE = 1.25, 1.5
"""Smallest factor between the numbers before and after. A raise is for throughput alone, and has to bring
more.
"""
ALIKE = 0.4
"""Loads of which a figure differs by more, as a logarithm, are of another kind: half as much again."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the user allows. Sequences per engine."""

    min_interval_s: float
    low: int
    high: int
    acting: bool
    """False in mode Recommend: it is only said what would be done."""
    objective: str


@dataclass(frozen=True, slots=True)
class Past:
    """The last restart, in Unix seconds, and what it left behind. `missed` and `starved` are the bounds."""

    at: float = -math.inf
    objective: str = ""
    load: Load | None = None
    missed: int | None = None
    starved: int | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Start all engines anew with so many sequences. `past` is what is to be remembered of it."""

    seqs: int
    past: Past
    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing is restarted, and why. Look again after so many seconds; None where new figures will tell."""

    reason: str
    again_s: float | None = None


def restart(terms: Terms, found: Found | None, fleet: Standing, past: Past, now: float) -> Restart | Hold:
    """What to do now; `now` in Unix seconds, as in `past`. The same arguments always give the same answer."""
    if not terms.objective:
        return Hold("no latency objective is declared, so none is missed")
    if found is None:
        return Hold("no engine gives figures")
    if found.live:
        return Hold("the cap of running engines is moved live, which needs no restart")
    down = _sustained(found.missed_s, past, now)
    if not down and not _sustained(found.starved_s, past, now):
        return Hold(f"the objective has not been missed for {SUSTAINED_S / 60:g} minutes")
    chosen = _choice(terms, found, _remembered(terms, found, past), down)
    if isinstance(chosen, Hold):
        return chosen
    told = f"engines are started with {chosen.seqs} instead of {found.started} sequences"
    if not terms.acting:
        return Hold(f"recommended: {told}: {chosen.reason}")
    if reason := obstacle(fleet) or ("" if fleet.replicas else "no pod runs"):
        return Hold(f"{told} once that can be: {reason}", LOOK_AGAIN_S)
    if (left := past.at + terms.min_interval_s - now) > 0.0:
        return Hold(f"{told} in {left / 60:.0f} minutes at the earliest (minInterval)", LOOK_AGAIN_S)
    kept = chosen.past
    return Restart(
        chosen.seqs,
        Past(now, kept.objective, kept.load, kept.missed, kept.starved),
        chosen.reason,
    )


def _sustained(held_s: float, past: Past, now: float) -> bool:
    """Whether something has held for long enough, of which what held before the last restart is no part."""
    return min(held_s, now - past.at) >= SUSTAINED_S


def _remembered(terms: Terms, found: Found, past: Past) -> Past:
    """The bounds that still hold, for this objective and load."""
    if past.objective == terms.objective and alike(past.load or Load(), found.load):
        return past
    return Past(past.at)


def alike(a: Load, b: Load) -> bool:
    """Whether two loads are of one kind, as far as both tell."""
    pairs = ((a.context, b.context), (a.prefill, b.prefill))
    return all(x is None or y is None or abs(math.log(x / y)) <= ALIKE for x, y in pairs)


def _choice(terms: Terms, found: Found, known: Past, down: bool) -> Restart | Hold:
    """The number to start with, `worth` its restart; else why there is none."""
    if found.wanted is None:
        return Hold(f"nothing is restarted: {found.reason}")
    if down and found.wanted < terms.low:
        return Hold(
            f"nothing is restarted: even {terms.low} sequences would miss the objective ({found.seen}); "
            "relax slo.interTokenLatency.target, or lower spec.tuning.numSeqs.min"
        )
    if down and found.wanted >= found.running:
        return Hold(
            f"nothing is restarted: the objective is missed ({found.seen}) although engines run "
            f"{found.running} sequences, and about {found.wanted} should hold it: fewer are no sure cure"
        )
    least = terms.low if known.starved is None else max(terms.low, known.starved + 1)
    most = terms.high if known.missed is None else min(terms.high, known.missed - 1)
    seqs = max(least, min(found.wanted, most))
    worth = found.started >= WORTH_A_CUT * seqs if down else seqs >= WORTH_A_RAISE * found.started
    if seqs < 1 or least > most or not worth:
        return Hold(
            f"nothing is restarted: about {found.wanted} sequences would hold the objective, which is too "
            f"near to {found.started}, or to what was tried before under this load"
        )
    if down:
        past = Past(known.at, terms.objective, found.load, found.started, known.starved)
        reason = (
            f"the objective has been missed for {found.missed_s / 60:.0f} minutes ({found.seen}), and about "
            f"{found.wanted} sequences would hold it"
        )
    else:
        past = Past(known.at, terms.objective, found.load, known.missed, found.started)
        reason = (
            f"requests have waited for full engines for {found.starved_s / 60:.0f} minutes although the "
            f"objective holds ({found.seen}), and about {found.wanted} sequences would still hold it"
        )
    return Restart(seqs, past, reason)
