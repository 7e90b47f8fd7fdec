"""The plant's scheduler keeps the rules of vLLM's, whatever it is asked to serve."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.observe import Sample, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.lengths import Lengths, unset, up_to_4096
from llamaserver.simulate.profiles import CPU_24M


def between(prompts: tuple[int, int], outputs: tuple[int, int]) -> Lengths:
    return lambda rng, _: (rng.randint(*prompts), rng.randint(*outputs))


@settings(max_examples=25, deadline=None)
@given(
    kv_tokens=st.integers(600, 6000),
    budget=st.integers(64, 512),
    streams=st.integers(1, 60),
    longest=st.integers(2, 500),
    seed=st.integers(0, 10_000),
)
def test_every_step_keeps_the_cap_the_budget_and_the_cache(
    kv_tokens: int, budget: int, streams: int, longest: int, seed: int
) -> None:
    """Any load, cache and budget, while both knobs are moved at random."""
    profile = replace(CPU_24M, kv_tokens=kv_tokens, budget=budget)
    engine = Engine(profile, between((1, longest), (2, 60)), seed=seed)
    engine.load(streams=streams)
    rng = random.Random(seed)
    for _ in range(60):
        before, cap = len(engine.running), engine.cap
        cut = sum(s.to_prefill - s.prefilled for s in engine.running)
        engine.run_until(engine.now + 1e-6)
        assert len(engine.running) <= max(cap, before)
        # A first token counts at once, though its keys are only written with the next step. The rest of a
        # prompt that was cut is computed even where others have decoded into its room: then the next step
        # preempts.
        assert engine.kv <= kv_tokens + len(engine.running) + cut
        # Only the last running sequence may still be in its prompt: the order in which vLLM serves the
        # running ones then does not matter.
        assert all(s.prefilled >= s.to_prefill for s in list(engine.running)[:-1])
        resident = sum(
            s.prefilled if s.prefilled < s.to_prefill else s.prompt + engine.generated(s)
            for s in engine.running
        )
        assert engine.kv == resident
        if rng.random() < 0.2:
            wanted = rng.randint(1, profile.max_num_seqs)
            engine.put(wanted, budget=rng.randint(wanted, budget))


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    def run(seed: int) -> list[tuple[float, float, int]]:
        engine = Engine(CPU_24M, seed=seed)
        engine.load(streams=20)
        engine.run_until(5.0)
        return engine.log

    assert run(1) == run(1) != run(2)


def test_what_has_arrived_is_waiting_running_or_done() -> None:
    engine = Engine(replace(CPU_24M, kv_tokens=1500), seed=3)
    engine.load(rate=12.0)
    engine.run_until(60.0)
    assert engine.preemptions > 0
    assert engine.arrived == engine.finished + len(engine.running) + len(engine.waiting)


def test_an_expired_lease_brings_the_start_values_back() -> None:
    engine = Engine(CPU_24M)
    engine.load(streams=40)
    engine.put(4, lease_s=10.0, budget=64)
    engine.run_until(9.0)
    assert (engine.cap, engine.budget) == (4, 64)
    engine.run_until(11.0)
    assert (engine.cap, engine.budget) == (CPU_24M.max_num_seqs, CPU_24M.budget)


def test_a_preempted_stream_waits_from_its_last_token_on() -> None:
    """Its clients see one gap: from the last token before the preemption to the first one after it."""
    engine = Engine(replace(CPU_24M, kv_tokens=1500), seed=3, step_noise=0.0)
    engine.load(streams=12)
    engine.run_until(60.0)
    assert engine.preemptions > 0
    assert engine.gaps
    shortest = CPU_24M.a + CPU_24M.c
    assert all(shortest <= gap <= engine.now for _, gap, _ in engine.gaps)
    # All latencies that were counted: a token of every decode step, and the gaps.
    seen = sum(y * n for _, y, n in engine.log) + sum(gap for _, gap, _ in engine.gaps)
    assert engine.itl.total == pytest.approx(seen)
    assert engine.itl.count == sum(n for _, _, n in engine.log) + len(engine.gaps)


def test_the_time_of_a_stream_is_its_gaps_and_its_wait() -> None:
    """One request after another: what a client waits in all is the first token and every gap after it."""
    engine = Engine(CPU_24M, between((50, 50), (20, 20)), step_noise=0.0)
    engine.load(streams=1)
    engine.run_until(3.0)
    spent = sum(wait for _, wait in engine.waits) + engine.itl.total
    assert spent == pytest.approx(engine.log[-1][0], rel=0.05)


def test_who_may_get_longer_than_the_model_allows_is_refused_and_keeps_nobody_waiting() -> None:
    """vLLM answers such a request with an error. One that just fits is served, if it has to be alone."""
    engine = Engine(replace(CPU_24M, kv_tokens=1500))
    for at, prompt, output in ((0.0, 1500, 10), (0.1, 1400, 100), (0.2, 1401, 100), (0.3, 100, 10)):
        engine.submit(at, prompt, output)
    engine.run_until(20.0)
    assert (engine.refused_ever, engine.arrived, engine.finished) == (2, 2, 2)


def test_where_every_client_asks_for_too_much_it_is_said_how_to_cure_it() -> None:
    engine = Engine(CPU_24M, between((3000, 4000), (10, 20)))
    engine.load(streams=3)
    with pytest.raises(SimulationError, match=r"2048 tokens .* raise max_model_len"):
        engine.run_until(1.0)


def test_a_limit_beyond_the_model_is_refused_whatever_would_be_generated() -> None:
    engine = Engine(CPU_24M, allowed=up_to_4096)
    engine.submit(0.0, 100, 10)
    assert engine.refused_ever == 1


def read(engine: Engine) -> Sample:
    sample = parse_snapshot(speech.snapshot(engine), engine.now, "pod")
    assert isinstance(sample, Sample)
    return sample


def test_who_sets_no_limit_may_fill_the_length_that_is_told() -> None:
    """The operator is told what counts as unbounded: prompt and max_tokens make up the model's length."""
    engine = Engine(CPU_24M, between((2000, 2000), (300, 300)), allowed=unset)
    engine.load(streams=1)
    engine.run_until(0.6)
    (core,) = read(engine).engines
    assert core.max_model_len == 2048
    assert core.load is not None
    assert core.load.running_unbounded.max_tokens == 48
    assert core.load.running.requests == 0
    engine.run_until(30.0)
    assert engine.outputs.total == 48 * engine.finished > 0
    assert engine.bounded_finished == 0


def test_who_sets_a_limit_is_bounded_by_it() -> None:
    engine = Engine(CPU_24M, between((100, 100), (300, 300)))
    engine.load(streams=1)
    engine.run_until(20.0)
    (core,) = read(engine).engines
    assert core.load is not None
    assert (core.load.running.max_tokens, core.load.running_unbounded.requests) == (300, 0)
    assert engine.bounded_finished == engine.finished > 0


def test_the_time_per_output_token_of_a_request_is_the_mean_of_its_own_steps() -> None:
    """All requests together: their paces by their tokens are the times of all tokens."""
    engine = Engine(CPU_24M, between((20, 200), (2, 60)), seed=3)
    engine.load(streams=20)
    engine.run_until(60.0)
    engine.load()
    engine.run_until(200.0)
    assert engine.idle
    assert engine.tpot.count == engine.finished == len(engine.answers)
    paces = [pace for _, pace, _ in engine.answers]
    assert engine.tpot.total == pytest.approx(sum(paces))
    slowest = max(y for _, y, batch in engine.log if batch)
    assert max(paces) <= slowest
    assert min(paces) > CPU_24M.a
    alone = Engine(CPU_24M, lambda *_: (100, 50), step_noise=0.0)
    alone.submit(0.0, 100, 50)
    alone.run_until(10.0)
    ((_, pace, _),) = alone.answers
    steps = [y for _, y, batch in alone.log if batch]
    assert len(steps) == 49
    assert pace == pytest.approx(sum(steps) / 49)
