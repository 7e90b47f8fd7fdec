"""A plant from the history itself: mean inter-token latencies between two scrapes against what was done.

    y = a + b B + d P

B is the mean decoding sequences of a step and P its prompt tokens, where the engine counts its steps (vLLM's
`iteration_tokens_total`); else B is the mean of `num_requests_running` and the steps are as many as fit. The
KV cache's part is in b. By least squares; what cannot be told apart by this history is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles

from llamaserver.control.linalg import Vector, inverse, times
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.profiles import NO_MODEL, Calibrated, built
from llamaserver.simulate.replay.history import History, Interval

FEWEST = 20
"""Intervals without which nothing is fitted."""
TOKENS = 100
"""Tokens without which an interval says little."""
SPREAD = 1.3
"""The busiest tenth of the intervals has to have so many times the batch of the quietest."""
LEAST_RISE = 0.02
"""The batch has to change the latency by this share at least, to be told from noise."""
DOUBT = 0.35
"""Largest standard error of b and d, as a share of them."""
CURE = "give the plant yourself: --profile H100-8B, or --profile a=7ms,b=14us,g=50ns,d=25us,kv_tokens=400000"
FIT = "fit"
USUAL_SEQS, USUAL_BUDGET = 256, 2048

Row = tuple[float, float, float]


@dataclass(frozen=True)
class Fitted:
    """A plant, and how it was found."""

    calibrated: Calibrated
    assumed: Sequence[str]
    """What was not in the history and was put in its place."""


def fitted(history: History, given: Mapping[str, float]) -> Fitted:
    """The plant of these replicas; `given` are figures of the profile that somebody knows. Raises
    SimulationError where the history does not tell them.
    """
    rows = [row for i in history.intervals if (row := _row(i)) is not None]
    if len(rows) < FEWEST:
        raise SimulationError(
            f"only {len(rows)} intervals have {TOKENS} tokens or more, and a plant is fitted to {FEWEST} or "
            f"more: choose a longer time, or {CURE}"
        )
    a, b, d, left = _solved(rows)
    kv = next((r.kv_tokens for r in history.replicas if r.kv_tokens), None)
    if kv is None and "kv_tokens" not in given:
        raise SimulationError(
            "the history does not say how many tokens the KV cache holds (vllm:cache_config_info): add "
            f"kv_tokens, as --profile {FIT},kv_tokens=400000"
        )
    seqs, budget, assumed = _started(history, given)
    found = {"a": a, "b": b, "g": 0.0, "d": d, "c": 0.0, "kv_tokens": kv or 0, "max_num_seqs": seqs}
    made = built({**found, "budget": max(budget, seqs), **given}, given)
    source = (
        f"least squares over {len(rows)} intervals of the history, which it misses by {100 * left:.1f} % "
        "(root of the mean square)"
    )
    return Fitted(Calibrated("fitted to the history", made, NO_MODEL, source), assumed)


def _started(history: History, given: Mapping[str, float]) -> tuple[int, int, list[str]]:
    """max-num-seqs and max-num-batched-tokens, and what of it was assumed."""
    assumed = []
    ceilings = [r.ceiling for r in history.replicas if r.ceiling is not None]
    budgets = [r.budget for r in history.replicas if r.budget is not None]
    most, full = most_running(history)
    if ceilings:
        seqs = round(max(ceilings))
    elif full:
        seqs = most
        if "max_num_seqs" not in given:
            assumed.append(f"max_num_seqs {most}: more never ran on a replica, though requests waited")
    else:
        seqs = max(USUAL_SEQS, most)
        if "max_num_seqs" not in given:
            assumed.append(f"max_num_seqs {seqs}: vLLM does not tell it (--profile {FIT},max_num_seqs=...)")
    if not budgets and "budget" not in given:
        assumed.append(f"budget {USUAL_BUDGET}: vLLM does not tell it (--profile {FIT},budget=...)")
    return seqs, round(max(budgets, default=USUAL_BUDGET)), assumed


def most_running(history: History) -> tuple[int, bool]:
    """The most sequences that a replica ran, and whether requests waited then though the KV cache had "
    "room."""
    most = max(i.running[1] for i in history.intervals)
    at = [i for i in history.intervals if i.running[1] == most]
    return max(1, round(most)), all(i.waiting[1] > 0 and (i.kv_usage or 0.0) < 0.9 for i in at)


def _row(i: Interval) -> Row | None:
    """(B, P, y) of an interval that says something."""
    if i.restarted or i.itl is None or i.itl.count < TOKENS or i.itl.sum_s <= 0.0:
        return None
    y = i.itl.sum_s / i.itl.count
    steps = i.steps if i.steps else i.seconds / y
    batch = i.itl.count / steps if i.steps else sum(i.running) / 2
    return (batch, (i.prompt_tokens or 0.0) / steps, y) if steps > 0 and batch > 0 else None


def _solved(rows: Sequence[Row]) -> tuple[float, float, float, float]:
    """a, b, d in seconds, and the relative error that is left."""
    batches = sorted(b for b, _, _ in rows)
    tenths = quantiles(batches, n=10)
    if tenths[8] < SPREAD * tenths[0]:
        raise SimulationError(
            f"the batch was {tenths[0]:.1f} to {tenths[8]:.1f} sequences all along, so the history does not "
            f"tell what a sequence costs from what a step costs: choose a time with quiet and busy hours, or "
            f"{CURE}"
        )
    # Scaled to about one each, so that the system is well conditioned.
    scale = (1.0, max(batches), max(1.0, *(p for _, p, _ in rows)))
    xs = [(1.0, b / scale[1], p / scale[2]) for b, p, _ in rows]
    ys = [y for *_, y in rows]
    n = 3
    xx = tuple(tuple(sum(x[i] * x[j] for x in xs) for j in range(n)) for i in range(n))
    xy: Vector = tuple(sum(x[i] * y for x, y in zip(xs, ys, strict=True)) for i in range(n))
    cov = inverse(xx)
    if cov is None:
        raise SimulationError(f"the history does not tell prefill from decoding apart: {CURE}")
    theta = times(cov, xy)
    squares = sum(
        (y - sum(t * v for t, v in zip(theta, x, strict=True))) ** 2 for x, y in zip(xs, ys, strict=True)
    )
    noise = squares / max(1, len(rows) - n)
    errors = [math.sqrt(noise * cov[i][i]) for i in range(n)]
    a, b, d = (t / s for t, s in zip(theta, scale, strict=True))
    doubtful = [
        what
        for what, value, error in (
            ("a sequence", theta[1], errors[1]),
            ("a prompt token", theta[2], errors[2]),
        )
        if value <= 0.0 or error > DOUBT * value
    ]
    rise = b * (tenths[8] - tenths[0])
    if a <= 0.0 or doubtful or rise < LEAST_RISE * ys[0]:
        what = " and ".join(doubtful) or "a step"
        raise SimulationError(f"the latencies of this history do not tell what {what} costs: {CURE}")
    return a, b, d, math.sqrt(noise) / (sum(ys) / len(ys))
