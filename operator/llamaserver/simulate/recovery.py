"""How long a step of the load is felt: until latency and queue are again as they should be."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from llamaserver.simulate.clients import quantiles

IN_A_ROW = 3
"""So many windows one after the other have to be fine before anything counts as over."""
LEAST_WAIT_S = 0.3
"""The first edge of vLLM's histogram of waits: a shorter one is no queue that anybody could see."""
Windows = Sequence[tuple[float, bool]]
"""(end of the window, whether it was fine), in the order of time."""


def recovery_s(windows: Windows, step_s: float, window_s: float, until: float) -> float | None:
    """Seconds from the step to the beginning of the first IN_A_ROW fine windows, of those that end after it.

    None where the first ones are: nothing was to recover. Where such a row never comes, what was left until
    the end of the run at `until`: it was at least that.
    """
    after = [(at, fine) for at, fine in windows if at > step_s]
    row = 0
    for i, (_, fine) in enumerate(after):
        row = row + 1 if fine else 0
        if row == IN_A_ROW:
            first = i - IN_A_ROW + 1
            return max(0.0, after[first][0] - window_s - step_s) if first else None
    return None if all(fine for _, fine in after) else until - step_s


def queue_windows(
    queued: Iterable[tuple[float, float]],
    waiting: Sequence[tuple[float, int]],
    span: tuple[float, float, float],
    window_s: float,
) -> Windows:
    """Windows from the step on, and whether the p95 of the waits that ended in each is back: at most what it
    was before the step, or LEAST_WAIT_S. One in which no wait ended is fine if nobody waits at its end.

    `queued` are (time of admission, wait in seconds), `waiting` (time, requests that wait), and `span` is
    from when on waits count, the step, and the end of the run.
    """
    since, step_s, until = span
    before, after = list[float](), defaultdict[int, list[float]](list)
    for at, wait in queued:
        if since < at <= step_s:
            before.append(wait)
        elif at > step_s:
            after[math.ceil((at - step_s) / window_s) - 1].append(wait)
    usual = max(LEAST_WAIT_S, _p95(before)) if before else LEAST_WAIT_S
    found = []
    for i in range(math.floor((until - step_s) / window_s + 1e-9)):
        end = step_s + (i + 1) * window_s
        found.append((end, _p95(after[i]) <= usual if after[i] else not _at(waiting, end)))
    return found


def _p95(waits: Sequence[float]) -> float:
    return quantiles([(wait, 1) for wait in waits], (0.95,))[0]


def _at(course: Sequence[tuple[float, int]], when: float) -> int:
    """The last value that was known then; 0 before the first."""
    place = bisect_right(course, when + 1e-9, key=lambda known: known[0])
    return course[place - 1][1] if place else 0
