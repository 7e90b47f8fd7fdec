"""How long requests are, and what they say of it beforehand."""

from __future__ import annotations

import random
from collections.abc import Callable

Lengths = Callable[[random.Random, float], tuple[int, int]]
"""(generator, time) -> prompt tokens, output tokens."""
Allowed = Callable[[int], int | None]
"""Output tokens -> max_tokens; None for a request without a max_tokens of its own."""


def to_the_end(output: int) -> int | None:
    """Every request generates what it may."""
    return output


def up_to_4096(_: int) -> int | None:
    """Clients that set a generous limit once and for all; their outputs end by themselves."""
    return 4096


def unset(_: int) -> int | None:
    """Clients that set no limit."""
    return None


def words(rng: random.Random, _: float) -> tuple[int, int]:
    """Prompts of 32 to 256 tokens, outputs of 60 to 300: the mix the CPU profile was measured with."""
    return rng.choice((32, 64, 128, 256)), rng.randint(60, 300)


def chat(rng: random.Random, _: float) -> tuple[int, int]:
    """About 1,000 tokens in and 200 out."""
    return int(rng.lognormvariate(6.7, 0.6)), 1 + int(rng.expovariate(1 / 200))
