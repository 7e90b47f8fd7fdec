"""A request in the engine, and a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(eq=False, slots=True)
class Sequence:
    """A request in the engine."""

    prompt: int
    output: int
    arrived: float
    to_prefill: int
    most: int
    """Its max_tokens."""
    generated: int = 0
    prefilled: int = 0
    began_at: int = 0
    """The engine's count of steps when it began to decode."""
    first_token: float = 0.0
    last_token: float = 0.0
    admitted: bool = False
    admitted_at: float = 0.0
    """When it left the queue for the first time."""
    alive: int = 0
    """Which of its lives this is: one ends with every preemption."""
    stream: bool = False
    """Whether a closed-loop client waits for it."""
    hash_ids: tuple[int, ...] = ()
    """The full blocks of its prompt, as in `Request`."""


class Step(NamedTuple):
    """A step that has begun: what it holds, and how long it takes."""

    chunks: list[tuple[Sequence, int]]
    """Prompts, and the tokens of each that are prefilled."""
    batch: int
    """Sequences that decode."""
    resident: int
    """KV tokens when it began."""
    prefill: int
    seconds: float
