"""A replica that is slower than the others at the same work: another machine, a hot one, a neighbour.

Every replica's steps are compared with what the shared model gives for their batch, contexts and prefill, so
that a replica with more to do is not taken for a slow one. What counts is how far it is off beside the
others, not beside the model: a model that is wrong is wrong for all of them. With three replicas or more the
middle one is the measure, and most have to agree with it; of two the quicker one is, for which of them is as
it should be nobody can tell, and the slower one is the one to look at either way.

Nothing is done about it here. Its own latencies give it a cap of its own, and steps far off those of the
others teach the model nothing (control/model.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from llamaserver.control.model import Block, StepModel, fitted_s, unsure_s
from llamaserver.control.state import LAPSE_S, Pace, PaceState, Spell, spell
from llamaserver.control.types import Straggler
from llamaserver.observe.types import Window

SLOWER, STILL_SLOWER = 1.25, 1.15
"""Steps so many times as long as the others' make a straggler; one that was told is one until they are less
than the second.
"""
SURE = 2.0
"""So many standard deviations of what the model gives have to be beyond that."""
TOLD_S = 30.0
MEMORY_S = 10.0


def follow(
    state: PaceState,
    model: StepModel | None,
    blocks: Mapping[str, Block],
    windows: Sequence[Window],
    there: Collection[str],
    dt: float,
    now: float,
) -> PaceState:
    """The paces with one more tick's steps. `blocks` are those of the replicas that made enough of them,
    `there` all replicas. One that makes none for LAPSE_S has no pace.
    """
    if len(there) < 2:
        return PaceState()
    paces = {pod: p for pod, p in state.paces.items() if pod in there and now - p.at <= LAPSE_S}
    weight = 1.0 - math.exp(-max(0.0, dt) / MEMORY_S)
    for window in windows:
        block = blocks.get(window.pod)
        if model is None or block is None or (fitted := fitted_s(model, block)) <= 0.0:
            continue
        step_s = _borne_out(block, window)
        off, doubt = math.log(max(1e-9, step_s) / fitted), unsure_s(model, block) / fitted
        if (before := paces.get(window.pod)) is not None:
            off = before.off + weight * (off - before.off)
            doubt = before.doubt + weight * (doubt - before.doubt)
        paces[window.pod] = Pace(now, step_s, off, doubt)
    behind = _behind(paces, {pod for pod, s in state.slow.items() if _lasts(s, now)})
    spells = {pod: spell(state.slow.get(pod), pod in behind, now) for pod in paces}
    return PaceState(paces, {pod: s for pod, s in spells.items() if s is not None})


def found(state: PaceState, now: float) -> Straggler | None:
    """The replica that has been slow longest, once that has lasted; None where none has."""
    lasting = sorted((s.since, pod) for pod, s in state.slow.items() if _lasts(s, now))
    if not lasting or len(state.paces) < 2:
        return None  # nobody is left to compare it with
    slow, usual = tuple(pod for _, pod in lasting), _usual(state.paces)
    ratios = {pod: math.exp(max(0.0, state.paces[pod].off - usual)) for pod in slow}
    return Straggler(
        pod=slow[0],
        step_s=state.paces[slow[0]].step_s,
        ratio=ratios[slow[0]],
        since=lasting[0][0],
        slow=slow,
        fit=_fit(state.paces, usual),
        lost=sum(1.0 - 1.0 / ratio for ratio in ratios.values()),
    )


def _lasts(s: Spell, now: float) -> bool:
    return now - s.since >= TOLD_S


def _borne_out(block: Block, window: Window) -> float:
    """The mean step in seconds, as far as the latencies that clients see bear it out: a token waits for its
    step, so sums that say more than these are none to accuse a replica by.
    """
    itl = window.itl
    return min(block.mean_s, itl.sum_s / itl.count) if itl.count > 0 and itl.sum_s > 0.0 else block.mean_s


def _behind(paces: Mapping[str, Pace], told: Collection[str]) -> set[str]:
    """Who is behind the others now; nobody where these are at odds with each other."""
    if len(paces) < 2:
        return set()
    usual = _usual(paces)
    if 2 * _fit(paces, usual) < len(paces):
        return set()
    return {
        pod
        for pod, p in paces.items()
        if p.off - usual > math.log(STILL_SLOWER if pod in told else SLOWER) + SURE * p.doubt
    }


def _usual(paces: Mapping[str, Pace]) -> float:
    offs = [p.off for p in paces.values()]
    return median(offs) if len(offs) > 2 else min(offs)


def _fit(paces: Mapping[str, Pace], usual: float) -> int:
    return sum(abs(p.off - usual) <= math.log(SLOWER) for p in paces.values())
