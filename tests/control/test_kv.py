"""The KV ceiling: right at once from lengths, and never higher while preemptions rise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.plant import CPU_24M, Engine, Profile, words
from llamaserver.control import kv
from llamaserver.control.kv import KvState
from llamaserver.observe import Memory, NoWindow, Window, advance, parse_snapshot


def windows(profile: Profile, cap: int, streams: int, seconds: float) -> list[Window]:
    engine = Engine(profile, words)
    engine.put(cap, 1e9)
    memory, found = Memory(), []
    engine.load(streams=streams)
    while engine.now < seconds:
        engine.run_until(engine.now + 2.0)
        memory, made = advance(memory, {"p": parse_snapshot(engine.snapshot(), engine.now, "p")}, engine.now)
        if not isinstance(window := made["p"], NoWindow):
            found.append(window)
    return found


def follow(seen: list[Window], state: KvState | None = None, *, in_force: bool = True) -> list[KvState]:
    state, states = state or KvState(), []
    for window in seen:
        state = kv.observe(state, window, in_force, window.at)
        states.append(state)
    return states


@given(st.floats(100, 1e7), st.floats(1, 1e4))
def test_what_fits_is_what_is_needed_turned_round(capacity: float, footprint: float) -> None:
    fits = kv.fitting(capacity, footprint)
    assert fits <= capacity / footprint
    if fits >= 1.0:
        assert kv.needed(fits, footprint) == pytest.approx(capacity, rel=1e-6)


def test_without_figures_there_is_no_ceiling() -> None:
    window = windows(CPU_24M, 8, 8, 6.0)[0]
    assert kv.ceiling(KvState(), window.last) is None


def test_the_footprint_is_the_real_one_from_the_first_finished_requests_on() -> None:
    """Prompts of 120 and outputs of 180 on average: in the long run a sequence holds some 230 tokens."""
    states = follow(windows(CPU_24M, 16, 40, 60.0))
    early = next(s for s in states if s.output is not None)
    for state in (early, states[-1]):
        footprint = kv.expected_footprint(state)
        assert footprint is not None
        assert 190 < footprint < 300


def test_a_burst_of_young_sequences_does_not_pretend_that_more_fit() -> None:
    known = KvState(prompt=120.0, output=180.0)
    window = windows(CPU_24M, 16, 40, 6.0)[0]
    young = replace(window.last.engines[0], kv_usage=16 * 130 / 60_000)
    burst = replace(window, running=16, finished=0, last=replace(window.last, engines=(young,)))
    (state,) = follow([burst], known)
    assert state.footprint == pytest.approx(130.0)
    assert kv.expected_footprint(state) == pytest.approx(state.sharing * (120.0 + 0.7 * 180.0))


def test_shared_prefixes_make_room() -> None:
    own = KvState(prompt=2000.0, output=200.0)
    shared = replace(own, sharing=0.2)
    assert kv.expected_footprint(shared) == pytest.approx(0.2 * (kv.expected_footprint(own) or 0.0))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.floats(0.3, 1.0))
def test_trust_never_rises_while_preemptions_are_seen(preemptions: list[int], trust: float) -> None:
    window = windows(replace(CPU_24M, kv_tokens=8000), 16, 40, 6.0)[0]
    state = KvState(prompt=120.0, output=180.0, trust=trust, onset=trust, preempted_at=0.0)
    for i, count in enumerate(preemptions):
        now = 70.0 + 2.0 * i
        after = kv.observe(state, replace(window, preemptions=count, at=now), True, now)
        assert kv.TRUST_MIN <= after.trust <= 1.0
        if count > 0:
            assert after.trust <= state.trust
        if count > 0 and now - (state.preempted_at or 0.0) < kv.CLEAN_S:
            assert after.trust <= state.trust
        state = after


def test_a_ceiling_not_in_force_is_not_blamed() -> None:
    window = replace(windows(CPU_24M, 16, 40, 6.0)[0], preemptions=30)
    (waiting,) = follow([window], in_force=False)
    (applied,) = follow([window], in_force=True)
    assert waiting.trust == 1.0
    assert applied.trust < 1.0


def test_trust_comes_back_slowly_and_more_slowly_where_it_last_failed() -> None:
    window = windows(CPU_24M, 16, 40, 6.0)[0]
    state = KvState(prompt=120.0, output=180.0, trust=0.6, onset=0.8, preempted_at=0.0)
    trusts = {}
    for now in range(2, 602, 2):
        state = kv.observe(state, replace(window, at=float(now)), True, float(now))
        trusts[now] = state.trust
    assert trusts[58] == 0.6
    assert 0.75 < trusts[110] < 0.8  # quick up to just below the level that failed
    assert trusts[600] < 0.9  # and then a percent a minute
