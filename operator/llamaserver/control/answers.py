"""The objective of whole answers: how the time per output token of a request relates to the mean of tokens.

A request's time per output token is the mean of its own steps: from its first token to its last, over the
tokens after the first. Averaged over a hundred steps and more, requests lie near the mean of all tokens,
above it where prompts came thick while they ran, or where they were too short to average much out. So the
law holds a statistic of requests by the mean of tokens, which answers to the cap within a step, and by

    kappa = statistic of (a request's time per output token / mean of tokens while it ran)

The divisor is what makes it usable. A request that ends now tells of its whole life, which may be minutes: a
cap that was cut meanwhile is in it only in part. The mean over the same time has the same lag, so the ratio
has none, and a change of the cap does not come back as an error later. What is left is slow: a fading digest
of ratios.

Windows of JUDGED_S hold few requests, so their statistic scatters: the share that may be beyond the target is
the one with which so many requests hold it with CONFIDENCE.

    P(Binomial(n, share) <= (1 - q) n) = 95 %

Until so many have finished that the statistic says something, the tokens bound it: requests average them, so
they scatter less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

from llamaserver.api.enums import Statistic
from llamaserver.control.history import Record, relative_variance
from llamaserver.control.objective import CONFIDENCE, JUDGED_S, QUANTILES
from llamaserver.observe.distribution import EMPTY
from llamaserver.observe.fleet import merged
from llamaserver.observe.types import Distribution, Window

LOOKED_BACK_S = 300.0
"""Requests that finished longer ago say nothing of now."""
MEMORY_S, LIVES = 300.0, 4.0
"""How long ratios are remembered: some minutes, or so many answers one after the other where those are
longer.
"""
LONGEST_LIFE_S = 1800.0
KNOWN_S = 60.0
"""Over how long requests have to be seen before kappa is taken for known."""
SHORT = 4.0
"""The answers that make the tail of a statistic are so many times shorter than the mean, for the bound that
holds until they are known.
"""
HELD = 0.01
"""Relative change of kappa that is none: it would only make caps restless."""
KAPPA_RANGE = (0.8, 4.0)
_LOW, _GROWTH, _CELLS = 0.2, 1.02, 240
"""Cells of ratios, from a fifth up to 23 times the mean."""
_SURE = 0.95
_MANY = 30.0
"""From so many allowed misses on a binomial is as good as normal."""


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of one window: when it ended, its length (s), how many, and their times added up (s)."""

    at: float
    seconds: float
    tokens: float
    sum_s: float


@dataclass(frozen=True, slots=True)
class Answers:
    """What is known of one pod's finished requests. Sums fade."""

    spans: tuple[Span, ...] = ()
    """As far back as requests that end now have run, oldest first."""
    life_s: float = 0.0
    """From a request's first token to its last, on average; 0 while none has finished."""
    cells: tuple[float, ...] = ()
    """Requests by their ratio to the mean of tokens."""
    requests: float = 0.0
    ratios: float = 0.0
    """Sum of those ratios."""
    seconds: float = 0.0

    @property
    def per_s(self) -> float:
        """Requests that finish in a second."""
        return self.requests / self.seconds if self.seconds > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The times per output token of the requests that a fleet finished in one tick."""

    at: float
    tpot: Distribution


def enough(which: Statistic) -> int:
    """So many requests make this statistic of them: one of them may miss a percentile's target."""
    q = QUANTILES.get(which)
    return 10 if q is None else max(10, round(1.0 / (1.0 - q)))


def lately(finished: Sequence[Finished], which: Statistic, now: float) -> Distribution:
    """The requests to judge by now: those of the last JUDGED_S, and of as long before as there are not enough
    of them.
    """
    parts: list[Distribution] = []
    for one in reversed(finished):
        if one.at <= now - JUDGED_S and sum(p.count for p in parts) >= enough(which):
            break
        parts.append(one.tpot)
    return merged(parts) or EMPTY


def remembered(
    finished: Sequence[Finished], tpot: Distribution | None, which: Statistic, now: float
) -> tuple[Finished, ...]:
    """What has to be kept for `lately`, with what this tick finished."""
    kept = [one for one in finished if one.at > now - LOOKED_BACK_S]
    if tpot is not None and tpot.count > 0:
        kept.append(Finished(now, tpot))
    total, first = 0, len(kept)
    while first > 0 and (kept[first - 1].at > now - JUDGED_S or total < enough(which)):
        first -= 1
        total += kept[first].tpot.count
    return tuple(kept[first:])


def follow(before: Answers, w: Window, output: float | None) -> Answers:
    """The answers after one more window. `output` is the mean length of an answer in tokens, where this
    window does not tell it.

    Only exact figures count: coarse buckets would put ratios wherever their edges are.
    """
    if not w.itl.exact:
        return before
    fade = math.exp(-w.dt / max(MEMORY_S, LIVES * before.life_s))
    spans = (*before.spans, Span(w.at, w.dt, float(w.itl.count), w.itl.sum_s))
    found = replace(
        before,
        spans=spans,
        cells=tuple(fade * n for n in before.cells),
        requests=fade * before.requests,
        ratios=fade * before.ratios,
        seconds=fade * before.seconds,
    )
    life_s = _life_s(w, output)
    if life_s is not None and w.tpot is not None and w.tpot.exact:
        usual = life_s if before.life_s <= 0.0 else before.life_s + 0.1 * (life_s - before.life_s)
        found = replace(found, life_s=usual)
        mean_s = _mean_s(spans, w.at - 0.5 * w.dt - life_s, life_s)
        if mean_s is not None:
            found = _with(found, w.tpot, mean_s)
    kept_s = LONGEST_LIFE_S if found.life_s <= 0.0 else min(LONGEST_LIFE_S, 60.0 + 3.0 * found.life_s)
    found = replace(found, spans=tuple(s for s in found.spans if s.at > w.at - kept_s))
    return replace(found, seconds=found.seconds + w.dt) if _seen_whole(found, w.at) else found


def _seen_whole(a: Answers, now: float) -> bool:
    """Whether requests that end now began while their pod was looked at, mostly: else their ratio to the mean
    is not known, and their number says nothing of how many there are in a second.
    """
    return a.life_s > 0.0 and a.spans[0].at - a.spans[0].seconds <= now - 0.5 * a.life_s


def _life_s(w: Window, output: float | None) -> float | None:
    """How long the requests of this window took from the first token to the last; None without any."""
    if w.tpot is None or w.tpot.count <= 0 or w.tpot.sum_s <= 0.0:
        return None
    if w.finished and w.finished_generation_tokens:
        output = w.finished_generation_tokens / w.finished
    if output is None:
        return None
    pace_s = w.tpot.sum_s / w.tpot.count
    return min(LONGEST_LIFE_S, max(1.0, output - 1.0) * pace_s)


def _mean_s(spans: Sequence[Span], since: float, life_s: float) -> float | None:
    """The mean of all tokens since then; None where less than half of that time was seen."""
    if spans[0].at - spans[0].seconds > since + 0.5 * life_s:
        return None
    over = [s for s in spans if s.at > since]
    tokens, total = sum(s.tokens for s in over), sum(s.sum_s for s in over)
    return total / tokens if tokens > 0.0 and total > 0.0 else None


def _with(a: Answers, d: Distribution, mean_s: float) -> Answers:
    cells = list(a.cells or (0.0,) * _CELLS)
    low = 0.0
    for high, count in zip(d.edges, d.counts, strict=True):
        if count:
            # A digest's bucket is two cells wide, and ratios come to lie anywhere in it.
            upper = high if math.isfinite(high) else low * _GROWTH
            width = upper / low if low > 0.0 else _GROWTH**2
            for share in (0.25, 0.75):
                cells[_cell(upper / width ** (1.0 - share) / mean_s)] += 0.5 * count
        low = high
    return replace(a, cells=tuple(cells), requests=a.requests + d.count, ratios=a.ratios + d.sum_s / mean_s)


def _cell(ratio: float) -> int:
    if ratio <= _LOW:
        return 0
    return min(_CELLS - 1, int(math.log(ratio / _LOW) / math.log(_GROWTH)))


def doubted(a: Answers, which: Statistic) -> Answers:
    """For when the load has changed its nature: what is known counts for no more than it takes to know
    something.
    """
    most = 2.0 * enough(which)
    if a.requests <= most:
        return a
    k = most / a.requests
    cells = tuple(k * n for n in a.cells)
    return replace(a, cells=cells, requests=most, ratios=k * a.ratios, seconds=k * a.seconds)


def known(a: Answers, which: Statistic) -> bool:
    """Whether kappa is what was measured, mostly, and over windows enough to hold usual loads."""
    return a.requests >= 4.0 * enough(which) and a.seconds >= KNOWN_S


def kappa(a: Answers, which: Statistic, first: float) -> float:
    """The statistic of requests over the mean of tokens, so that windows hold it; `first` is what is believed
    before it was measured.
    """
    least = enough(which)
    if a.requests < least:
        return first
    found = first + (_measured(a, which) - first) * a.requests / (a.requests + least)
    low, high = KAPPA_RANGE
    return min(high, max(low, found))


def _measured(a: Answers, which: Statistic) -> float:
    judged = max(enough(which), math.floor(JUDGED_S * a.per_s))
    q = QUANTILES.get(which)
    if q is not None:
        return _beyond(a, share_allowed(q, judged))
    average = a.ratios / a.requests
    squares = sum(n * (_value(i + 0.5) - average) ** 2 for i, n in enumerate(a.cells) if n) / a.requests
    return average + CONFIDENCE * math.sqrt(squares / judged)


def _value(cell: float) -> float:
    return float(_LOW * _GROWTH**cell)


def _beyond(a: Answers, share: float) -> float:
    """The ratio that so many of the requests exceed."""
    left, i = share * sum(a.cells), len(a.cells)
    while i > 0:
        i -= 1
        if a.cells[i] > 0.0 and a.cells[i] >= left:
            return _value(i + 1.0 - left / a.cells[i])
        left -= a.cells[i]
    return _value(0.0)


@lru_cache(maxsize=512)
def share_allowed(q: float, requests: int) -> float:
    """Which share of requests may be beyond the target, so that of so many no more than 1 - q are, with 95 %
    probability.
    """
    misses = (1.0 - q) * requests
    if misses > _MANY:
        return max(1e-4, (1.0 - q) - CONFIDENCE * math.sqrt(q * (1.0 - q) / requests))
    most, low, high = math.floor(misses + 1e-9), 0.0, 1.0 - q
    for _ in range(30):
        share = (low + high) / 2.0
        low, high = (share, high) if _at_most(most, requests, share) >= _SURE else (low, share)
    return low


def _at_most(most: int, n: int, share: float) -> float:
    """The probability of no more than `most` of n."""
    odds = share / (1.0 - share)
    term = total = (1.0 - share) ** n
    for k in range(most):
        term *= odds * (n - k) / (k + 1)
        total += term
    return total


def bound(records: Sequence[Record], which: Statistic, output: float | None) -> float:
    """An upper estimate of kappa from tokens alone: short answers of independent steps, and no more than the
    tokens themselves scatter. `output` is the mean length of an answer; None where it is not known.
    """
    q = QUANTILES.get(which)
    steps = 1.0 if output is None else max(1.0, output / SHORT)
    scatter = math.sqrt(relative_variance(records) / steps)
    if q is None:
        return 1.0 + CONFIDENCE * scatter / math.sqrt(enough(which))
    sigmas = NormalDist().inv_cdf(1.0 - share_allowed(q, enough(which)))
    return max(1.0, min(1.0 + sigmas * scatter, _of_tokens(records, q)))


def _of_tokens(records: Sequence[Record], q: float) -> float:
    """The q-quantile of tokens over their mean."""
    tokens, total = sum(r.tokens for r in records), sum(r.sum_s for r in records)
    if tokens <= 0.0 or total <= 0.0:
        return 1.0
    average, (low, high) = total / tokens, (0.5, 16.0)
    for _ in range(20):
        x = (low + high) / 2.0
        late = sum(r.tokens * r.beyond(x * average) for r in records) / tokens
        low, high = (x, high) if late > 1.0 - q else (low, x)
    return high
