"""Whether engines whose cap cannot be moved are restarted with another --max-num-seqs now.

Rather too seldom than too often: a restart costs every pod a start, and who has one replica has none
meanwhile. So it is done for an objective that has been missed for long, by what was measured, for a change
that is worth it, while nothing else is under way, and at most once in an interval that the user sets.

It does not swing. A number that was left because the objective was missed with it is an upper bound from then
on, one that was left because requests waited although the objective held is a lower bound, and each restart
goes strictly between the two. Each holds for the objective and the kind of load it was found under; with
others it says nothing any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from llamaserver.api.enums import RestartState
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
LIVE_AGAIN_S = 3600.0
"""For so long the return of a live cap is waited for: a tuner that cannot be reached comes back, and then the
number that was restarted with would bound it.
"""


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
class Bound:
    """A number that was left, and the load that it was left under."""

    seqs: int
    load: Load


@dataclass(frozen=True, slots=True)
class Past:
    """The last restart, in Unix seconds, and the bounds that it left behind, for this objective."""

    at: float = -math.inf
    objective: str = ""
    missed: Bound | None = None
    starved: Bound | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Start all engines anew with so many sequences. `past` is what is to be remembered of it."""

    seqs: int
    past: Past
    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing is restarted, and why. Look again after so many seconds; None where new figures will tell."""

    state: RestartState
    reason: str
    again_s: float | None = None


def restart(terms: Terms, found: Found | None, fleet: Standing, past: Past, now: float) -> Restart | Hold:
    """What to do now; `now` in Unix seconds, as in `past`. The same arguments always give the same answer."""
    if not terms.objective:
        return Hold(RestartState.OFF, "no latency objective is declared, so none is missed")
    if found is None:
        return Hold(RestartState.NOT_KNOWN, "no engine gives figures")
    if (live := _live(found)) is not None:
        return live
    down = _sustained(found.missed_s, past, now)
    if not down and not _sustained(found.starved_s, past, now):
        text = f"the objective has not been missed for {SUSTAINED_S / 60:g} minutes"
        return Hold(RestartState.NOT_NEEDED, text)
    chosen = _choice(terms, found, _remembered(terms, found, past), down)
    if isinstance(chosen, Hold):
        return chosen
    told = f"engines are started with {chosen.seqs} instead of {found.started} sequences"
    if not terms.acting:
        return Hold(RestartState.RECOMMENDED, f"recommended: {told}: {chosen.reason}")
    if reason := obstacle(fleet) or ("" if fleet.replicas else "no pod runs"):
        return Hold(RestartState.WAITING_FOR_FLEET, f"{told} once that can be: {reason}", LOOK_AGAIN_S)
    if (left := past.at + terms.min_interval_s - now) > 0.0:
        text = f"{told} in {left / 60:.0f} minutes at the earliest (minInterval)"
        return Hold(RestartState.WAITING_FOR_INTERVAL, text, LOOK_AGAIN_S)
    return replace(chosen, past=replace(chosen.past, at=now))


def _live(found: Found) -> Hold | None:
    """Where caps are moved live, or may be again before long."""
    if found.live:
        return Hold(RestartState.LIVE, "the cap of running engines is moved live, which needs no restart")
    if found.live_ago_s < LIVE_AGAIN_S:
        text = (
            f"the cap of running engines was moved live {found.live_ago_s / 60:.0f} minutes ago: whether "
            f"that comes back is waited for, {LIVE_AGAIN_S / 60:g} minutes at most"
        )
        return Hold(RestartState.LIVE, text, LOOK_AGAIN_S)
    return None


def _sustained(held_s: float, past: Past, now: float) -> bool:
    """Whether something has held for long enough, of which what held before the last restart is no part."""
    return min(held_s, now - past.at) >= SUSTAINED_S


def _remembered(terms: Terms, found: Found, past: Past) -> Past:
    """The bounds that still hold, for this objective and load."""
    if past.objective != terms.objective:
        return Past(past.at, terms.objective)
    missed, starved = (
        bound if bound is not None and alike(bound.load, found.load) else None
        for bound in (past.missed, past.starved)
    )
    return replace(past, missed=missed, starved=starved)


def alike(a: Load, b: Load) -> bool:
    """Whether two loads are of one kind, as far as both tell."""
    pairs = ((a.context, b.context), (a.prefill, b.prefill))
    return all(x is None or y is None or abs(math.log(x / y)) <= ALIKE for x, y in pairs)


def _choice(terms: Terms, found: Found, known: Past, down: bool) -> Restart | Hold:
    """The number to start with, `worth` its restart; else why there is none."""
    if found.wanted is None:
        return Hold(RestartState.NOT_KNOWN, f"nothing is restarted: {found.reason}")
    if why := _no_cure(terms, found, known, found.wanted) if down else "":
        return Hold(RestartState.NO_BETTER_NUMBER, f"nothing is restarted: {why}")
    least = terms.low if known.starved is None else max(terms.low, known.starved.seqs + 1)
    most = terms.high if known.missed is None else min(terms.high, known.missed.seqs - 1)
    seqs = max(terms.low, min(found.wanted, most))
    worth = found.started >= WORTH_A_CUT * seqs if down else seqs >= WORTH_A_RAISE * found.started
    if seqs < 1 or not least <= seqs <= most or not worth:
        text = (
            f"nothing is restarted: about {found.wanted} sequences would hold the objective, which is too "
            f"near to {found.started}, or to what was tried before under this load"
        )
        return Hold(RestartState.NO_BETTER_NUMBER, text)
    left = Bound(found.started, found.load)
    if down:
        reason = (
            "the objective, judged by an average of two minutes, has been missed for "
            f"{found.missed_s / 60:.0f} minutes ({found.seen}), and about {found.wanted} sequences would "
            "hold it"
        )
        return Restart(seqs, replace(known, missed=left), reason)
    reason = (
        f"requests have waited for full engines for {found.starved_s / 60:.0f} minutes although the "
        f"objective holds ({found.seen}), and about {found.wanted} sequences would still hold it"
    )
    return Restart(seqs, replace(known, starved=left), reason)


def _no_cure(terms: Terms, found: Found, known: Past, wanted: int) -> str:
    """Why fewer sequences are no cure for an objective that is missed; empty where they are."""
    if wanted < terms.low:
        return (
            f"even {terms.low} sequences would miss the objective ({found.seen}); "
            "relax slo.interTokenLatency.target, or lower spec.tuning.numSeqs.min"
        )
    if wanted >= found.running:
        return (
            f"the objective is missed ({found.seen}) although engines run {found.running} sequences, and "
            f"about {wanted} should hold it: fewer are no sure cure"
        )
    if known.starved is not None and wanted <= known.starved.seqs:
        return (
            f"fewer than {known.starved.seqs + 1} sequences left requests waiting under this load, and more "
            f"than {wanted} miss the objective ({found.seen}): add replicas, or relax "
            "slo.interTokenLatency.target"
        )
    return ""
