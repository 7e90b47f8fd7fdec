"""The objective as one figure: what a pod would give at another cap, divided by what is allowed.

A figure of 1 is the objective itself. For a mean it is predicted mean / target; for a quantile q it is the
predicted share of tokens beyond the target, divided by (1 - q). Both rise with the cap, so the best cap is
found by bisection.

How a record at batch B speaks of batch M: a decode step there is longer by shift = tau(M) - tau(B) of the
model, and prefill-carrying steps are met in proportion to the batch, since every sequence that ends is
replaced: if a share phi of tokens met one at B, phi' = 1 - (1 - phi)^(M/B) meet one at M. Of the share e of
latencies beyond (target - shift) in the record, at most phi pi is blamed on prefill, pi being how many such
steps the model expects to miss the target; what is left over is met by every step alike, at every batch.
Hence, with b = phi pi,

    own = pi min(1, e/b),     common = max(0, (e - b)/(1 - b)),     beyond(M) = common + (1 - common) phi' own

At M = B this is what was measured, whatever the model believes: model errors only enter with the distance
moved. A ratio of quantile to mean would not do: where the share of such steps crosses 1 - q the quantile
jumps severalfold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llamaserver.api.enums import Statistic
from llamaserver.control.history import Record, independent_steps, relative_variance
from llamaserver.control.model import StepModel

JUDGED_S = 10.0
"""An objective is judged over windows of this length."""
MARGIN = 0.96
"""Aim this much below the target: what the model cannot know."""
CONFIDENCE = 1.65
"""Windows of JUDGED_S should hold the objective with 95 % probability."""
MIN_AIM = 0.15
CONTROLLABLE = 0.6
"""Share of the usual aim that what a cap can remove may always use up, however bad the rest is."""
TAIL_DISPERSION, MEAN_DISPERSION = (0.5, 6.0), (0.5, 400.0)
DISPERSION_WEIGHT = 0.03
"""Weight of one window in the measured dispersion: about a minute's worth of memory."""

QUANTILES = {Statistic.P50: 0.5, Statistic.P90: 0.9, Statistic.P95: 0.95, Statistic.P99: 0.99}


@dataclass(frozen=True, slots=True)
class Figure:
    """A predicted figure and its standard error, both as a ratio to what the objective allows."""

    ratio: float
    error: float


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts the objective's figure at any cap from a set of records.

    `context` is the resident tokens per sequence expected now; `target_s` and `quantile` (None for the mean)
    are the objective.
    """

    model: StepModel
    records: Sequence[Record]
    context: float
    target_s: float
    quantile: float | None
    dispersion: float = 1.0
    """Variance of the figure from window to window, over what independent steps would give."""
    kappa: float = 1.0
    """For an objective of requests, which is held by the mean of tokens: its own target over `target_s`."""

    def over(self, records: Sequence[Record]) -> Predictor:
        """The same question, asked of other records."""
        return replace(self, records=records)

    def figure(self, batch: float, sigmas: float = 0.0, margin: float = 1.0) -> Figure:
        """The figure at `batch` with the model's doubt taken `sigmas` to the bad (+) or good (-) side."""
        total = value = 0.0
        for record in self.records:
            value += record.steps * self._one(record, batch, sigmas, margin * self.target_s)
            total += record.steps
        if total <= 0.0:
            return Figure(0.0, math.inf)
        value /= total
        worth = max(1.0, independent_steps(self.records))
        if self.quantile is None:
            return Figure(value, value * math.sqrt(self.dispersion * relative_variance(self.records) / worth))
        allowed = 1.0 - self.quantile
        spread = max(value * (1.0 - value), 1.0 / worth)
        return Figure(value / allowed, math.sqrt(self.dispersion * spread / worth) / allowed)

    def _one(self, r: Record, batch: float, sigmas: float, target_s: float) -> float:
        """What one record says of `batch`: mean over target, or the share beyond it."""
        m = self.model
        shift = m.decode_s(batch, self.context) - m.decode_s(r.batch, r.context)
        doubt = m.shift_sd(r.batch, r.context, batch, self.context) if sigmas else 0.0
        if self.quantile is None:
            tail = (m.d_s * r.prefill + m.c_s * r.mixed) * (batch - r.batch)
            return (r.mean_s + shift + tail + sigmas * doubt) / target_s
        e = r.beyond(target_s - shift - sigmas * doubt)
        # The part of prefill-carrying steps that prefill alone makes slow, and the rest, met by every step
        # alike.
        blamed = r.share * self._prefill_beyond(r, self.target_s - self._base_s(r))
        own = min(1.0, e / blamed) * blamed / r.share if blamed > 0.0 else 0.0
        common = max(0.0, (e - blamed) / (1.0 - blamed)) if blamed < 1.0 else 0.0
        return common + (1.0 - common) * _grown(r, batch) * own

    def _base_s(self, r: Record) -> float:
        """The latency of a token whose step only decodes, as measured: its mean without what prefill adds to
        it.
        """
        m = self.model
        return max(m.decode_s(r.batch, r.context), r.mean_s - r.share * (m.c_s + m.d_s * r.chunk))

    def _prefill_beyond(self, r: Record, spare_s: float) -> float:
        """At most this share of prefill-carrying steps took longer because of their prefill than `spare_s`
        allows.

        `spare_s` is what a step may take beyond its decoding. Prefill per step has the mean and spread of the
        record.
        """
        m = self.model
        token_s, step_s = m.prefill_at_most()
        if token_s <= 0.0 or r.chunk <= 0.0:
            return 1.0
        sd = max(0.2 * r.chunk, math.sqrt(max(0.0, r.chunk2 - r.chunk * r.chunk))) * token_s
        z = (spare_s - step_s - token_s * r.chunk) / (sd * math.sqrt(2.0))
        return min(1.0, 0.75 * math.erfc(z) + 0.05)

    def from_prefill(self) -> float:
        """How much of the measured share beyond the target prefill can account for, 0 to 1; 1 when nothing is
        beyond.
        """
        beyond = explained = 0.0
        for r in self.records:
            e = r.beyond(self.target_s)
            beyond += r.steps * e
            explained += r.steps * min(e, r.share * self._prefill_beyond(r, self.target_s - self._base_s(r)))
        return explained / beyond if beyond > 0.0 else 1.0

    def undisturbed(self, low: int, high: int) -> int | None:
        """The largest cap in [low, high] that the model alone says would hold the objective; None for a mean.

        What slows steps for no reason that the model knows (a neighbour on the machine) is left out, what
        separates clients from steps (the front end) is not.
        """
        if self.quantile is None or not self.records:
            return None
        m, allowed = self.model, (1.0 - self.quantile) * replace(self, dispersion=1.0).aim()
        total = sum(r.tokens for r in self.records)
        known = sum(
            r.tokens * (m.decode_s(r.batch, r.context) + r.share * (m.c_s + m.d_s * r.chunk))
            for r in self.records
        )
        offset = max(0.0, sum(r.sum_s for r in self.records) - known) / total

        def holds(batch: int) -> bool:
            doubt = min(m.shift_sd(r.batch, r.context, batch, self.context) for r in self.records)
            spare = MARGIN * self.target_s - offset - m.decode_s(batch, self.context) - doubt
            tail = sum(r.tokens * _grown(r, batch) * self._prefill_beyond(r, spare) for r in self.records)
            return spare > 0.0 and tail / total <= allowed

        return _last(low, high, holds)

    def aim(self) -> float:
        """The figure to aim at, so that windows of JUDGED_S hold with the wanted confidence."""
        seconds = max(1e-9, sum(r.seconds for r in self.records))
        judged = max(1.0, JUDGED_S * sum(r.steps for r in self.records) / seconds)
        if self.quantile is None:
            relative = math.sqrt(self.dispersion * relative_variance(self.records) / judged)
            return max(MIN_AIM, 1.0 - math.hypot(1.0 - MARGIN, CONFIDENCE * relative))
        relative = math.sqrt(self.dispersion * self.quantile / (judged * (1.0 - self.quantile)))
        return max(MIN_AIM, 1.0 - CONFIDENCE * relative)

    def allowed(self, limit: float, low: int, sigmas: float = 0.0, margin: float = 1.0) -> float:
        """`limit`, or what the tail leaves of it.

        Steps that are slow for no reason that a cap could remove (a neighbour on the machine, a long prompt
        even at `low` sequences) are met at every cap. Cutting for their sake would cost throughput and not
        help, so what a cap can remove is held to a part of the limit of its own. Where the machine itself is
        too slow for the target, or the objective is a mean, the limit stands. And as long as `low` sequences
        hold the objective itself, no more is allowed than the objective.
        """
        if self.quantile is None or self.model.decode_s(low, self.context) > MARGIN * self.target_s:
            return limit
        floor = self.figure(low, sigmas, margin).ratio
        own = CONTROLLABLE * min(limit, replace(self, dispersion=1.0).aim())
        return max(limit, floor + own if floor > 1.0 else min(1.0, floor + own))

    def dispersed(self, record: Record) -> float:
        """The dispersion after a new record, whose figure is compared with what was expected of it.

        Bursts of prefill and neighbours that come and go make windows differ more than independent steps
        would.
        """
        expected = self.figure(record.batch).ratio
        if self.quantile is None:
            seen, (low, high) = record.mean_s / self.target_s, MEAN_DISPERSION
            variance = expected * expected * relative_variance((record,)) / record.steps
        else:
            allowed, (low, high) = 1.0 - self.quantile, TAIL_DISPERSION
            seen = record.beyond(self.target_s) / allowed
            share = min(1.0, expected * allowed)
            variance = max(share * (1.0 - share), 0.25 * allowed * self.quantile) / record.steps / allowed**2
        # What is far off is a change of the load rather than scatter, and must not make the law deaf to it.
        surprise = min(9.0 * self.dispersion, (seen - expected) ** 2 / max(1e-12, variance))
        return min(high, max(low, self.dispersion + DISPERSION_WEIGHT * (surprise - self.dispersion)))

    def largest(self, low: int, high: int, aim: float, sigmas: float = 0.0) -> int:
        """The largest cap in [low, high] whose figure, `sigmas` to the bad side, is at most `aim`; low if
        none.
        """

        margin = MARGIN if self.quantile is not None else 1.0
        limit = self.allowed(aim, low, 0.0, margin)

        def holds(batch: int) -> bool:
            f = self.figure(batch, sigmas, margin)
            return f.ratio + sigmas * f.error <= limit

        return _last(low, high, holds)


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest number in [low, high] for which `holds`, which must be monotone; low if none."""
    if high <= low or holds(high):
        return max(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _grown(r: Record, batch: float) -> float:
    """Share of tokens from prefill-carrying steps at `batch`, where the record had r.share at r.batch."""
    return float(1.0 - (1.0 - min(max(r.share, 0.0), 1.0)) ** (batch / max(r.batch, 0.5)))
