"""The step model: learned from exact sums or from averages, on machines of any speed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.control.model import Block, StepModel, block_of, exact_block, remembered, update
from llamaserver.observe import Memory, StepMoments, Window, advance, parse_exposition, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.lengths import Lengths, chat, words
from llamaserver.simulate.profiles import CPU_24M, H100_8B, Profile, slower


def learn(
    profile: Profile,
    lengths: Lengths,
    caps: list[int],
    *,
    text: bool = False,
    noise: float = 0.04,
    model: StepModel | None = None,
    seconds: float = 20.0,
) -> tuple[StepModel, Engine]:
    """The model after `seconds` at each of the caps, with a window every 2 s."""
    engine = Engine(profile, lengths, step_noise=noise)
    engine.load(streams=2 * max(caps))
    memory = Memory()
    for cap in caps:
        engine.put(cap, 1e9)
        for _ in range(int(seconds / 2)):
            engine.run_until(engine.now + 2.0)
            now = engine.now
            said = (
                parse_exposition(speech.metrics(engine), now, "p")
                if text
                else parse_snapshot(speech.snapshot(engine), now, "p")
            )
            memory, windows = advance(memory, {"p": said}, now)
            window = windows["p"]
            block = block_of(window) if isinstance(window, Window) else None
            model = update(model, [block] if block else [], 2.0)
    assert model is not None
    return model, engine


def mean_context(engine: Engine) -> float:
    return engine.kv / max(1, engine.decoding)


@pytest.mark.parametrize(
    ("profile", "lengths", "caps"),
    [(CPU_24M, words, [4, 12, 8]), (H100_8B, chat, [16, 64, 32])],
    ids=["cpu", "h100"],
)
def test_exact_sums_give_the_machines_own_figures(
    profile: Profile, lengths: Lengths, caps: list[int]
) -> None:
    model, engine = learn(profile, lengths, caps)
    context = mean_context(engine)
    assert model.a_s == pytest.approx(profile.a, rel=0.15)
    assert model.d_s == pytest.approx(profile.d, rel=0.1)
    assert model.slope_s(context) == pytest.approx(profile.b + profile.g * context, rel=0.15)
    assert model.trusted(context)


def test_the_fit_knows_no_time_scale() -> None:
    slow = slower(CPU_24M, 10.0)
    quick, _ = learn(CPU_24M, words, [4, 12, 8], seconds=20.0)
    model, _ = learn(slow, words, [4, 12, 8], seconds=200.0)
    assert model.a_s == pytest.approx(10 * quick.a_s, rel=0.2)
    assert model.slope_s(220.0) == pytest.approx(10 * quick.slope_s(220.0), rel=0.2)


def test_averages_alone_predict_the_mean_they_were_taken_at() -> None:
    model, engine = learn(CPU_24M, words, [4, 12, 8, 16], text=True)
    for batch in (6, 14):
        true = CPU_24M.a + batch * (CPU_24M.b + CPU_24M.g * 220)
        assert model.decode_s(batch, 220.0) == pytest.approx(true, rel=0.25)
    assert engine.itl.count > 0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_wrong_memory_is_corrected_by_what_is_seen(factor: float) -> None:
    wrong = remembered(factor * 6.4e-3, factor * 0.45e-3, factor * 0.6e-6, factor * 0.17e-3, 0.0, 0.02)
    model, engine = learn(CPU_24M, words, [12, 8], model=wrong, seconds=16.0)
    for batch in (4, 12, 20):
        context = mean_context(engine)
        true = CPU_24M.a + batch * (CPU_24M.b + CPU_24M.g * context)
        assert model.decode_s(batch, context) == pytest.approx(true, rel=0.15)


def test_a_steady_load_for_a_quarter_of_an_hour_does_not_wind_the_estimate_up() -> None:
    model, engine = learn(CPU_24M, words, [4, 12, 8], seconds=20.0)
    later, engine = learn(CPU_24M, words, [8], model=model, seconds=900.0)
    context = mean_context(engine)
    for batch in (8, 16):
        assert later.decode_s(batch, context) == pytest.approx(model.decode_s(batch, context), rel=0.1)


def test_one_disturbed_window_does_not_move_the_model_much() -> None:
    model, engine = learn(CPU_24M, words, [4, 12, 8])
    before = model.decode_s(8, 220.0)
    odd = Block(
        100.0, (100.0, 50.0, 21.5, 60.0, 4.0), *_outer((1.0, 0.5, 0.215, 0.6, 0.04), 100.0, 10 * before)
    )
    after = update(model, [odd], 2.0)
    assert after is not None
    assert after.decode_s(8, 220.0) == pytest.approx(before, rel=0.15)
    assert engine.now > 0


def _outer(
    x: tuple[float, ...], n: float, y: float
) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...], float]:
    return tuple(tuple(n * a * b for b in x) for a in x), tuple(n * a * y for a in x), n * y * y


def test_a_machine_that_really_became_slower_is_believed() -> None:
    model, _ = learn(CPU_24M, words, [4, 12, 8])
    half = slower(CPU_24M, 2.0)
    after, engine = learn(half, words, [12], model=model, seconds=30.0)
    context = mean_context(engine)
    assert after.decode_s(12, context) == pytest.approx(half.a + 12 * (half.b + half.g * context), rel=0.15)


moments = st.tuples(*(st.integers(0, 10**k) for k in (3, 5, 8, 5, 9, 7, 10, 7, 11, 13, 10, 14, 7, 11, 15)))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(moments, moments), min_size=1, max_size=4))
def test_no_sums_however_absurd_break_the_model(
    blocks: list[tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    """Sums at odds with each other cannot be told from true ones; the model stays finite and admissible."""
    model: StepModel | None = None
    for decode, mixed in blocks:
        block = exact_block(StepMoments(*decode), StepMoments(*mixed))
        model = update(model, [block] if block else [], 2.0)
    if model is not None:
        figures = (model.a_s, model.b_s, model.g_s, model.d_s, model.c_s, model.noise)
        assert all(math.isfinite(v) for v in figures)
        assert min(model.a_s, model.b_s, model.g_s, model.d_s) >= 0.0
        assert model.decode_s(2.0, 100.0) >= model.decode_s(1.0, 100.0)


def test_preempted_and_short_windows_teach_nothing() -> None:
    engine = Engine(CPU_24M)
    engine.load(streams=8)
    memory = Memory()
    for at in (2.0, 4.0):
        engine.run_until(at)
        memory, windows = advance(memory, {"p": parse_snapshot(speech.snapshot(engine), at, "p")}, at)
    window = windows["p"]
    assert isinstance(window, Window)
    assert block_of(window) is not None
    assert block_of(replace(window, preemptions=1)) is None
    assert block_of(replace(window, decode_steps=StepMoments(n=50, B=50), mixed_steps=StepMoments())) is None
    assert (
        block_of(replace(window, decode_steps=StepMoments(n=4, B=4, y=40_000), mixed_steps=StepMoments()))
        is None
    )
