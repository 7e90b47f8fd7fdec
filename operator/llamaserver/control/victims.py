"""Which replicas go when there are to be fewer: those whose end interrupts least.

Kubernetes picks by an order of its own, in which a cost that a pod carries counts fourth (`Less` of
`ActivePodsWithRanks` in pkg/controller/controller_utils.go, read in Kubernetes 1.34): unassigned before
assigned, pending before running, not ready before ready, lower `controller.kubernetes.io/pod-deletion-cost`
before higher, then what shares its node with more of the fleet, what has become ready lately, what has
restarted more often, what is younger; times count by their logarithm, and a draw decides between pods of
about the same age. So a cost moves only pods of one stage past each other, and the choice here has to begin
with the same stages to come true.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    """How far a pod has come. An earlier one goes before a later one, whatever both cost."""

    UNASSIGNED = 0
    PENDING = 1
    NOT_READY = 2
    READY = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that is not ending."""

    name: str
    stage: Stage
    load: int | None
    """Requests running and waiting; None where the pod does not tell, which is not the same as idle."""
    made_at: float
    """Unix seconds."""


def victims(pods: Iterable[Candidate], number: int) -> tuple[Candidate, ...]:
    """The `number` of pods to go, first those that serve nobody yet, then those with the fewest requests.

    Among equals the youngest goes: its cache of prefixes is the coldest. A pod that does not tell its load
    goes after all of its stage that do. Names decide what is left: the same fleet gives the same answer.
    """
    return tuple(sorted(pods, key=_rank)[: max(0, number)])


def unseen(pods: Iterable[Candidate], going: Iterable[Candidate]) -> tuple[str, ...]:
    """The ready pods without whose load this choice is a guess; none where no ready pod has to go."""
    if all(pod.stage is not Stage.READY for pod in going):
        return ()
    return tuple(pod.name for pod in pods if pod.stage is Stage.READY and pod.load is None)


def _rank(pod: Candidate) -> tuple[Stage, float, float, str]:
    return pod.stage, math.inf if pod.load is None else pod.load, -pod.made_at, pod.name
