"""The setpoints of one engine: bounds, generation and lease, as a state machine with the time passed in.

A change names the whole wanted state, so two changes never mix. It holds for its lease and then the engine is
back at what it started with, whoever died in the meantime. A change counts only when its generation is higher
than the last one applied, so a delayed or repeated message changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CAP = "max_num_active_seqs"
BUDGET = "max_num_scheduled_tokens"

MIN_LEASE_S = 5.0
MAX_LEASE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a change was not applied. `reason` is CamelCase and part of the contract; `field` names the
    culprit."""

    reason: str
    message: str
    field: str = ""
    generation: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form of an error reply."""
        return {
            "reason": self.reason,
            "message": self.message,
            "field": self.field,
            "generation": self.generation,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """The whole wanted state: None means what the engine started with. Lease in seconds."""

    cap: int | None
    budget: int | None
    generation: int
    lease_s: float


def parse_change(body: bytes | str) -> Change | Refusal:
    """Read the body of a change. All four fields are required, and nothing else is allowed."""
    try:
        data = json.loads(body)
    except ValueError as error:
        return Refusal("InvalidBody", f"the body is not JSON: {error}")
    if not isinstance(data, dict):
        return Refusal("InvalidBody", "the body is not a JSON object")
    fields = (CAP, BUDGET, "generation", "lease_seconds")
    for name in fields:
        if name not in data:
            return Refusal("InvalidBody", f"{name} is missing; the body names the whole wanted state", name)
    for name in data:
        if name not in fields:
            return Refusal("InvalidBody", f"unknown field; known are {', '.join(fields)}", str(name)[:64])
    for name in (CAP, BUDGET, "generation"):
        value = data[name]
        nullable = name != "generation"
        if not (type(value) is int or (nullable and value is None)):
            return Refusal("InvalidBody", f"an integer{' or null' if nullable else ''} is wanted", name)
    lease = data["lease_seconds"]
    if type(lease) not in (int, float):
        return Refusal("InvalidBody", "a number of seconds is wanted", "lease_seconds")
    return Change(data[CAP], data[BUDGET], data["generation"], lease)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine started with, and what is safe in it.

    `live` maps each knob to "" when it can be set live, else to the reason why not. `tokens_per_seq` is what
    one decoding sequence takes from the budget (1 + speculative tokens); `chunk_reserve` is what prefill
    needs beyond the decodes.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    start_cap: int
    start_budget: int
    tokens_per_seq: int
    chunk_reserve: int
    live: Mapping[str, str]

    def min_budget(self, sequences: int) -> int:
        """Return the smallest budget that gives every one of `sequences` its tokens in every step.

        Below it the scheduler serves its running list from the front and the tail gets no tokens at all.
        """
        return min(self.start_budget, sequences * self.tokens_per_seq + self.chunk_reserve)


class Setpoints:
    """What is wanted of one engine now. Not thread-safe: the engine core's thread owns it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.cap = limits.start_cap
        self.budget = limits.start_budget
        self.generation = 0
        self.lease_until: float | None = None
        self.applied = 0
        self.expired = 0
        self.rejected = 0

    def put(self, change: Change, now: float) -> Refusal | None:
        """Take `change` at time `now` (seconds, monotonic), or say why not."""
        refusal = self._check(change)
        if refusal is not None:
            self.rejected += 1
            return refusal
        self.cap = self.limits.start_cap if change.cap is None else change.cap
        self.budget = self.limits.start_budget if change.budget is None else change.budget
        self.generation = change.generation
        self.lease_until = now + change.lease_s
        self.applied += 1
        return None

    def expire(self, now: float) -> bool:
        """End the lease if it is over; return True if it ended by this call."""
        if self.lease_until is None or now < self.lease_until:
            return False
        self.expired += 1
        self.reset()
        return True

    def reset(self) -> None:
        """Want what the engine started with. The generation stays, so an old change cannot come back."""
        self.cap = self.limits.start_cap
        self.budget = self.limits.start_budget
        self.lease_until = None

    def budget_in_force(self, running: int, owed: int = 0) -> int:
        """Return the budget for a step with `running` sequences, of which those up to the last decode take
        `owed` tokens where a prompt stands before one.

        While a lowered cap drains, more sequences run than the cap says, and a budget made for the cap would
        starve the tail of them, and prompts: until they are gone, it is lifted by what they need. So it is
        while a lowered budget finds prompts before decodes. A law that sets the budget for each step belongs
        here: the engine asks before every step.
        """
        beyond = max(0, running - self.cap) * self.limits.tokens_per_seq
        return min(self.limits.start_budget, max(self.budget + beyond, owed))

    def remaining(self, now: float) -> float | None:
        """Return the seconds until the lease ends, or None without a lease."""
        return None if self.lease_until is None else max(0.0, self.lease_until - now)

    def _check(self, change: Change) -> Refusal | None:
        if change.generation <= self.generation:
            message = (
                f"generation {change.generation} is not higher than {self.generation}, the last one applied"
            )
            return Refusal("StaleGeneration", message, "generation", self.generation)
        if not MIN_LEASE_S <= change.lease_s <= MAX_LEASE_S:
            message = f"a lease lasts {MIN_LEASE_S:.0f} to {MAX_LEASE_S:.0f} seconds"
            return Refusal("OutOfBounds", message, "lease_seconds")
        cap = self.limits.start_cap if change.cap is None else change.cap
        return self._check_knob(CAP, change.cap, 1, self.limits.max_num_seqs) or self._check_knob(
            BUDGET, change.budget, self.limits.min_budget(cap), self.limits.start_budget
        )

    def _check_knob(self, name: str, value: int | None, low: int, high: int) -> Refusal | None:
        if value is None:
            return None
        if self.limits.live[name]:
            return Refusal(
                "NotWritable", f"{name} cannot be set live here ({self.limits.live[name]}); send null", name
            )
        if not low <= value <= high:
            return Refusal("OutOfBounds", f"{value} is outside {low} to {high}", name)
        return None
