"""The plant on somebody else's clock: every request gets its tokens, whoever leaves in between."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.simulate.live import LiveEngine
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.sequence import Sequence

ARRIVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 200), st.integers(1, 60)), max_size=40)
"""(Before which step, prompt, output.)"""


def resident(engine: LiveEngine) -> int:
    return sum(
        s.prefilled if s.prefilled < s.to_prefill else s.prompt + engine.generated(s) for s in engine.running
    )


@settings(max_examples=50, deadline=None)
@given(
    arrivals=ARRIVALS,
    leaving=st.sets(st.integers(0, 39)),
    kv_tokens=st.integers(300, 3000),
    cap=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_everybody_who_stays_gets_all_tokens_and_who_leaves_leaves_nothing(
    arrivals: list[tuple[int, int, int]], leaving: set[int], kv_tokens: int, cap: int, seed: int
) -> None:
    """Any load on a cache that may be too small for it, so that some are preempted; some leave."""
    engine = LiveEngine(replace(CPU_24M, kv_tokens=kv_tokens, budget=64), seed=seed, start=0.0)
    engine.cap = cap
    asked: list[Sequence] = []
    got: dict[Sequence, int] = {}
    ended: list[Sequence] = []
    left: set[Sequence] = set()
    now, step = 0.0, 0
    while step <= 40 or not engine.idle:
        for _, prompt, output in (one for one in arrivals if one[0] == step):
            asked.append(engine.ask(now, prompt, output, output))
        if step in leaving and step < len(asked) and asked[step] not in ended:
            engine.drop(asked[step])
            left.add(asked[step])
        step += 1
        if engine.idle:
            continue
        begun = engine.begin(now)
        now += begun.step.seconds
        done = engine.end(begun, now)
        assert len(engine.running) <= cap
        assert engine.kv == resident(engine)
        for sequence in (*done.decoded, *done.prefilled):
            got[sequence] = got.get(sequence, 0) + 1
        ended += done.finished
    assert engine.kv == 0
    assert len(set(ended)) == len(ended)
    assert left.isdisjoint(ended)
    assert left | set(ended) == set(asked)
    assert {s: got[s] for s in ended} == {s: s.output for s in ended}


def test_a_step_is_as_long_as_the_caller_lets_it() -> None:
    engine = LiveEngine(CPU_24M, seed=1, start=5.0)
    engine.ask(5.0, 10, 3, 3)
    engine.end(engine.begin(5.5), 6.5)
    engine.end(engine.begin(6.5), 8.0)
    assert engine.now == 8.0
    assert engine.itl.total == 1.5


def test_only_the_first_admission_counts_as_one() -> None:
    engine = LiveEngine(replace(CPU_24M, kv_tokens=130), seed=1, start=0.0)
    for _ in range(2):
        engine.ask(0.0, 40, 60, 60)
    now, admitted = 0.0, []
    while not engine.idle:
        begun = engine.begin(now)
        admitted += begun.admitted
        now += begun.step.seconds
        engine.end(begun, now)
    assert engine.preemptions > 0
    assert len(admitted) == 2


def test_a_server_that_lives_long_keeps_nothing_of_what_is_over() -> None:
    engine = LiveEngine(replace(CPU_24M, kv_tokens=300), seed=1, start=0.0)
    now = 0.0
    for _ in range(20):
        for _ in range(6):
            engine.ask(now, 40, 30, 30)
        while not engine.idle:
            begun = engine.begin(now)
            now += begun.step.seconds
            engine.end(begun, now)
    assert engine.preemptions > 0
    kept = {name: held for name, held in vars(engine).items() if isinstance(held, list | deque) and held}
    assert set(kept) <= {"heap"}
