"""The cause that is named, its evidence, and advice with numbers in it."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from llamaserver.api.enums import ScalingMode, Statistic, TuningMode
from llamaserver.control import Cause, Diagnosis, Limits, Objective
from llamaserver.control.stalls import GRACE_S
from llamaserver.observe import NoWindow
from llamaserver.simulate import speech
from llamaserver.simulate.demand import constant
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.lengths import chat, words
from llamaserver.simulate.profiles import CPU_24M, H100_8B, Profile
from llamaserver.simulate.world import World

MEAN_20 = Objective(0.020, Statistic.MEAN)
OFF = Limits(tuning=TuningMode.OFF)


def settled(world: World, seconds: float = 60.0) -> Diagnosis:
    """The commonest cause over the last seconds, in its newest wording."""
    causes = Counter(d.diagnosis.cause for t, d in world.decisions if t > world.now - seconds)
    ((cause, times),) = causes.most_common(1)
    assert times >= 0.7 * sum(causes.values()), causes
    return [d.diagnosis for _, d in world.decisions if d.diagnosis.cause is cause][-1]


def test_a_light_load_is_healthy_and_says_by_how_much() -> None:
    found = settled(World(MEAN_20, streams=constant(4)).run(90))
    assert found.cause is Cause.HEALTHY
    assert found.evidence["target_ms"] == 20.0
    assert found.advice == ""


def test_no_work_is_idle() -> None:
    assert settled(World(MEAN_20).run(90)).cause is Cause.IDLE


def test_too_large_a_batch_is_over_batched() -> None:
    found = settled(World(MEAN_20, OFF, streams=constant(40)).run(90))
    assert found.cause is Cause.OVER_BATCHED
    assert found.evidence["running"] == 32
    assert 15 <= int(found.evidence["fitting"]) <= 20


def test_full_at_the_objective_with_a_replica_to_come_is_at_capacity() -> None:
    world = World(MEAN_20, Limits(scaling=ScalingMode.FIXED), streams=constant(40)).run(150)
    found = settled(world)
    assert found.cause is Cause.AT_CAPACITY
    assert "number of replicas is fixed" in found.message
    assert int(found.evidence["waiting"]) > 15


def test_full_at_the_last_replica_is_capacity_exhausted_with_a_way_out() -> None:
    found = settled(World(MEAN_20, streams=constant(40)).run(150))
    assert found.cause is Cause.CAPACITY_EXHAUSTED
    assert "scaling.maxReplicas above 1" in found.advice
    assert "the queue gives way to latency" in found.message


def test_room_under_the_objective_is_cap_limited_while_the_cap_rises() -> None:
    world = World(Objective(0.028, Statistic.MEAN), streams=lambda t: 40 if t > 4 else 0).run(20)
    assert "CapLimited" in world.causes(6)


def test_memory_that_binds_is_kv_pressure_with_sized_advice() -> None:
    small = replace(CPU_24M, kv_tokens=4000)
    found = settled(World(Objective(None), OFF, small, streams=constant(40)).run(120))
    assert found.cause is Cause.KV_PRESSURE
    assert found.evidence["capacity_tokens"] == 4000
    fitting = int(found.evidence["fitting"])
    assert 11 <= fitting <= 16  # sequences of some 235 tokens
    assert f"engine.maxNumSeqs: {fitting}" in found.advice
    assert f"engine.maxModelLen: {4000 // fitting}" in found.advice
    assert "gpuMemoryUtilization" in found.advice
    needed = int(found.evidence["needed_tokens"])
    assert 7000 < needed < 11_000
    assert str(needed - 1)[:3] in found.advice or str(needed)[:3] in found.advice


def test_memory_that_binds_stays_kv_pressure_when_the_cap_holds_it() -> None:
    small = replace(CPU_24M, kv_tokens=4000)
    world = World(Objective(0.060, Statistic.MEAN), profile=small, streams=constant(40)).run(200)
    assert settled(world, 100).cause is Cause.KV_PRESSURE
    assert world.engines["pod-1"].preempted_ever < 50


@pytest.mark.parametrize("statistic", [Statistic.MEAN, Statistic.P50])
def test_a_target_out_of_reach_is_infeasible_and_names_the_smallest(statistic: Statistic) -> None:
    found = settled(World(Objective(0.004, statistic), streams=constant(40)).run(120))
    assert found.cause is Cause.SLO_INFEASIBLE
    # One sequence takes 6.9 ms a step on this machine.
    assert float(found.evidence["itl_of_one_ms"]) == pytest.approx(6.9, rel=0.15)
    assert 6.5 <= float(found.evidence["reachable_ms"]) <= 9.5
    named = re.search(r"target to ([\d.]+)ms", found.advice)
    assert named
    world = World(Objective(float(named[1]) / 1000.0, statistic), streams=constant(40)).run(200)
    assert world.violated(40) <= 0.05  # the advice is true


def test_a_percentile_broken_by_prefill_alone_is_interference_with_a_budget() -> None:
    """Short answers to long prompts: beside another sequence, over 1 % of tokens meet a long prefill."""

    def brief(rng: random.Random, _: float) -> tuple[int, int]:
        return rng.choice((64, 128, 256)), rng.randint(20, 60)

    world = World(
        Objective(0.025, Statistic.P99), lengths=brief, streams=constant(40), live_budget="ChunkedPrefillOff"
    )
    found = settled(world.run(150), 40)
    assert found.cause is Cause.PREFILL_INTERFERENCE
    assert re.search(r"keep the cap at [12]; decoding alone would allow \d\d", found.message)
    budget = re.search(r"maxNumBatchedTokens to about (\d+)", found.advice)
    assert budget
    # (0.96 * 25 - 7 - 2) / 0.17 prefill tokens fit beside the decode tokens
    assert 64 <= int(budget[1]) <= 96


def test_where_prefill_costs_capacity_the_advice_says_so() -> None:
    world = World(Objective(0.030, Statistic.P95), streams=constant(40), live_budget="ChunkedPrefillOff")
    found = settled(world.run(150))
    assert found.cause is Cause.CAPACITY_EXHAUSTED
    assert "smaller engine.maxNumBatchedTokens" in found.advice


def test_a_budget_that_only_the_user_holds_back_is_named() -> None:
    world = World(Objective(0.030, Statistic.P95), Limits(budget_moves=False), streams=constant(40))
    found = settled(world.run(150))
    assert "spec.tuning.prefillBudget: Auto" in found.advice
    assert "maxNumBatchedTokens" not in found.advice


def test_requests_held_by_something_else_are_admission_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(MEAN_20, streams=constant(8)).run(40)
    engine = world.engines["pod-1"]
    said = speech.document

    def deferring(told: Engine) -> dict[str, object]:
        document = said(told)
        document["engines"][0].update(waiting=30, waiting_deferred=28)  # type: ignore[index]
        return document

    monkeypatch.setattr(speech, "document", deferring)
    engine.cap = 32
    world.run(70)
    found = settled(world, 20)
    assert found.cause is Cause.ADMISSION_ELSEWHERE
    assert found.evidence["deferred"] == 28
    assert "max-loras" in found.advice
    assert world.engines["pod-1"].cap <= 32


@pytest.mark.parametrize(("target_s", "seed"), [(0.014, 3), (0.022, 3), (0.022, 5), (0.024, 1), (0.026, 3)])
def test_a_batch_that_fills_after_a_raise_is_not_held_by_something_else(target_s: float, seed: int) -> None:
    world = World(Objective(target_s, Statistic.P95), streams=constant(40), seed=seed).run(90)
    assert any(later > sooner for sooner, later in pairwise(world.changes(0)))
    said = [v for _, d in world.decisions for v in d.trail if v.rule == "diagnosis/admission_elsewhere"]
    assert said
    assert not any(v.fired for v in said)


def test_an_engine_that_stands_still_is_stalled_after_its_grace() -> None:
    world = World(MEAN_20, streams=constant(8)).run(40)
    engine = world.engines["pod-1"]
    engine.run_until = lambda until: None  # type: ignore[method-assign]
    world.run(150)
    assert world.decisions[-1][1].diagnosis.cause is Cause.STALE
    assert world.decisions[-1][1].stalled == ()
    world.run(170)
    found = world.decisions[-1][1].diagnosis
    assert found.cause is Cause.STALLED
    assert "delete the pod" in found.advice
    assert found.evidence["running"] == 8
    (told,) = world.decisions[-1][1].stalled
    assert (told.pod, told.running, told.doubt, told.silent) == ("pod-1", 8, None, False)
    assert told.still_s >= told.grace_s == GRACE_S


def test_a_pod_out_of_reach_is_stale_not_idle_and_not_stalled() -> None:
    world = World(MEAN_20, streams=constant(8)).run(40)
    world.unreachable.add("pod-1")
    world.run(200)
    found = world.decisions[-1][1].diagnosis
    assert found.cause is Cause.STALE
    assert found.evidence["why"] == "Unreachable"
    assert isinstance(world.windows["pod-1"], NoWindow)


def test_a_single_odd_tick_does_not_change_the_cause() -> None:
    world = World(MEAN_20, streams=constant(4)).run(60)
    world.unreachable.add("pod-1")
    world.tick()
    assert world.decisions[-1][1].diagnosis.cause is Cause.HEALTHY
    world.unreachable.clear()
    world.tick()
    assert world.decisions[-1][1].diagnosis.cause is Cause.HEALTHY
    assert world.decisions[-1][1].diagnosis.since < 30.0


@pytest.mark.parametrize(
    ("profile", "lengths", "streams", "objective", "limits", "wanted"),
    [
        (CPU_24M, words, 4, MEAN_20, Limits(), Cause.HEALTHY),
        (CPU_24M, words, 40, MEAN_20, OFF, Cause.OVER_BATCHED),
        (CPU_24M, words, 40, MEAN_20, Limits(), Cause.CAPACITY_EXHAUSTED),
        (CPU_24M, words, 40, Objective(0.003, Statistic.MEAN), Limits(), Cause.SLO_INFEASIBLE),
        (replace(CPU_24M, kv_tokens=4000), words, 40, MEAN_20, OFF, Cause.KV_PRESSURE),
        (H100_8B, chat, 300, Objective(0.025, Statistic.MEAN), OFF, Cause.OVER_BATCHED),
        (H100_8B, chat, 20, Objective(0.025, Statistic.MEAN), Limits(), Cause.HEALTHY),
        (replace(H100_8B, kv_tokens=60_000), chat, 200, Objective(None), OFF, Cause.KV_PRESSURE),
    ],
)
def test_the_cause_is_the_same_whatever_the_draw(
    profile: Profile, lengths: object, streams: int, objective: Objective, limits: Limits, wanted: Cause
) -> None:
    for seed in random.Random(5).sample(range(100), 2):
        world = World(objective, limits, profile, lengths, constant(streams), seed=seed).run(90)  # type: ignore[arg-type]
        assert settled(world, 40).cause is wanted


def test_steps_slow_for_no_reason_of_the_engines_are_disturbed_and_not_blamed_on_the_batch() -> None:
    def brief(rng: random.Random, _: float) -> tuple[int, int]:
        return rng.randint(24, 40), rng.randint(200, 400)

    world = World(Objective(0.020, Statistic.P95), lengths=brief, streams=constant(40), stalls=0.2).run(200)
    found = [d.diagnosis for t, d in world.decisions if t > 60 and d.diagnosis.cause is Cause.DISTURBED]
    assert len(found) > 20
    told = [f for f in found if "next" not in f.evidence][-1]
    assert float(told.evidence["beyond"]) > 0.05
    assert float(told.evidence["decode_step_ms"]) < 18.0
    assert "neighbours" in told.advice
