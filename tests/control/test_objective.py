"""The objective's figure at another cap: exact where it was measured, right where it was not, monotone
everywhere.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.control import kv
from llamaserver.control.history import History, changed_load, record_of, remember
from llamaserver.control.kv import KvState
from llamaserver.control.model import StepModel, block_of, update
from llamaserver.control.objective import MARGIN, Predictor
from llamaserver.observe import Memory, Window, advance, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.lengths import Lengths, words
from llamaserver.simulate.profiles import CPU_24M, H100_8B


def observed(
    cap: int, seconds: float = 40.0, seed: int = 1, lengths: Lengths = words, more: int = 0
) -> tuple[History, StepModel, Engine]:
    """A pod at `cap`, and at `more` for some seconds first so that the slope is known."""
    engine = Engine(CPU_24M, lengths, seed=seed)
    engine.load(streams=40)
    memory, history, model = Memory(), History(), None
    for limit, length in ((more or cap, 16.0), (cap, seconds)):
        engine.put(limit, 1e9)
        end = engine.now + length
        while engine.now < end:
            engine.run_until(engine.now + 2.0)
            now = engine.now
            memory, windows = advance(memory, {"p": parse_snapshot(speech.snapshot(engine), now, "p")}, now)
            window = windows["p"]
            if isinstance(window, Window) and (block := block_of(window)) and (record := record_of(window)):
                model = update(model, [block], window.dt)
                history = remember(history, record)
    assert model is not None
    return history, model, engine


@pytest.fixture(scope="module")
def at_twelve() -> tuple[History, StepModel]:
    history, model, _ = observed(12, more=6)
    return history, model


def predictor(made: tuple[History, StepModel], target_s: float, quantile: float | None) -> Predictor:
    history, model = made
    return Predictor(model, history.all, history.recent[-1].context, target_s, quantile)


def test_where_it_was_measured_the_figure_is_the_measurement(at_twelve: tuple[History, StepModel]) -> None:
    history, model = at_twelve
    record = history.recent[-1]
    here = Predictor(model, (record,), record.context, 0.020, 0.95).figure(record.batch)
    assert here.ratio == pytest.approx(record.beyond(0.020) / 0.05, rel=1e-6)
    mean = Predictor(model, (record,), record.context, 0.020, None).figure(record.batch)
    assert mean.ratio == pytest.approx(record.mean_s / 0.020, rel=1e-6)


@pytest.mark.parametrize("cap", [8, 16, 20])
def test_a_mean_is_foretold_at_other_caps(at_twelve: tuple[History, StepModel], cap: int) -> None:
    _, _, engine = observed(cap, seconds=100.0, seed=7)
    seen = [(y, b) for t, y, b in engine.log if t > 30 and b]
    true = sum(y * b for y, b in seen) / sum(b for _, b in seen)
    assert predictor(at_twelve, true, None).figure(cap).ratio == pytest.approx(1.0, abs=0.08)


@pytest.mark.parametrize("cap", [9, 16, 20])
@pytest.mark.parametrize("target_s", [0.030, 0.040])
def test_the_share_beyond_a_target_is_foretold_at_other_caps(
    at_twelve: tuple[History, StepModel], cap: int, target_s: float
) -> None:
    """The prefill-carrying steps make the tail: their share grows with the batch, which a fixed ratio cannot
    say.
    """
    _, _, engine = observed(cap, seconds=200.0, seed=7)
    seen = [(y, b) for t, y, b in engine.log if t > 30 and b]
    true = sum(b for y, b in seen if y > target_s) / sum(b for _, b in seen)
    assert predictor(at_twelve, target_s, 0.95).figure(cap).ratio * 0.05 == pytest.approx(true, rel=0.35)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([None, 0.5, 0.9, 0.95, 0.99]),
    st.floats(0.004, 0.12),
    st.floats(1.0, 2.0),
    st.floats(-3.0, 3.0),
    st.integers(1, 31),
)
def test_figures_rise_with_the_cap_and_fall_with_the_target(
    at_twelve: tuple[History, StepModel],
    q: float | None,
    target_s: float,
    more: float,
    sigmas: float,
    cap: int,
) -> None:
    tight, loose = predictor(at_twelve, target_s, q), predictor(at_twelve, target_s * more, q)
    assert tight.figure(cap).ratio <= tight.figure(cap + 1).ratio + 1e-9
    assert loose.figure(cap).ratio <= tight.figure(cap).ratio + 1e-9
    if sigmas > 0:
        assert tight.figure(cap, -sigmas).ratio <= tight.figure(cap, sigmas).ratio + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([None, 0.5, 0.95, 0.99]),
    st.floats(0.005, 0.1),
    st.floats(1.0, 2.0),
    st.integers(1, 32),
    st.integers(1, 32),
)
def test_the_cap_is_within_bounds_and_monotone_in_the_target(
    at_twelve: tuple[History, StepModel], q: float | None, target_s: float, more: float, one: int, two: int
) -> None:
    low, high = min(one, two), max(one, two)
    tight, loose = (predictor(at_twelve, t, q) for t in (target_s, target_s * more))
    caps = [p.largest(low, high, p.aim(), 1.0) for p in (tight, loose)]
    assert all(low <= c <= high for c in caps)
    # A percentile that not even the smallest cap holds is not worth the whole batch; within reach it is.
    if q is None or tight.figure(low, 1.0, MARGIN).ratio <= 1.0:
        assert caps[0] <= caps[1]


def test_burstier_windows_ask_for_more_distance(at_twelve: tuple[History, StepModel]) -> None:
    calm = predictor(at_twelve, 0.030, 0.95)
    assert replace(calm, dispersion=4.0).aim() < calm.aim() < 1.0


def test_history_stays_small_and_forgets(at_twelve: tuple[History, StepModel]) -> None:
    history, _ = at_twelve
    record = history.recent[-1]
    for i in range(2000):
        batch = 1.0 + i % 30
        history = remember(history, replace(record, at=record.at + 2.0 * (i + 1), batch=batch))
    assert len(history.all) <= 14
    assert sum(r.steps for r in history.all) < 80 * record.steps
    for r in history.all:
        assert r.cumulative[-1] == pytest.approx(r.tokens)
        assert list(r.cumulative) == sorted(r.cumulative)


def test_longer_prompts_are_another_load_and_noise_is_not() -> None:
    def longer(rng: object, t: float) -> tuple[int, int]:
        prompt, output = words(rng, t)  # type: ignore[arg-type]
        return (3 * prompt if t > 60 else prompt), output

    same, _, _ = observed(12, seconds=60.0)
    assert not changed_load(same, 0.6)
    changed, _, _ = observed(12, seconds=60.0, lengths=longer)
    assert changed_load(changed, 0.6)


@pytest.mark.parametrize(
    ("archived", "recent", "other"), [(6200.0, 300.0, True), (300.0, 6200.0, True), (300.0, 600.0, False)]
)
def test_far_other_contexts_are_another_load_though_few_prompts_tell(
    at_twelve: tuple[History, StepModel], archived: float, recent: float, other: bool
) -> None:
    """Seven prompts came since; by prefill per token alone they may be chance."""
    record = replace(at_twelve[0].recent[-1], prompts=3.5)
    old = tuple(replace(record, context=archived, prompts=20.0) for _ in range(2))
    history = History((replace(record, context=recent),) * 2, old)
    assert changed_load(history, 0.6) == other


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_few_long_prompts_among_short_ones_are_no_other_load(seed: int) -> None:
    """Some twenty sequences at a time, whose prompts differ as those of documents do."""

    def documents(rng: random.Random, _: float) -> tuple[int, int]:
        return min(100_000, round(12_000 * rng.lognormvariate(-0.5, 1.0))), rng.randint(100, 600)

    engine, memory, history, state = Engine(H100_8B, documents, seed=seed), Memory(), History(), KvState()
    engine.load(streams=24)
    changes = 0
    for i in range(1, 301):
        engine.run_until(2.0 * i)
        memory, made = advance(
            memory, {"p": parse_snapshot(speech.snapshot(engine), engine.now, "p")}, engine.now
        )
        window = made["p"]
        if not isinstance(window, Window) or (record := record_of(window)) is None:
            continue
        history, state = remember(history, record), kv.observe(state, window, True, window.at)
        if i > 60:
            changes += changed_load(history, kv.prompt_cv(state)) + kv.changed(state, window.last)
    assert changes <= 10


def test_a_share_is_a_share(at_twelve: tuple[History, StepModel]) -> None:
    for record in at_twelve[0].all:
        shares = [record.beyond(x / 1000.0) for x in range(0, 500, 5)]
        assert all(0.0 <= s <= 1.0 and math.isfinite(s) for s in shares)
        assert shares == sorted(shares, reverse=True)


def test_with_two_pipeline_stages_the_cap_counts_what_is_in_flight() -> None:
    """Sixteen sequences a step and two steps in flight are 32 running; a token takes two steps."""
    history, model, _ = observed(16, more=6)
    record = history.recent[-1]
    assert record.batch == pytest.approx(16.0, abs=0.5)
    piped = replace(record, batch=2.0 * record.batch, sum_s=2.0 * record.sum_s)
    there = Predictor(model, (piped,), record.context, 1.0, None)
    # Two more in flight are one more in each of the two steps.
    longer = there.figure(34.0).ratio - there.figure(32.0).ratio
    one_more = model.mean_slope_s(record.context, record.prefill, record.mixed)
    assert longer == pytest.approx(2.0 * one_more, rel=1e-6)


def test_the_room_of_steps_is_learned_by_the_budget_that_was_asked_for() -> None:
    """Whatever the one step got that was looked at; what a drain adds to all of them is known."""
    engine = Engine(CPU_24M)
    engine.load(streams=40)
    engine.put(16, 1e9, 64)
    memory = Memory()
    for at in (10.0, 12.0):
        engine.run_until(at)
        memory, windows = advance(memory, {"p": parse_snapshot(speech.snapshot(engine), at, "p")}, at)
    window = windows["p"]
    assert isinstance(window, Window)
    (one,) = window.last.engines

    def room(**changes: Any) -> float:
        last = replace(window.last, engines=(replace(one, **changes),))
        record = record_of(replace(window, last=last))
        assert record is not None
        return record.room

    assert room() == pytest.approx(64 - 16, abs=1)
    assert room(max_num_scheduled_tokens=400) == room()
    assert room(max_num_active_seqs=8) == pytest.approx(64 - 8, abs=0.01)
    assert room(live_budget="TunerFailed", max_num_scheduled_tokens=400) == pytest.approx(400 - 16, abs=1)
    assert room(max_num_scheduled_tokens=None, wanted_num_scheduled_tokens=None) == math.inf


def test_steps_in_flight_are_told_by_latency_and_by_running_alike() -> None:
    engine = Engine(CPU_24M)
    engine.load(streams=40)
    engine.put(16, 1e9)
    memory = Memory()
    for at in (10.0, 12.0):
        engine.run_until(at)
        memory, windows = advance(memory, {"p": parse_snapshot(speech.snapshot(engine), at, "p")}, at)
    window = windows["p"]
    assert isinstance(window, Window)
    alone = record_of(window)
    slow = replace(window.itl, sum_s=2.0 * window.itl.sum_s)
    both = record_of(replace(window, itl=slow, running=2 * window.running))
    preempted = record_of(replace(window, itl=slow))
    prefilling = record_of(replace(window, running=2 * window.running))
    assert alone is not None
    assert both is not None
    assert preempted is not None
    assert prefilling is not None
    assert both.batch == pytest.approx(2.0 * alone.batch)
    assert preempted.batch == prefilling.batch == alone.batch
