"""All usable windows of one LlamaServer as one: sums of numerators, denominators and buckets.

Ratios and quantiles are taken after adding, so that every token weighs the same; a mean of quantiles is no
quantile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llamaserver.observe.distribution import EMPTY, MismatchError, add
from llamaserver.observe.types import Distribution, NoWindow, Window, Windows


@dataclass(frozen=True, slots=True)
class FleetWindow:
    """What the pods with a usable window did together. Rates are per second, summed over pods."""

    pods: int
    """Pods with a usable window."""
    blind: int
    """Pods that were asked and gave none."""
    itl: Distribution | None
    queue: Distribution | None
    running: int
    waiting: int
    waiting_deferred: int
    kv_usage: float
    """The highest of any engine."""
    tokens_per_s: float
    preemptions_per_s: float
    finished: int | None
    """Requests finished; None when no pod tells."""
    tpot: Distribution | None = None
    """Times per output token of those requests; None when no pod tells."""

    @property
    def waiting_for_room(self) -> int:
        """Without those that wait for something else than the scheduler's room."""
        return max(0, self.waiting - self.waiting_deferred)


def usable(windows: Windows) -> list[Window]:
    """The windows that hold figures, in the order of pod names."""
    return [w for _, w in sorted(windows.items()) if isinstance(w, Window)]


def blind(windows: Windows) -> list[NoWindow]:
    """The pods that gave nothing this time, in the order of pod names."""
    return [w for _, w in sorted(windows.items()) if isinstance(w, NoWindow)]


def merged(parts: Iterable[Distribution | None]) -> Distribution | None:
    """The distribution of all parts together, exact ones first; coarse ones only when nothing exact is there.

    An exact digest and a coarse histogram cannot be added, nor can histograms with other edges: those that
    fit the first of the best kind are taken. None when there is no part at all.
    """
    known = sorted((d for d in parts if d is not None), key=lambda d: not d.exact)
    if not known:
        return None
    total = EMPTY if known[0].exact else None
    for part in known:
        if part.exact is not known[0].exact:
            break
        try:
            total = part if total is None else add(total, part)
        except MismatchError:
            continue
    return total


def aggregate(windows: Windows) -> FleetWindow:
    """The fleet's window of this tick."""
    good = usable(windows)
    return FleetWindow(
        pods=len(good),
        blind=len(windows) - len(good),
        itl=merged(w.itl for w in good),
        queue=merged(w.queue for w in good),
        running=sum(w.running for w in good),
        waiting=sum(w.waiting for w in good),
        waiting_deferred=sum(w.waiting_deferred for w in good),
        kv_usage=max((w.kv_usage for w in good), default=0.0),
        tokens_per_s=sum(w.generation_tokens / w.dt for w in good),
        preemptions_per_s=sum(w.preemptions / w.dt for w in good),
        finished=sum(known) if (known := [w.finished for w in good if w.finished is not None]) else None,
        tpot=merged(w.tpot for w in good),
    )
