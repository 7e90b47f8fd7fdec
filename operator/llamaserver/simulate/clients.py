"""What clients saw, from the logs of the engines: statistics over windows of judgement."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from llamaserver.api.enums import Statistic
from llamaserver.control.objective import JUDGED_S, QUANTILES

Token = tuple[float, float, int]
"""(when, seconds since the one before, how many such tokens); or of a request: (when it ended, seconds per
output token, 1).
"""


def windows(
    tokens: Iterable[Token], start: float, seconds: float = JUDGED_S, least: int = 1
) -> Iterator[tuple[float, list[tuple[float, int]]]]:
    """(end of the window, its (seconds, tokens)) for each of `seconds` from `start` on that has tokens; one
    with fewer than `least` goes on for as long again.
    """
    at, window, held = start, list[tuple[float, int]](), 0
    for t, y, n in sorted(token for token in tokens if token[0] > start and token[2]):
        while t > at + seconds:
            at += seconds
            if held >= least:
                yield at, window
                window, held = [], 0
        window.append((y, n))
        held += n


def statistic(window: Sequence[tuple[float, int]], which: Statistic) -> float:
    """Token-weighted mean or quantile of (seconds, tokens)."""
    if which in QUANTILES:
        return quantiles(window, (QUANTILES[which],))[0]
    return sum(y * n for y, n in window) / sum(n for _, n in window)


def quantiles(values: Iterable[tuple[float, int]], wanted: Sequence[float]) -> list[float]:
    """Quantiles, ascending, of weighted (value, weight): the smallest value that so much weight does not
    exceed. NaN where there is nothing.
    """
    ordered = sorted(values)
    total, found, seen, i = sum(n for _, n in ordered), list[float](), 0, -1
    for q in wanted:
        while seen < q * total and i + 1 < len(ordered):
            i += 1
            seen += ordered[i][1]
        found.append(ordered[i][0] if ordered else float("nan"))
    return found


def reversals(values: Sequence[float]) -> int:
    """How often a sequence of settings turned from rising to falling or back."""
    signs = [b > a for a, b in itertools.pairwise(values) if a != b]
    return sum(a != b for a, b in itertools.pairwise(signs))
