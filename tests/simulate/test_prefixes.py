"""What prompts share is computed once and held once, and nothing is lost or counted twice for it."""

from __future__ import annotations

import random
from collections.abc import Sequence as Many
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llamaserver.control import Objective
from llamaserver.observe import Sample, parse_exposition, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.demand import Request
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.prefixes import BLOCK, CachingEngine
from llamaserver.simulate.profiles import CPU_24M, Profile
from llamaserver.simulate.sequence import Sequence, Step
from llamaserver.simulate.world import World

ROOMY = replace(CPU_24M, kv_tokens=60_000, max_model_len=8192)


def numbered(paths: Many[Many[int]]) -> list[tuple[int, ...]]:
    """Ids of blocks: two prompts share a block where they came the same way up to it."""
    known: dict[tuple[int, ...], int] = {}
    return [
        tuple(known.setdefault(way, len(known)) for way in accumulate((turn,) for turn in path))
        for path in paths
    ]


@st.composite
def conversations(draw: st.DrawFn) -> list[Request]:
    """Prompts of up to five blocks and a rest, many of which begin alike, in bursts and with long pauses."""
    paths = draw(st.lists(st.lists(st.integers(0, 1), max_size=5), min_size=1, max_size=25))
    at, requests = 0.0, []
    for hash_ids in numbered(paths):
        at += draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 600.0]))
        rest = draw(st.sampled_from([0, 1, 100, BLOCK - 1]))
        prompt = max(1, BLOCK * len(hash_ids) + rest)
        requests.append(Request(at, prompt, draw(st.integers(2, 40)), hash_ids))
    return requests


profiles = st.builds(
    lambda kv_tokens, budget, places: replace(
        ROOMY, kv_tokens=kv_tokens, budget=max(budget, places), max_num_seqs=places
    ),
    st.integers(4000, 20_000),
    st.sampled_from([64, 300, 2048]),
    st.integers(1, 32),
)


def served(engine: Engine, requests: Many[Request]) -> None:
    """All of them, to the end; the engine jumps over the pauses."""
    for r in requests:
        engine.submit(r.at, r.prompt, r.output, r.hash_ids)
    engine.run_until(requests[-1].at + 3600.0)
    assert engine.idle


class Watched(CachingEngine):
    """Counts by itself what is computed, and looks at the cache after every step."""

    def reset(self) -> None:
        super().reset()
        self.filled: dict[Sequence, int] = {}
        """Tokens of a sequence's present life that were hit or computed."""
        self.computed = 0
        self.made = 0

    def _admit(self, s: Sequence) -> None:
        super()._admit(s)
        assert s.prefilled < s.to_prefill
        self.filled[s] = s.prefilled

    def _end(self, step: Step) -> None:
        before = {s: s.to_prefill for s, _ in step.chunks}
        for s, take in step.chunks:
            self.filled[s] += take
            self.computed += take
        self.made += step.batch
        super()._end(step)
        for s, asked in before.items():
            if s.prefilled >= asked:
                assert self.filled[s] == asked
                self.made += 1
        self._look()

    def _look(self) -> None:
        contexts = {
            s: s.prefilled if s.prefilled < s.to_prefill else s.prompt + self.generated(s)
            for s in self.running
        }
        assert self.kv == sum(contexts.values())
        written = {s: s.hash_ids[: min(self.holds[s], s.prefilled // BLOCK)] for s in self.running}
        own = sum(contexts[s] - BLOCK * len(ids) for s, ids in written.items())
        blocks = {block for ids in written.values() for block in ids}
        assert self.used == own + BLOCK * len(blocks)
        assert blocks.isdisjoint(self.prefixes.free)
        # The slack of every engine, see test_engine.py; nobody's cached block is kept at its cost.
        cut = sum(s.to_prefill - s.prefilled for s in self.running)
        resident = self.used + BLOCK * len(self.prefixes.free)
        assert resident <= self.profile.kv_tokens + len(self.running) + cut


@settings(max_examples=150)
@given(requests=conversations(), profile=profiles, seed=st.integers(0, 100))
def test_every_token_is_computed_or_hit_once_a_life_and_the_cache_never_holds_more_than_it_can(
    requests: list[Request], profile: Profile, seed: int
) -> None:
    engine = Watched(profile, seed=seed)
    served(engine, requests)
    assert engine.finished == len(requests)
    assert engine.made == engine.generation_tokens == sum(r.output for r in requests)
    assert engine.prompt_tokens == engine.prefix_queries == sum(r.prompt for r in requests)
    assert 0 <= engine.cached_prompt_tokens == engine.prefix_hits < engine.prefix_queries
    if not engine.preemptions:
        assert engine.computed + engine.prefix_hits == engine.prefix_queries
    assert (engine.kv, engine.saved, engine.used) == (0, 0, 0)
    assert not (engine.prefixes.held or engine.holds or engine.hit)
    assert BLOCK * len(engine.prefixes) <= profile.kv_tokens


@settings(max_examples=60)
@given(requests=conversations(), profile=profiles, seed=st.integers(0, 100), told=st.booleans())
def test_where_nothing_is_shared_an_engine_is_as_without_a_cache(
    requests: list[Request], profile: Profile, seed: int, told: bool
) -> None:
    """Whether the trace says so or says nothing. Who is preempted finds its own blocks, so that nobody is."""
    alone = numbered([[i] * (r.prompt // BLOCK) for i, r in enumerate(requests)])
    apart = [replace(r, hash_ids=ids if told else ()) for r, ids in zip(requests, alone, strict=True)]
    off, on = Engine(profile, seed=seed), CachingEngine(profile, seed=seed)
    served(off, apart)
    assume(not off.preemptions)
    served(on, apart)
    assert (off.log, off.waits, off.queued) == (on.log, on.waits, on.queued)
    assert on.prefix_hits == 0


def one_after_another(engine: Engine, *prompts: tuple[int, tuple[int, ...]]) -> list[float]:
    """How long each waits for its first token."""
    for at, (prompt, hash_ids) in enumerate(prompts):
        engine.submit(60.0 * at, prompt, 2, hash_ids)
    engine.run_until(60.0 * len(prompts))
    return [wait for _, wait in engine.waits]


def quiet(profile: Profile = ROOMY) -> CachingEngine:
    return CachingEngine(profile, step_noise=0.0)


def test_a_prompt_that_begins_alike_is_computed_from_where_it_differs() -> None:
    engine = quiet()
    first, second, alone = one_after_another(
        engine, (1600, (1, 2, 3)), (1600, (1, 2, 4)), (1600 - 2 * BLOCK, (5,))
    )
    read = ROOMY.g * 2 * BLOCK  # attention reads what is shared all the same
    assert second == pytest.approx(alone + read)
    assert second < first
    assert engine.prefix_hits == 2 * BLOCK


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    """A prompt of whole blocks that are all there computes the last of them, as in vLLM."""
    engine = quiet()
    one_after_another(engine, (2 * BLOCK, (1, 2)), (2 * BLOCK, (1, 2)), (2 * BLOCK + 1, (1, 2)))
    assert engine.prefix_hits == BLOCK + 2 * BLOCK


def test_who_comes_while_a_prompt_is_decoded_shares_its_room() -> None:
    engine = quiet()
    for at in (0.0, 1.0):
        engine.submit(at, 4 * BLOCK + 10, 200, (1, 2, 3, 4))
    engine.run_until(2.0)
    assert len(engine.running) == 2
    assert engine.used == engine.kv - 4 * BLOCK
    assert sample_of(engine).engines[0].kv_usage == pytest.approx(engine.used / ROOMY.kv_tokens, rel=0.01)


def test_the_block_that_was_used_longest_ago_goes_first_and_none_that_is_held() -> None:
    engine = quiet(replace(ROOMY, kv_tokens=8 * BLOCK, max_model_len=8 * BLOCK))
    one_after_another(
        engine,
        (1000, (1,)),
        (1000, (2,)),
        (1000, (1,)),  # now 2 is the one to go
        (6 * BLOCK + 400, (3, 4, 5, 6, 7, 8)),
        (1000, (1,)),
        (1000, (2,)),
    )
    assert engine.prefix_hits == 2 * BLOCK
    assert 2 in engine.prefixes


def test_who_is_preempted_finds_its_own_blocks() -> None:
    """Two that fill the cache: the second is preempted, and comes back to all but the end of its prompt."""
    profile = replace(ROOMY, kv_tokens=5 * BLOCK, max_model_len=5 * BLOCK)
    told, untold = CachingEngine(profile, seed=3), CachingEngine(profile, seed=3)
    for engine, blocks in ((told, ((1, 2), (3, 4))), (untold, ((), ()))):
        served(engine, [Request(0.0, 2 * BLOCK + 200, 100, ids) for ids in blocks])
        assert engine.preemptions > 0
        assert engine.prefix_hits == 0, "vLLM counts no lookup of a request that was preempted"
    assert max(gap for _, gap, _ in told.gaps) < max(gap for _, gap, _ in untold.gaps)


def sample_of(engine: Engine) -> Sample:
    found = parse_snapshot(speech.snapshot(engine), engine.now, "pod")
    assert isinstance(found, Sample)
    return found


def test_the_operator_is_told_of_hits_as_vllm_and_the_tuner_tell_them() -> None:
    engine = quiet()
    one_after_another(engine, *[(1600, (1, 2, 3))] * 3)
    text = speech.metrics(engine)
    assert 'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 4800.0' in text.splitlines()
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 3072.0' in text.splitlines()
    read = parse_exposition(text, engine.now, "pod")
    assert isinstance(read, Sample)
    assert read.cached_prompt_tokens == sample_of(engine).cached_prompt_tokens == 6 * BLOCK
    assert read.prompt_tokens == 4800


def test_the_law_holds_its_objective_with_a_prefix_cache_and_prompts_wait_less_for_it() -> None:
    rng = random.Random(1)
    requests = [
        Request(0.05 * i, 3 * BLOCK + rng.randint(20, 80), rng.randint(20, 60), (0, 1 + i % 4, 5 + i % 8))
        for i in range(6000)
    ]

    def world(prefix_cache: bool) -> World:
        return World(
            Objective(0.03), profile=ROOMY, requests=requests, prefix_cache=prefix_cache, replicas=2
        ).run(300)

    with_cache, without = world(True), world(False)
    assert with_cache.violated(60) <= 0.05
    assert with_cache.tokens_per_s(60) > 1.5 * without.tokens_per_s(60)


def test_a_replica_that_starts_anew_has_an_empty_cache() -> None:
    engine = quiet()
    one_after_another(engine, (1600, (1, 2, 3)))
    engine.reset()
    assert (len(engine.prefixes), engine.prefix_queries, engine.used) == (0, 0, 0)
