"""The KV ceiling: right at once from lengths, and never higher while preemptions rise."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.control import Fleet, Limits, Objective, decide, initial, kv
from llamaserver.control.kv import KvState
from llamaserver.observe import Memory, NoWindow, Window, advance, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.lengths import Allowed, Lengths, to_the_end, unset, up_to_4096, words
from llamaserver.simulate.profiles import CPU_24M, H100_8B, Profile
from llamaserver.simulate.world import World

LONG = replace(CPU_24M, max_model_len=8192)
"""With room for a max_tokens of 4096."""


def windows(
    profile: Profile,
    cap: int,
    streams: int,
    seconds: float,
    lengths: Lengths = words,
    allowed: Allowed = to_the_end,
) -> list[Window]:
    engine = Engine(profile, lengths, allowed=allowed)
    engine.put(cap, 1e9)
    memory, found = Memory(), []
    engine.load(streams=streams)
    while engine.now < seconds:
        engine.run_until(engine.now + 2.0)
        memory, made = advance(
            memory, {"p": parse_snapshot(speech.snapshot(engine), engine.now, "p")}, engine.now
        )
        if not isinstance(window := made["p"], NoWindow):
            found.append(window)
    return found


def silent(window: Window) -> Window:
    """As a tuner says it that does not know the lengths of what runs and waits."""
    engines = tuple(replace(e, load=None) for e in window.last.engines)
    last = replace(window.last, engines=engines, bounded_max_tokens=None, bounded_generation_tokens=None)
    return replace(window, last=last, bounded_max_tokens=None, bounded_generation_tokens=None)


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
    window = silent(windows(CPU_24M, 8, 8, 6.0)[0])
    assert kv.ceiling(KvState(), window.last) is None


def test_the_footprint_is_the_real_one_from_the_first_finished_requests_on() -> None:
    """Prompts of 120 and outputs of 180 on average: in the long run a sequence holds some 230 tokens."""
    seen = [silent(window) for window in windows(CPU_24M, 16, 40, 60.0)]
    states = follow(seen)
    early = next(s for s in states if s.output is not None)
    for state in (early, states[-1]):
        footprint = kv.expected_footprint(state, seen[-1].last)
        assert footprint is not None
        assert 190 < footprint < 300


def test_a_burst_of_young_sequences_does_not_pretend_that_more_fit() -> None:
    known = KvState(prompt=120.0, output=180.0)
    window = silent(windows(CPU_24M, 16, 40, 6.0)[0])
    young = replace(window.last.engines[0], kv_usage=16 * 130 / 60_000)
    burst = replace(window, running=16, finished=0, last=replace(window.last, engines=(young,)))
    (state,) = follow([burst], known)
    assert state.footprint == pytest.approx(130.0)
    assert kv.expected_footprint(state, burst.last) == pytest.approx(state.sharing * (120.0 + 0.7 * 180.0))


def test_shared_prefixes_make_room() -> None:
    own = KvState(prompt=2000.0, output=200.0)
    shared = replace(own, sharing=0.2)
    for window in (windows(CPU_24M, 8, 8, 6.0)[0], silent(windows(CPU_24M, 8, 8, 6.0)[0])):
        alone = kv.expected_footprint(own, window.last)
        assert alone is not None
        assert kv.expected_footprint(shared, window.last) == pytest.approx(0.2 * alone)


def lasting(rng: random.Random, _: float) -> tuple[int, int]:
    """Outputs of a tenth to three tenths of 4096 tokens, 820 on average."""
    return 100, rng.randint(410, 1229)


def test_what_runs_and_waits_is_forecast_before_anything_has_finished() -> None:
    window = windows(CPU_24M, 16, 40, 6.0, lasting)[0]
    assert window.last.finished == 0
    footprint = kv.expected_footprint(KvState(), window.last)
    assert footprint == pytest.approx(100 + 0.7 * 820, rel=0.1)


def test_a_limit_of_which_nobody_says_what_becomes_is_not_believed() -> None:
    """As with several API servers, where the figures of requests are from /metrics."""
    window = windows(LONG, 16, 40, 6.0, lasting, up_to_4096)[0]
    last = replace(window.last, bounded_max_tokens=None, bounded_generation_tokens=None)
    assert kv.expected_footprint(KvState(), last) is None


def test_a_change_of_load_is_answered_although_the_old_one_is_known_well() -> None:
    short, long = windows(CPU_24M, 16, 40, 60.0), windows(CPU_24M, 16, 40, 6.0, lasting)[0]
    state = follow(short)[-1]
    before, after = (kv.expected_footprint(state, w.last) for w in (short[-1], long))
    assert before is not None
    assert after is not None
    assert 190 < before < 300
    assert after > 2 * before
    assert kv.changed(state, long.last)
    assert not kv.changed(state, short[-1].last)


def test_the_stop_ratio_is_soon_known_and_the_first_to_finish_do_not_make_it_small() -> None:
    """Outputs end at 0.2 of what they may on average; the first to finish, at 0.1."""
    states = follow(windows(LONG, 32, 40, 120.0, lasting, up_to_4096))
    ratios = [kv.stop_ratio(s) for s in states]
    assert ratios[0] == 1.0
    assert min(ratios) > 0.16
    assert max(ratios[20:]) < 0.3
    assert ratios[-1] == pytest.approx(0.2, abs=0.02)


def test_a_load_of_several_limits_that_are_all_used_up_has_a_stop_ratio_of_one() -> None:
    def mixed(rng: random.Random, _: float) -> tuple[int, int]:
        return 100, rng.choice((50, 1500))

    states = follow(windows(CPU_24M, 32, 40, 90.0, mixed))
    assert min(kv.stop_ratio(s) for s in states) > 0.95


def test_a_load_that_ends_does_not_make_the_stop_ratio_small() -> None:
    engine, memory, state, now = Engine(CPU_24M, lasting), Memory(), KvState(), 0.0
    while now < 90.0:
        now += 2.0
        engine.load(streams=32 if now < 40.0 else 0)
        engine.run_until(now)
        memory, made = advance(memory, {"p": parse_snapshot(speech.snapshot(engine), now, "p")}, now)
        if isinstance(window := made["p"], Window):
            state = kv.observe(state, window, True, now)
    assert window.running == 0
    assert kv.stop_ratio(state) > 0.95


def test_an_earlier_operators_stop_ratio_is_believed_at_once_and_not_for_ever() -> None:
    seen = windows(CPU_24M, 16, 40, 90.0, lasting)
    states = follow(seen, KvState(seed=0.25))
    assert kv.stop_ratio(states[0]) < 0.5
    assert kv.stop_ratio(states[-1]) > 0.9


def test_an_engine_that_has_long_been_running_tells_its_stop_ratio_at_once() -> None:
    late = windows(LONG, 16, 40, 120.0, lasting, up_to_4096)[-1]
    (state,) = follow([late])
    assert kv.stop_ratio(state) < 0.3


def test_clients_without_a_limit_do_not_leave_a_batch_of_one() -> None:
    """Their max_tokens is the model's length. It is no forecast; what finished and what was generated is."""
    seen = windows(replace(CPU_24M, max_model_len=60_000), 16, 40, 60.0, words, unset)
    assert seen[0].last.engines[0].load is not None
    assert seen[0].last.engines[0].load.running_unbounded.max_tokens > 900_000
    states = follow(seen)
    for state, window in zip(states, seen, strict=True):
        fits = kv.ceiling(state, window.last)
        assert fits is None or fits > 100
    assert kv.expected_footprint(states[-1], seen[-1].last) == pytest.approx(230, rel=0.25)


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


@pytest.mark.parametrize(
    ("max_model_len", "busy", "first"),
    [(1024, False, 9), (None, False, 16), (512, False, 16), (8192, False, 8), (1024, True, 12)],
    ids=["they fit or not", "length unknown", "all fit", "one fits", "others run already"],
)
def test_before_a_request_was_seen_the_batch_fits_however_long_requests_get(
    max_model_len: int | None, busy: bool, first: int
) -> None:
    """A cache of 12,288 tokens and a ceiling of 32; without the length, half the ceiling."""
    document: dict[str, Any] = speech.document(Engine(replace(CPU_24M, kv_tokens=12_288)))
    engine = document["engines"][0]
    engine["max_model_len"] = max_model_len
    if busy:
        engine |= {"running": 12, "lengths": None}
    sample = parse_snapshot(json.dumps(document).encode(), 2.0, "pod-1/0")
    _, windows = advance(Memory(), {"pod-1": sample}, 2.0)
    _, decision = decide(Objective(None), Limits(), initial(None, 0.0), windows, Fleet(1, 1, 0, 60.0), 2.0)
    assert decision.setpoints["pod-1"].max_num_active_seqs == first


@pytest.mark.parametrize(
    ("profile", "first"),
    [
        (replace(CPU_24M, kv_tokens=12_288, max_model_len=1024), 9),
        (CPU_24M, 16),
        (replace(H100_8B, max_model_len=8192), 51),
        (H100_8B, 8),
    ],
    ids=["they fit or not", "all fit", "a short model", "a long model"],
)
def test_the_simulated_engine_tells_its_length_and_the_first_cap_keeps_to_it(
    profile: Profile, first: int
) -> None:
    """In the plant as in the cluster; once requests are seen, their lengths count instead."""
    world = World(Objective(None), profile=profile, streams=lambda t: 300 if t > 2 else 0).run(2)
    assert [cap for _, _, cap in world.caps] == [first]
    assert world.run(20).engines["pod-1"].cap > first


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
