"""When the prefill budget is the law's to move, what is said where it is not, and what it does between two
objectives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.observe.samples import engine, sample

from llamaserver.api.enums import Precedence, ScalingMode, Statistic, TuningMode
from llamaserver.control import Limits, Objective
from llamaserver.control.context import budget_obstacle, budget_range, budget_use
from llamaserver.control.joint import MIN_CHUNK, BudgetRange
from llamaserver.observe import Sample
from llamaserver.simulate.demand import constant
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.world import World

P95_30 = Objective(0.030, Statistic.P95)
FIXED = Limits(scaling=ScalingMode.FIXED)
OVERLOAD = 40


def core(**changes: Any) -> Any:
    plain = {"live_budget": "", "tokens_per_seq": 1, "chunk_reserve": 0, "start_num_scheduled_tokens": 512}
    plain |= {"live_cap": "", "max_num_active_seqs": 16, "max_num_seqs": 64}
    return engine(**(plain | changes))


def pod(*engines: Any) -> Sample:
    return sample(engines=engines, writable=True)


def test_engines_of_one_pod_get_a_budget_that_suits_all_of_them() -> None:
    """Ranks of data parallelism may differ, as where one was told to start with less."""
    ranks = pod(core(chunk_reserve=4), core(chunk_reserve=16, start_num_scheduled_tokens=256))
    assert budget_range(Limits(), ranks) == BudgetRange(reserve=16, start=256)
    takes = BudgetRange(reserve=16, start=256)
    assert takes.of(8, 0.0) == 8 + 16 + MIN_CHUNK
    assert takes.of(8, 1000.0) == 256


@pytest.mark.parametrize(
    ("engines", "word"),
    [
        ((core(),), ""),
        ((core(), core(live_budget="ChunkedPrefillOff")), "ChunkedPrefillOff"),
        ((core(), core(tokens_per_seq=4)), "SpeculativeDecoding"),
        ((core(tokens_per_seq=None),), "NotTold"),
        ((core(chunk_reserve=None),), "NotTold"),
        ((core(start_num_scheduled_tokens=None),), "NotTold"),
        ((core(live_budget="NoTuner", tokens_per_seq=None),), "NoTuner"),
        ((), "NotTold"),
    ],
)
def test_one_engine_that_cannot_take_another_budget_keeps_that_of_its_pod(
    engines: tuple[Any, ...], word: str
) -> None:
    seen = pod(*engines)
    assert budget_obstacle(seen) == word
    assert (budget_range(Limits(), seen) is None) == bool(word)
    assert budget_use(P95_30, Limits(), [seen]) == (word or "Live")


@pytest.mark.parametrize(
    ("objective", "limits", "word"),
    [
        (P95_30, Limits(), "Live"),
        (Objective(0.030, Statistic.P90), Limits(), "Live"),
        (P95_30, Limits(budget_moves=False), "Fixed"),
        (Objective(0.030, Statistic.P50), Limits(), "NotATail"),
        (Objective(0.030, Statistic.MEAN), Limits(), "NotATail"),
        (Objective(), Limits(), "NotATail"),
        (P95_30, Limits(suspended=True), "Suspended"),
        (P95_30, Limits(tuning=TuningMode.OFF), "Off"),
        (Objective(), Limits(tuning=TuningMode.OFF, budget_moves=False), "Off"),
        (P95_30, Limits(tuning=TuningMode.RECOMMEND), "Recommending"),
        (P95_30, Limits(tuning=TuningMode.RECOMMEND, budget_moves=False), "Fixed"),
    ],
)
def test_what_the_user_asks_for_comes_first(objective: Objective, limits: Limits, word: str) -> None:
    assert budget_use(objective, limits, [pod(core())]) == word
    assert budget_use(objective, limits, []) == ""


@pytest.mark.parametrize("mode", [TuningMode.AUTO, TuningMode.RECOMMEND])
@pytest.mark.parametrize("word", ["PipelineParallel", "PrefillRole"])
def test_a_budget_that_is_moved_with_the_cap_only_says_why_that_is_not(mode: TuningMode, word: str) -> None:
    seen = pod(core(), core(live_cap=word))
    assert budget_use(P95_30, Limits(tuning=mode), [pod(core()), seen]) == word


def test_an_engine_that_takes_no_changes_has_no_live_budget() -> None:
    closed = replace(pod(core()), writable=False, reason="NoPublicKeys")
    assert budget_use(P95_30, Limits(), [closed]) == "NoPublicKeys"


@pytest.mark.parametrize("statistic", [Statistic.P50, Statistic.MEAN])
def test_a_median_and_a_mean_leave_the_budget_at_its_start(statistic: Statistic) -> None:
    world = World(Objective(0.020, statistic), FIXED, streams=constant(OVERLOAD)).run(120)
    assert len(world.changes(0)) > 1
    assert world.budgets == []
    assert {d.prefill_budget for _, d in world.decisions} == {"NotATail"}


def test_with_drafts_the_cap_alone_holds_the_objective_and_the_reason_is_said() -> None:
    def drafting(seen: Sample) -> Sample:
        return replace(seen, engines=tuple(replace(e, tokens_per_seq=4) for e in seen.engines))

    world = World(P95_30, FIXED, streams=lambda t: OVERLOAD if t > 10 else 0, shown=drafting).run(200)
    assert len(world.changes(0)) > 2
    assert world.budgets == []
    assert world.violated(40) <= 0.05
    assert {d.prefill_budget for _, d in world.decisions} == {"SpeculativeDecoding"}


def test_with_latency_first_both_knobs_hold_it_and_the_queue_gives_way() -> None:
    world = World(replace(P95_30, queue_s=1.0), streams=constant(OVERLOAD), seed=3).run(300)
    assert world.violated(40) <= 0.05
    assert world.state.relief == 1.0
    assert world.engines["pod-1"].budget < CPU_24M.budget
    assert world.decisions[-1][1].observed.queue_met is False


def test_with_the_queue_first_both_knobs_give_way_and_come_back() -> None:
    objective = replace(P95_30, queue_s=1.5, precedence=Precedence.QUEUE_TIME)
    strict = World(P95_30, streams=constant(32), seed=3).run(120)
    world = World(objective, streams=constant(32), seed=3).run(300)
    held, given = strict.engines["pod-1"], world.engines["pod-1"]
    assert world.state.relief > 1.0
    assert given.cap > held.cap
    assert given.budget > held.budget
    waits = [d.observed.queue_s for t, d in world.decisions if t > 200 and d.observed.queue_s is not None]
    assert sorted(waits)[len(waits) // 2] <= 1.5
    # Every pair on the way left prefill its chunk.
    for t, _, budget in world.budgets:
        assert budget >= [c for at, _, c in world.caps if at <= t][-1] + MIN_CHUNK
    world.streams = constant(6)
    world.run(600)
    assert world.state.relief == 1.0
