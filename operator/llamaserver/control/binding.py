"""Which knob holds requests back now: the one to look at, or to spend money on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llamaserver.api.enums import Binding
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import BindingState

FILLED = 0.8
"""Prefill fills its budget where this share of tokens comes from steps that carry prefill, and these use this
share of the room that the budget leaves them.
"""
TICKS = 5
"""Another knob has to bind so many ticks in a row before it is named."""


def settle(state: BindingState, pods: Sequence[PodFacts]) -> BindingState:
    """The state after one more look. What is not known now does not change what was named."""
    found = now(pods)
    if found is None or found is state.named:
        return replace(state, other=None, times=0)
    times = state.times + 1 if found is state.other else 1
    if state.named is None or times >= TICKS:
        return BindingState(found)
    return BindingState(state.named, found, times)


def now(pods: Sequence[PodFacts]) -> Binding | None:
    """What binds at the pod with the longest queue; None while no pod says anything."""
    if not pods:
        return None
    pod = max(pods, key=lambda p: p.window.waiting_for_room)
    if pod.window.waiting_for_room <= 0:
        return Binding.NOTHING
    if pod.cap is None:
        return None
    if pod.kv_ceiling is not None and pod.cap + 1 > pod.kv_ceiling:
        return Binding.KV_CACHE
    if _lowered(pod) and (_filled(pod) or not pod.limited):
        return Binding.PREFILL_BUDGET
    if not pod.limited:
        return None  # between two states, or held by something that is no knob: see AdmissionElsewhere
    if pod.high is not None and pod.cap >= pod.high:
        return Binding.MAX_NUM_SEQS
    return Binding.NUM_SEQS


def _lowered(pod: PodFacts) -> bool:
    starts = [e.start_num_scheduled_tokens for e in pod.window.last.engines]
    return pod.budget is not None and all(start is None or pod.budget < start for start in starts)


def _filled(pod: PodFacts) -> bool:
    tokens = sum(r.tokens for r in pod.recent)
    if tokens <= 0.0:
        return False
    share = sum(r.share * r.tokens for r in pod.recent) / tokens
    used = sum(r.tokens * min(1.0, r.chunk / r.room) for r in pod.recent) / tokens
    return share >= FILLED and used >= FILLED
