"""What all pods of one LlamaServer share this tick, and what one of them can be told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llamaserver.api.enums import TuningMode
from llamaserver.control.joint import BudgetRange
from llamaserver.control.model import StepModel
from llamaserver.control.objective import QUANTILES
from llamaserver.control.state import Learned, PodState
from llamaserver.control.types import Limits, Objective
from llamaserver.observe.types import Sample

LIVE, FIXED, NOT_A_TAIL = "Live", "Fixed", "NotATail"
SUSPENDED, OFF, RECOMMENDING = "Suspended", "Off", "Recommending"
SPECULATIVE_DECODING, NOT_TOLD = "SpeculativeDecoding", "NotTold"
"""What is said of the prefill budget, beside the reasons that engines give."""
TAIL_QUANTILE = 0.9
"""From this quantile on an objective speaks of the tail, which the prefill budget shapes."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all pods of one LlamaServer share this tick."""

    objective: Objective
    limits: Limits
    model: StepModel | None
    relief: float
    seed: Learned | None
    peers: Sequence[PodState]
    """The other pods that have a cap, for one that has none yet."""
    now: float

    @property
    def acting(self) -> bool:
        return self.limits.tuning is TuningMode.AUTO and not self.limits.suspended

    @property
    def asked(self) -> tuple[float | None, str]:
        """Target in seconds, and statistic: what was learned for one pair says little of another."""
        return self.objective.itl_s, self.objective.itl_named

    @property
    def quantile(self) -> float:
        """That of the objective's statistic; 0 for a mean."""
        return QUANTILES.get(self.objective.itl_statistic, 0.0)

    @property
    def learned_for_this(self) -> bool:
        """Whether what an earlier operator learned is of this statistic."""
        seed = self.seed
        return (
            seed is not None
            and seed.quantile == self.quantile
            and bool(seed.per_request) is self.objective.of_requests
        )

    @property
    def of_a_tail(self) -> bool:
        """Whether the objective is one that prefill decides as much as the batch does."""
        return of_a_tail(self.objective)


def of_a_tail(objective: Objective) -> bool:
    """Whether a percentile is promised that speaks of the tail, which the prefill budget shapes."""
    return objective.itl_s is not None and QUANTILES.get(objective.itl_statistic, 0.0) >= TAIL_QUANTILE


def settable(sample: Sample) -> bool:
    """Whether this pod's cap can be written now."""
    return sample.writable and all(
        e.live_cap == "" and e.max_num_active_seqs is not None and e.max_num_seqs is not None
        for e in sample.engines
    )


def bounds(limits: Limits, sample: Sample) -> tuple[int, int | None]:
    """Smallest and largest cap allowed per engine; the latter None when the pod does not tell its ceiling."""
    ceilings = [e.max_num_seqs for e in sample.engines if e.max_num_seqs is not None]
    if not ceilings:
        return limits.cap_min, limits.cap_max
    high = min(min(ceilings), limits.cap_max if limits.cap_max is not None else min(ceilings))
    return min(limits.cap_min, high), high


def in_force(sample: Sample) -> int | None:
    """The cap the pod's engines run with; the lowest where they differ, None when they do not say."""
    caps = [e.max_num_active_seqs for e in sample.engines if e.max_num_active_seqs is not None]
    return min(caps, default=None)


def budget_range(limits: Limits, sample: Sample) -> BudgetRange | None:
    """What all engines of the pod take as a token budget; None where it may not or cannot be moved."""
    if not limits.budget_moves or budget_obstacle(sample):
        return None
    return BudgetRange(
        max(e.chunk_reserve or 0 for e in sample.engines),
        min(e.start_num_scheduled_tokens or 0 for e in sample.engines),
    )


def budget_obstacle(sample: Sample) -> str:
    """Why the token budget of this pod's engines cannot be moved, in one CamelCase word; "" where it can.

    Not where sequences have room for speculative tokens: what drafts leave of it goes to prefill, so a budget
    does not say how much prefill a step may carry.
    """
    for e in sample.engines:
        if e.live_budget:
            return e.live_budget
        if e.tokens_per_seq is None or e.chunk_reserve is None or e.start_num_scheduled_tokens is None:
            return NOT_TOLD
        if e.tokens_per_seq > 1:
            return SPECULATIVE_DECODING
    return "" if sample.engines else NOT_TOLD


def budget_use(objective: Objective, limits: Limits, samples: Iterable[Sample]) -> str:
    """Whether the prefill budget is moved with the cap, or why not, in one CamelCase word; "" where no engine
    was heard of.
    """
    told = list(samples)
    if not told:
        return ""
    if limits.suspended:
        return SUSPENDED
    if limits.tuning is TuningMode.OFF:
        return OFF
    if not limits.budget_moves:
        return FIXED
    if not of_a_tail(objective):
        return NOT_A_TAIL
    moves = RECOMMENDING if limits.tuning is TuningMode.RECOMMEND else LIVE
    words = (budget_obstacle(sample) or _cap_obstacle(sample) for sample in told)
    return next(filter(None, words), moves)


def _cap_obstacle(sample: Sample) -> str:
    """Why the cap of this pod's engines cannot be moved, without which the budget is not moved either."""
    found = next((e.live_cap for e in sample.engines if e.live_cap), "")
    return found or ("" if settable(sample) else sample.reason or NOT_TOLD)
