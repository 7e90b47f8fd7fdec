"""Synthetic demand: the shapes that a controller is usually tried with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from llamaserver.simulate.demand import Demand, Request, constant
from llamaserver.simulate.lengths import Lengths

OVERLOAD = 1.25
"""Clients of a saturated fleet, over the places that it has."""


def lognormal(prompt: float, output: float) -> Lengths:
    """Lengths around these means, as chat has them: a lognormal prompt and an exponential output."""
    sigma = 0.6
    # The mean of a lognormal is exp(mu + sigma^2 / 2): a factor on the unit lognormal keeps it.
    mu, per_token = -sigma * sigma / 2, 1 / output

    def draw(rng: random.Random, _: float) -> tuple[int, int]:
        asked = prompt * rng.lognormvariate(mu, sigma)
        return max(1, round(asked)), max(2, round(rng.expovariate(per_token)))

    return draw


def poisson(
    rate: Callable[[float], float], peak: float, duration_s: float, lengths: Lengths, rng: random.Random
) -> Iterator[Request]:
    """Arrivals of a Poisson process whose rate is `rate(t)` and nowhere above `peak`, by thinning."""
    if peak <= 0.0:
        return
    t = rng.expovariate(peak)
    while t < duration_s:
        if rng.random() * peak <= rate(t):
            yield Request(t, *lengths(rng, t))
        t += rng.expovariate(peak)


@dataclass(frozen=True)
class Size:
    """How large a shape is."""

    duration_s: float
    streams: int
    """Clients of the closed-loop shapes."""
    rate: float
    """Requests per second of the open-loop shapes, where they begin."""
    prompt: float
    """Mean prompt tokens."""
    output: float
    """Mean output tokens."""

    @property
    def lengths(self) -> Lengths:
        return lognormal(self.prompt, self.output)


def _steady(size: Size, _: random.Random) -> Demand:
    return Demand("", size.duration_s, streams=constant(size.streams), lengths=size.lengths)


def _mix(size: Size, _: random.Random) -> Demand:
    third = size.duration_s / 3
    usual, long = size.lengths, lognormal(3 * size.prompt, size.output)

    def turning(rng: random.Random, t: float) -> tuple[int, int]:
        return (long if third < t <= 2 * third else usual)(rng, t)

    return Demand("", size.duration_s, streams=constant(size.streams), lengths=turning)


def _open(size: Size, rng: random.Random, rate: Callable[[float], float], peak: float) -> Demand:
    made = list(poisson(rate, peak, size.duration_s, size.lengths, rng))
    return Demand("", size.duration_s, made)


def _poisson(size: Size, rng: random.Random) -> Demand:
    return _open(size, rng, constant(size.rate), size.rate)


def _step(size: Size, rng: random.Random) -> Demand:
    third = size.duration_s / 3
    made = _open(size, rng, lambda t: size.rate * (4 if third < t <= 2 * third else 1), 4 * size.rate)
    return replace(made, step_s=third)


def _ramp(size: Size, rng: random.Random) -> Demand:
    half = size.duration_s / 2
    return _open(size, rng, lambda t: size.rate * (1 + 3 * min(1.0, t / half)), 4 * size.rate)


@dataclass(frozen=True)
class Shape:
    says: str
    make: Callable[[Size, random.Random], Demand]
    closed: bool
    """Whether its clients wait for their answers."""


SHAPES = {
    "steady": Shape("clients that ask again as soon as they are answered (--streams)", _steady, True),
    "mix": Shape("as steady; prompts are three times as long in the middle third", _mix, True),
    "poisson": Shape("requests that come by themselves, at one rate (--rate)", _poisson, False),
    "step": Shape("as poisson; four times the rate in the middle third", _step, False),
    "ramp": Shape("as poisson; the rate grows to four times in the first half and stays", _ramp, False),
}


def shaped(name: str, size: Size, seed: int) -> Demand:
    """The demand of a shape by its name; the same seed gives the same requests."""
    shape = SHAPES[name]
    made = shape.make(size, random.Random(seed))
    volume = f"{size.streams} streams" if shape.closed else f"{size.rate:.3g} requests/s"
    title = f"{name}, {volume}, {size.prompt:g} tokens in, {size.output:g} out"
    return replace(made, name=title)
