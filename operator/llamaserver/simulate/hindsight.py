"""The best fixed settings of those that were tried: what could have been set by who knew the load beforehand.

No more than that: caps are bisected, chunks tried in factors of four and twice and half the best of them, and
whatever misses at most ALLOWED of the windows holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llamaserver.simulate.outcome import Outcome
from llamaserver.simulate.profiles import Profile
from llamaserver.simulate.rules.caps import Static

ALLOWED = 0.05
"""Share of windows that a setting which holds the objective may miss."""
SAME = 0.02
"""Throughputs that differ by less are the same: an open loop is served by every setting that keeps up."""
LEAST_CHUNK = 16
COARSE, FINE = 4, 2
"""Steps of the search over chunks, as factors."""
Try = Callable[[Static], Outcome]


def holds(outcome: Outcome) -> bool:
    return not outcome.violated_window_share > ALLOWED


def _worth(outcome: Outcome) -> tuple[float, ...]:
    """What makes one setting better than another: holding, then work done (where it differs by more than
    SAME), then a short wait.
    """
    if not holds(outcome):
        return (0.0, -outcome.violated_window_share, -outcome.itl_p95_s)
    wait = outcome.ttft_p95_s
    work = round(math.log(max(1e-9, outcome.tokens_per_s)) / SAME)
    return (1.0, work, -wait if math.isfinite(wait) else 0.0)


def best_cap(profile: Profile, outcome: Try) -> Static:
    """The best cap with the budget as started."""
    return _best(profile, outcome, lambda cap: Static(cap))[0]


def best_pair(profile: Profile, outcome: Try) -> Static:
    """The best cap with a budget of cap + chunk tokens: chunks in coarse steps, then around the best."""
    found: dict[int, tuple[Static, Outcome]] = {}
    most = profile.budget - profile.max_num_seqs

    def look(chunk: int) -> None:
        if LEAST_CHUNK <= chunk <= most and chunk not in found:
            found[chunk] = _best(profile, outcome, lambda cap: Static(cap, cap + chunk))

    chunk = LEAST_CHUNK
    while chunk <= most:
        look(chunk)
        chunk *= COARSE
    if found:
        centre = max(found, key=lambda c: _worth(found[c][1]))
        look(centre // FINE)
        look(centre * FINE)
    plain = _best(profile, outcome, lambda cap: Static(cap))
    return max((plain, *found.values()), key=lambda pair: _worth(pair[1]))[0]


def _best(profile: Profile, outcome: Try, at: Callable[[int], Static]) -> tuple[Static, Outcome]:
    """The largest cap that holds the objective, by bisection; of those tried the least bad if none does."""
    tried: dict[int, Outcome] = {}

    def good(cap: int) -> bool:
        tried[cap] = outcome(at(cap))
        return holds(tried[cap])

    low, high = 0, profile.max_num_seqs
    if good(high):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    cap = low or max(tried, key=lambda c: _worth(tried[c]))
    return at(cap), tried[cap]
