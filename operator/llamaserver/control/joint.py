"""Cap and prefill budget chosen together, for a percentile of the inter-token latency.

A step with B decoding sequences and P prefill tokens takes a + s B + c + d P, s being b + g context. Every
token of a step waits for the whole step, so a percentile is held when nearly every step, whatever it carries,
ends within one duration T'. Of that duration the decodes of M sequences leave

    chunk(M) = (T' - a - c - s M) / d        prefill tokens a step,

and steady work needs r M of them, r being prefill tokens per decoded token after cache hits, for every
sequence that ends is replaced. The most work is done where one just covers the other: the largest M with
r M <= room chunk(M), and a token budget of M + chunk(M). A cap alone has to leave room beside M decodes for a
whole prompt; here a prompt takes the steps it needs, and none of them is late.

T' is the target over the *tail*: what the percentile, as clients see it, is of the duration that the model
gives for a full step. It is measured, record by record, so it closes the loop without an integrator: where
the model is wrong by a factor, so is the tail, and the product is right at the point where the engine works.

Two sizes of room make the dead band: the cap rises only where prefill would be at ease, and falls only where
it would be starved. In between the budget alone answers, which costs nobody a place in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llamaserver.control.history import History, Record, independent_steps
from llamaserver.control.model import StepModel
from llamaserver.control.objective import Figure, Predictor

RAISE_ROOM, REST_ROOM, CUT_ROOM = 0.80, 0.88, 0.96
"""Share of the chunk that steady prefill may fill: for a higher cap, at the cap a cut goes to, and beyond
which the cap is cut.
"""
MIN_CHUNK = 8
"""Prefill tokens beside a full batch, however little time is left: a prompt never starves."""
MARGIN, REQUESTS_MARGIN = 0.99, 0.98
"""Share of the target that a full step may take, beside the tail; of requests, whose tail is 1, for what
steps scatter about the model.
"""
FIRST_TAIL = 1.12
"""The tail until it was measured: steps that scatter by some 7 % about the model."""
TAIL_RANGE = (0.8, 1.8)
TELLING_STEPS = 45.0
"""So many steps beyond it tell where a quantile is."""
TAIL_STEPS = 60.0
"""So many steps make half of a measured tail; the rest stays with what was believed."""
KNOWN = 0.3
"""Relative doubt of what a chunk costs, beyond which it is not known well enough to act on."""


@dataclass(frozen=True, slots=True)
class BudgetRange:
    """What one engine takes as a token budget, tokens per step."""

    reserve: int
    """Tokens beyond the decodes' own without which prefill could not get on."""
    start: int
    """What the engine started with, the most it takes."""

    @property
    def least_chunk(self) -> int:
        """The fewest prefill tokens beside a full batch."""
        return self.reserve + MIN_CHUNK

    def of(self, cap: int, chunk: float) -> int:
        """The budget that leaves `chunk` prefill tokens beside `cap` decoding sequences."""
        return min(self.start, cap + max(self.least_chunk, math.floor(min(chunk, 1e9))))

    def chunk(self, cap: int, budget: int) -> int:
        """The other way round: what a budget leaves beside `cap` decoding sequences."""
        return budget - cap


@dataclass(frozen=True, slots=True)
class Plan:
    """A step's duration shared between decodes and prefill."""

    model: StepModel
    context: float
    """Resident tokens per decoding sequence."""
    prefill: float
    """Prefill tokens per decoded token."""
    step_s: float
    """T', what a full step may take by the model."""
    least_chunk: int = MIN_CHUNK
    """Prefill tokens that there has to be room for in every step."""

    def chunk(self, sequences: float) -> float:
        """Prefill tokens that fit in a step beside `sequences` decodes; negative when not even those fit."""
        m = self.model
        return (self.step_s - m.a_s - m.c_s - m.slope_s(self.context) * sequences) / max(1e-12, m.d_s)

    def beside(self, chunk: float) -> float:
        """The other way round: decodes that leave so many prefill tokens in a step; infinite where they cost
        nothing.
        """
        m = self.model
        slope = m.slope_s(self.context)
        return (self.step_s - m.a_s - m.c_s - m.d_s * chunk) / slope if slope > 0.0 else math.inf

    def need(self, sequences: float) -> float:
        """Prefill tokens a step that keep `sequences` replaced as they end."""
        return self.prefill * sequences

    def sequences(self, low: int, high: int, room: float) -> int:
        """The largest M in [low, high] whose steady prefill fills at most `room` of its chunk; low if
        none.
        """
        m = self.model
        slope = m.slope_s(self.context)
        if slope <= 0.0:
            return high
        spare = self.step_s - m.a_s - m.c_s
        most = min(spare / (slope + m.d_s * self.prefill / room), self.beside(self.least_chunk))
        return max(low, min(high, math.floor(most)))


def planned_s(target_s: float, tail: float, of_requests: bool) -> float:
    """T', what a full step may take by the model."""
    return (REQUESTS_MARGIN if of_requests else MARGIN) * target_s / tail


def full_step_s(model: StepModel, r: Record, quantile: float) -> float:
    """What the model gives for the steps among which the quantile of this record lies: with prefill, a
    deviation above its mean but no more than the budget had room for, unless steps that carry it are too rare
    to reach the quantile.
    """
    decode = model.decode_s(r.batch, r.context)
    if r.share <= 1.0 - quantile:
        return decode
    scatter = math.sqrt(max(0.0, r.chunk2 - r.chunk * r.chunk))
    return max(decode, decode + model.c_s + model.d_s * min(r.chunk + scatter, r.room))


def tail_of(p: Predictor, history: History) -> float | None:
    """The tail by these records: the x such that of x times the full step's duration the aimed share of
    tokens lies beyond. None when they say nothing.

    What is older counts only for as much as the newest seconds lack to tell the quantile.
    """
    assert p.quantile is not None
    steps, older = (sum(r.steps for r in records) for records in (history.recent, history.archive))
    lacking = max(0.0, TELLING_STEPS / (1.0 - p.quantile) - steps)
    weight = min(1.0, lacking / older) if older > 0.0 else 0.0
    full = [(1.0, r) for r in history.recent] + [(weight, r) for r in history.archive]
    weighed = [(w * r.tokens, r, full_step_s(p.model, r, p.quantile)) for w, r in full if w * r.tokens > 0.0]
    total = sum(tokens for tokens, _, _ in weighed)
    if total <= 0.0:
        return None
    allowed = (1.0 - p.quantile) * p.aim()
    low, high = TAIL_RANGE
    for _ in range(24):
        x = (low + high) / 2.0
        beyond = sum(tokens * r.beyond(x * s) for tokens, r, s in weighed) / total
        low, high = (x, high) if beyond > allowed else (low, x)
    return high


def tail_of_requests(p: Predictor, history: History) -> float:
    """The tail of an objective of requests: its statistic, as kappa and the mean of tokens tell it, over the
    duration of a full step.

    At least 1. A request averages steps of which none takes longer than a full one, so one that meets nothing
    but full steps is no slower; that others meet fewer is no reason to make full steps longer than the
    target, for short answers would be late then.
    """
    full_s = sum(r.tokens * full_step_s(p.model, r, 1.0) for r in history.all)
    seen_s = sum(r.sum_s for r in history.all)
    return min(TAIL_RANGE[1], max(1.0, p.kappa * seen_s / full_s)) if full_s > 0.0 else 1.0


def figure_of_plan(p: Predictor, records: Sequence[Record], tail: float) -> Figure:
    """The figure of latencies over what a full step of each record may take by the plan, which the batch, the
    contexts and the budget of the moment are part of.
    """
    assert p.quantile is not None
    steps, worth = sum(r.steps for r in records), max(1.0, independent_steps(records))
    share = sum(r.steps * r.beyond(tail * full_step_s(p.model, r, p.quantile)) for r in records) / steps
    spread = max(share * (1.0 - share), 1.0 / worth)
    allowed = 1.0 - p.quantile
    return Figure(share / allowed, math.sqrt(p.dispersion * spread / worth) / allowed)


def learned_tail(before: float | None, p: Predictor, history: History) -> float:
    """The tail to work with: the history's, or that of the newest seconds where these are surely worse."""
    believed = FIRST_TAIL if before is None else before
    measured = tail_of(p, history)
    if measured is None:
        return believed
    steps = sum(r.steps for r in history.all)
    tail = believed + (measured - believed) * steps / (steps + TAIL_STEPS)
    newest = tail_of(p, replace(history, archive=()))
    if newest is not None and newest > tail and surely_missed(p, history.recent):
        return newest
    return tail


def surely_missed(p: Predictor, records: Sequence[Record]) -> bool:
    """Whether the objective was missed over these records, beyond their own scatter."""
    total = sum(r.steps for r in records)
    if total <= 0.0:
        return False
    figures = [p.over((r,)).figure(r.batch) for r in records]
    ratio = sum(r.steps * f.ratio for r, f in zip(records, figures, strict=True)) / total
    error = math.sqrt(sum((r.steps * f.error) ** 2 for r, f in zip(records, figures, strict=True))) / total
    return ratio - error > 1.0


def known(model: StepModel, chunk: float) -> bool:
    """Whether it is known what a chunk of so many prefill tokens costs a step."""
    cost = model.c_s + model.d_s * chunk
    return model.d_s > 0.0 and cost > 0.0 and model.chunk_sd(chunk) < KNOWN * cost
