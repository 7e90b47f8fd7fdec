"""How long an engine's step takes, learned from the steps themselves.

    tau = a + b B + g K + d P + c [P > 0]

B decoding sequences, K KV tokens resident for them, P prefill tokens in the step. `a` is the price of reading
the weights once, `b` a sequence's own work, `g` reading one token's keys and values, `d` one prefill token,
`c` what a step pays for carrying prefill at all (on a GPU such steps leave the full CUDA graph).

The fit is Bayesian least squares with forgetting. A window that carries exact step sums is one block of n
steps and enters as its normal equations; a window known only by averages enters as n equal steps. Steps of
one window share whatever ailed that window (a neighbour's load, a clock change), so each block has a random
level of its own with variance (noise tau)^2: marginalised, its information is (X'X - k s s')/sigma^2 with s =
X'1 and k = v/(sigma^2 + n v), v = (noise tau)^2. Slopes within a window count in full, its level counts for
what it is worth. Old information fades with MEMORY_S towards a floor around the current estimate, so that
nothing winds up while the load does not move, and a block far off is weighed down (Huber) but never locked
out.

Every scale comes from the data: the same code serves steps of 5 ms and of 500 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from llamaserver.control.linalg import Matrix, Vector, combine, diagonal, dot, inverse, quadratic, times
from llamaserver.observe.types import StepMoments, Window

MEMORY_S = 130.0
MIN_STEPS = 5
HUBER = 3.0
"""A block further off than this many standard deviations loses weight."""
CHANGED_TICKS = 3
"""So many ticks in a row beyond HUBER, and the machine is not the one that was learned: only the estimate
stays, as the guess to start from, and no confidence in it.
"""
AT_ODDS = 0.25
"""How far, as a logarithm, a pod's steps may be off those of the others and still teach the model."""
FIRST_NOISE = 0.03
"""Relative scatter of windows about the model until it has been measured."""
NOISE_RANGE = (0.01, 0.2)
AVERAGED_STEP_NOISE = 0.05
CORRELATED_STEPS = 4.0
"""Steps that are disturbed together: n steps of a window teach as much as n/4 independent ones."""

_SCALE = (1.0, 16.0, 8192.0, 128.0, 1.0)
"""Typical size of 1, B, K, P, [P > 0]: keeps the normal equations well conditioned."""
_SLOPE_SHARE = 0.03
"""Prior of (b + g context)/a: between an H100 with an 8B model (0.01) and a CPU (0.08)."""
_KNEE_TOKENS = 256.0
"""Prior of a/d: the batch of tokens at which compute costs what reading the weights costs."""


@dataclass(frozen=True, slots=True)
class Block:
    """Sums over the steps of one window, regressors scaled, seconds."""

    n: float
    x: Vector
    xx: Matrix
    xy: Vector
    yy: float

    @property
    def mean_s(self) -> float:
        return self.xy[0] / self.n


@dataclass(frozen=True, slots=True)
class StepModel:
    """The learned step time. Coefficients in seconds per unit; `cov` belongs to the scaled unknowns."""

    a_s: float
    b_s: float
    g_s: float
    d_s: float
    c_s: float
    cov: Matrix
    prior_a_s: float
    """The scale from which the floor of knowledge is made."""
    noise: float
    """Relative standard deviation of a window's mean step time about the model."""
    blocks: int = 0
    odd_ticks: int = 0
    """Ticks in a row whose blocks were all beyond HUBER."""

    @property
    def scaled(self) -> Vector:
        return tuple(
            v * k for v, k in zip((self.a_s, self.b_s, self.g_s, self.d_s, self.c_s), _SCALE, strict=True)
        )

    def slope_s(self, context: float) -> float:
        """What one more decoding sequence with `context` resident tokens adds to a decode step."""
        return self.b_s + self.g_s * context

    def decode_s(self, batch: float, context: float) -> float:
        """Duration of a step that only decodes."""
        return self.a_s + self.slope_s(context) * batch

    def mean_slope_s(self, context: float, prefill: float, mixed: float) -> float:
        """What one more sequence adds to the mean step, with the prefill that keeps it replaced.

        `prefill` is prefill tokens per decoded token, `mixed` prefill-carrying steps per decoded token.
        """
        return self.slope_s(context) + self.d_s * prefill + self.c_s * mixed

    def prefill_at_most(self) -> tuple[float, float]:
        """Upper bounds of what a prefill token, and carrying prefill at all, cost a step: 2 deviations up."""
        sd = [math.sqrt(max(0.0, self.cov[i][i])) / _SCALE[i] for i in (3, 4)]
        return self.d_s + 2.0 * sd[0], self.c_s + 2.0 * sd[1]

    def chunk_sd(self, tokens: float) -> float:
        """Standard deviation of what carrying `tokens` of prefill adds to a step."""
        p, cov = tokens / _SCALE[3], self.cov
        return math.sqrt(max(0.0, cov[3][3] * p * p + 2.0 * cov[3][4] * p + cov[4][4]))

    def slope_sd(self, context: float) -> float:
        """Standard deviation of `slope_s`."""
        return self.shift_sd(0.0, 0.0, 1.0, context)

    def shift_sd(self, batch: float, context: float, batch_to: float, context_to: float) -> float:
        """Standard deviation of decode_s(batch_to, context_to) - decode_s(batch, context)."""
        b = (batch_to - batch) / _SCALE[1]
        k = (batch_to * context_to - batch * context) / _SCALE[2]
        cov = self.cov
        return math.sqrt(max(0.0, cov[1][1] * b * b + 2.0 * cov[1][2] * b * k + cov[2][2] * k * k))

    def trusted(self, context: float) -> bool:
        """Whether the slope is known well enough to move far at once."""
        slope = self.slope_s(context)
        return self.blocks >= 2 and slope > 0.0 and self.slope_sd(context) < 0.3 * slope


def block_of(window: Window) -> Block | None:
    """The window's steps as one block; None when it has too few, or they are no sample of steady work."""
    if window.preemptions > 0:
        return None
    if window.decode_steps is not None and window.mixed_steps is not None:
        return exact_block(window.decode_steps, window.mixed_steps)
    return _averaged(window)


def exact_block(decode: StepMoments, mixed: StepMoments) -> Block | None:
    """The block of a window's decode-only and prefill-carrying steps; None when there are too few."""
    n = decode.n + mixed.n
    if n < MIN_STEPS or decode.B + mixed.B <= 0 or decode.y + mixed.y <= 0:
        return None

    def row(*sums: int, last: int) -> list[float]:
        return [*(float(s) for s in sums), float(last)]

    raw = [
        row(n, decode.B + mixed.B, decode.K + mixed.K, decode.P + mixed.P, last=mixed.n),
        row(
            decode.B + mixed.B, decode.BB + mixed.BB, decode.BK + mixed.BK, decode.BP + mixed.BP, last=mixed.B
        ),
        row(
            decode.K + mixed.K, decode.BK + mixed.BK, decode.KK + mixed.KK, decode.KP + mixed.KP, last=mixed.K
        ),
        row(
            decode.P + mixed.P, decode.BP + mixed.BP, decode.KP + mixed.KP, decode.PP + mixed.PP, last=mixed.P
        ),
        row(mixed.n, mixed.B, mixed.K, mixed.P, last=mixed.n),
    ]
    y = [decode.y + mixed.y, decode.By + mixed.By, decode.Ky + mixed.Ky, decode.Py + mixed.Py, mixed.y]
    xx = tuple(
        tuple(v / (si * sj) for v, sj in zip(r, _SCALE, strict=True))
        for r, si in zip(raw, _SCALE, strict=True)
    )
    xy = tuple(1e-6 * v / s for v, s in zip(y, _SCALE, strict=True))
    return Block(float(n), xx[0], xx, xy, 1e-12 * (decode.yy + mixed.yy))


def _averaged(window: Window) -> Block | None:
    """From counters and gauges alone: n equal steps at the window's averages, mixed steps unknown."""
    steps, capacity = window.steps, [e.kv_capacity_tokens for e in window.last.engines]
    if not steps or steps < MIN_STEPS or window.itl.count <= 0 or None in capacity or window.running == 0:
        return None
    batch = window.itl.count / steps
    resident = window.kv_usage * sum(c for c in capacity if c is not None) / len(capacity)
    prefill = max(0, (window.prompt_tokens or 0) - (window.cached_prompt_tokens or 0)) / steps
    mean_s = window.itl.sum_s / window.itl.count
    if mean_s <= 0.0:
        return None
    x = tuple(v / s for v, s in zip((1.0, batch, resident, prefill, 0.0), _SCALE, strict=True))
    n = float(steps)
    return Block(
        n,
        tuple(n * v for v in x),
        tuple(tuple(n * v * w for w in x) for v in x),
        tuple(n * v * mean_s for v in x),
        n * mean_s**2 * (1.0 + AVERAGED_STEP_NOISE**2),
    )


def agreeing(model: StepModel | None, blocks: Sequence[Block]) -> list[Block]:
    """The blocks of one tick, one of each pod, without those at odds with the others.

    A pod whose steps take another time than its sums of work explain (another machine, a disturbance, false
    sums) says nothing of the others' steps. How far each is off the model is compared with the middle of all,
    so a wrong model throws nobody out; nor does what the model cannot know yet. Two pods are no majority.
    """
    if model is None or len(blocks) < 3:
        return list(blocks)
    known = [(b, fitted) for b in blocks if (fitted := fitted_s(model, b)) > 0.0]
    off = [math.log(max(1e-9, b.mean_s) / fitted) for b, fitted in known]
    middle = median(off)
    return [
        b
        for (b, fitted), o in zip(known, off, strict=True)
        if abs(o - middle) <= max(AT_ODDS, HUBER * unsure_s(model, b) / fitted)
    ]


def fitted_s(model: StepModel, block: Block) -> float:
    """Mean step time that the model gives for this block's work, seconds."""
    return dot(model.scaled, block.x) / block.n


def unsure_s(model: StepModel, block: Block) -> float:
    """Standard deviation of the mean step time that the model gives for this block's work, seconds."""
    return math.sqrt(max(0.0, quadratic(model.cov, tuple(s / block.n for s in block.x))))


def _floor(prior_a_s: float) -> Vector:
    """Variances of the scaled unknowns when nothing is known but the order of a step's duration."""
    slope = _SLOPE_SHARE * prior_a_s
    sds = (
        2.0 * prior_a_s,
        2.0 * slope * _SCALE[1],
        2.0 * slope * _SCALE[2] / 256.0,
        16.0 * prior_a_s / _KNEE_TOKENS * _SCALE[3],
        1.0 * prior_a_s,
    )
    return tuple(sd * sd for sd in sds)


def prior(block: Block) -> StepModel:
    """What the first block suggests by itself: a level, and slopes in the usual proportion to it."""
    batch = max(1.0, block.x[1] * _SCALE[1] / block.n)
    context = max(16.0, block.x[2] * _SCALE[2] / block.n / batch)
    a = block.mean_s / (1.0 + _SLOPE_SHARE * batch)
    return StepModel(
        a_s=a,
        b_s=0.5 * _SLOPE_SHARE * a,
        g_s=0.5 * _SLOPE_SHARE * a / context,
        d_s=a / _KNEE_TOKENS,
        c_s=0.0,
        cov=diagonal(_floor(a)),
        prior_a_s=a,
        noise=FIRST_NOISE,
    )


def remembered(a_s: float, b_s: float, g_s: float, d_s: float, c_s: float, noise: float) -> StepModel:
    """A model learned earlier: believed, but not so firmly that another machine could not correct it."""
    sds = (0.2 * a_s, 0.35 * b_s, 0.35 * g_s, 0.35 * d_s, 0.2 * a_s)
    floor = _floor(a_s)
    variances = tuple(
        min(f, max((sd * k) ** 2, 1e-4 * f)) for sd, k, f in zip(sds, _SCALE, floor, strict=True)
    )
    return StepModel(a_s, b_s, g_s, d_s, c_s, diagonal(variances), a_s, noise, blocks=2)


def update(model: StepModel | None, blocks: Sequence[Block], dt: float) -> StepModel | None:
    """The model after one tick of `dt` seconds that closed `blocks`. None while nothing was ever seen."""
    if not blocks:
        return model
    if model is None:
        model = prior(sorted(blocks, key=lambda block: block.mean_s)[len(blocks) // 2])
    known = inverse(model.cov)
    if known is None:
        return model
    forget = math.exp(-max(0.0, dt) / MEMORY_S)
    floor = diagonal(tuple(0.25 / v for v in _floor(model.prior_a_s)))
    noise, odd = model.noise, model.odd_ticks + 1
    gathered: list[tuple[float, Matrix, Vector]] = []
    for block in blocks:
        weight, part, pull, noise = _evidence(model, block, noise)
        gathered.append((weight, part, pull))
        odd = 0 if weight >= 1.0 else odd
    if odd >= CHANGED_TICKS:
        forget, odd, noise = 0.0, 0, FIRST_NOISE
        gathered = [(1.0, *_evidence(replace(model, noise=noise), block, noise)[1:3]) for block in blocks]
    info, rhs = combine(known, forget, floor, 1.0 - forget), (0.0,) * len(_SCALE)
    for weight, part, pull in gathered:
        info = combine(info, 1.0, part, weight)
        rhs = tuple(r + weight * p for r, p in zip(rhs, pull, strict=True))
    cov = inverse(info)
    if cov is None:
        return model
    scaled = _admissible(tuple(t + d for t, d in zip(model.scaled, times(cov, rhs), strict=True)), cov)
    a, b, g, d, c = (v / k for v, k in zip(scaled, _SCALE, strict=True))
    if not all(math.isfinite(v) for v in (a, b, g, d, c)):
        return model
    blocks_seen = model.blocks + len(blocks)
    return replace(
        model, a_s=a, b_s=b, g_s=g, d_s=d, c_s=c, cov=cov, noise=noise, blocks=blocks_seen, odd_ticks=odd
    )


def _evidence(model: StepModel, block: Block, noise: float) -> tuple[float, Matrix, Vector, float]:
    """A block's Huber weight, information, pull on the unknowns, and the noise after having seen it."""
    theta, n, mean_s = model.scaled, block.n, block.mean_s
    fitted = times(block.xx, theta)
    residuals = tuple(y - f for y, f in zip(block.xy, fitted, strict=True))
    level = residuals[0] / n
    squares = block.yy - 2.0 * dot(theta, block.xy) + dot(theta, fitted)
    sigma2 = CORRELATED_STEPS * max(squares / n - level * level, (0.01 * mean_s) ** 2)
    v = (noise * mean_s) ** 2
    k = v / (sigma2 + n * v)
    part = tuple(
        tuple((m - k * si * sj) / sigma2 for m, sj in zip(row, block.x, strict=True))
        for row, si in zip(block.xx, block.x, strict=True)
    )
    pull = tuple((r - k * s * residuals[0]) / sigma2 for r, s in zip(residuals, block.x, strict=True))
    at = tuple(s / n for s in block.x)
    unsure = quadratic(model.cov, at)
    spread = v + sigma2 / n + unsure
    weight = min(1.0, HUBER * math.sqrt(spread) / abs(level)) if level else 1.0
    excess = max(0.0, level * level - sigma2 / n - unsure) / mean_s**2
    low, high = NOISE_RANGE
    noise2 = 0.92 * noise**2 + 0.08 * min(excess, high**2)
    return weight, part, pull, min(high, max(low, math.sqrt(noise2)))


def _admissible(theta: Vector, cov: Matrix) -> Vector:
    """Conditions the estimate on a >= 0, b >= 0, g >= 0, d >= 0 and c >= -a/2, moving the others along with
    it.

    A coefficient at its bound is taken as known there; the rest follow through their covariance with it.
    """
    for _ in range(2 * len(theta)):
        lows = (0.0, 0.0, 0.0, 0.0, -0.5 * max(0.0, theta[0]))
        gaps = [low - t for low, t in zip(lows, theta, strict=True)]
        worst = max(range(len(theta)), key=lambda i: gaps[i] / math.sqrt(cov[i][i]))
        if gaps[worst] <= 0.0:
            return theta
        gain = gaps[worst] / cov[worst][worst]
        theta = tuple(t + gain * cov[i][worst] for i, t in enumerate(theta))
    return tuple(
        max(low, t) for low, t in zip((0.0, 0.0, 0.0, 0.0, -0.5 * max(0.0, theta[0])), theta, strict=True)
    )
