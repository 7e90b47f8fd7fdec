"""The objective as one figure: what a pod would give at another cap, divided by what is allowed.

A figure of 1 is the objective itself. For a mean it is predicted mean / target; for a quantile q it is the
predicted share of tokens beyond the target, divided by (1 - q). Both rise with the cap, so the best cap is
found by bisection.

How a record at batch B speaks of batch M: a decode step there is longer by shift = tau(M) - tau(B) of the
model, and prefill-carrying steps are met in proportion to the batch, since every sequence that ends is
replaced: if a share phi of tokens met one at B, 1 - (1 - phi)^(M/B) meet one at M. Prefill-carrying steps are
the slow ones, so the slowest share phi of the record's latencies is theirs. Hence, with e = share beyond
(target - shift) in the record,

    beyond(M) = phi' min(1, e/phi) + (1 - phi') max(0, (e - phi)/(1 - phi)),     phi' = 1 - (1 - phi)^(M/B)

At M = B this is what was measured, whatever the model believes: model errors only enter with the distance
moved. A ratio of quantile to mean would not do: where the share of such steps crosses 1 - q the quantile
jumps severalfold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        share = min(max(r.share, 0.0), 1.0)
        grown = 1.0 - (1.0 - share) ** (batch / max(r.batch, 0.5))
        slow = grown * min(1.0, e / share) if share > 0.0 else 0.0
        quick = (1.0 - grown) * max(0.0, (e - share) / (1.0 - share)) if share < 1.0 else 0.0
        return slow + quick

    def aim(self) -> float:
        """The figure to aim at, so that windows of JUDGED_S hold with the wanted confidence."""
        seconds = max(1e-9, sum(r.seconds for r in self.records))
        judged = max(1.0, JUDGED_S * sum(r.steps for r in self.records) / seconds)
        if self.quantile is None:
            relative = math.sqrt(self.dispersion * relative_variance(self.records) / judged)
            return max(MIN_AIM, 1.0 - math.hypot(1.0 - MARGIN, CONFIDENCE * relative))
        relative = math.sqrt(self.dispersion * self.quantile / (judged * (1.0 - self.quantile)))
        return max(MIN_AIM, 1.0 - CONFIDENCE * relative)

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

        def holds(batch: int) -> bool:
            f = self.figure(batch, sigmas, MARGIN if self.quantile is not None else 1.0)
            return f.ratio + sigmas * f.error <= aim

        if high <= low or holds(high):
            return max(low, high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low
