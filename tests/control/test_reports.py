"""Faults that people reported of other systems, rebuilt small: what this one does with them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from llamaserver.api.enums import Statistic
from llamaserver.control import Cause, Decision, Fleet, Limits, Objective, decide, initial
from llamaserver.observe import (
    Failure,
    Memory,
    NoWindow,
    Sample,
    Unusable,
    Window,
    advance,
    parse_exposition,
    parse_snapshot,
)
from llamaserver.simulate import speech
from llamaserver.simulate.demand import constant
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.world import World

P95_50 = Objective(0.050, Statistic.P95)
ONE = Fleet(1, 1, 0)


def ticks(
    answers: list[tuple[float, Sample | Failure]], objective: Objective = P95_50, fleet: Fleet = ONE
) -> list[Decision]:
    memory, state, found = Memory(), initial(None, 0.0), []
    for at, answer in answers:
        memory, windows = advance(memory, {"pod": answer}, at)
        state, decision = decide(objective, Limits(replicas_max=8), state, windows, fleet, at)
        found.append(decision)
    return found


def document(**engine: Any) -> dict[str, Any]:
    """A busy pod, with its engine's figures replaced."""
    plant = Engine(CPU_24M)
    plant.load(streams=8)
    plant.run_until(20.0)
    made: dict[str, Any] = speech.document(plant)
    # Lengths would be of other requests than the figures that replace the plant's.
    made["engines"][0].update({"lengths": None, **engine})
    return made


def said(made: dict[str, Any], at: float) -> Sample | Failure:
    return parse_snapshot(json.dumps(made).encode(), at, "uid/0")


def test_healthy_200_with_a_frozen_engine_is_stalled() -> None:
    """Two answers 150 s apart, eight running, every counter the same, /health 200 all along."""
    frozen = document(running=8)
    decisions = ticks([(0.0, said(frozen, 0.0)), (150.0, said(frozen, 150.0)), (152.0, said(frozen, 152.0))])
    assert decisions[-1].diagnosis.cause is Cause.STALLED
    assert decisions[-1].replicas is None


def test_moving_counters_and_one_timeout_are_not_a_stall() -> None:
    world = World(P95_50, streams=constant(8)).run(60)
    world.unreachable.add("pod-1")
    world.tick()
    world.unreachable.clear()
    world.run(80)
    assert "Stalled" not in world.causes()
    assert "Idle" not in world.causes(10)


def test_gauges_left_over_after_an_abort_of_all_move_nothing() -> None:
    """Running 106, waiting 15, cache 90 % for ever, no token made: neither a retune nor a replica."""
    left = document(running=106, waiting=15)
    left["engines"][0]["kv"]["used_blocks"] = int(0.904 * left["engines"][0]["kv"]["num_blocks"])
    decisions = ticks([(2.0 * i, said(left, 2.0 * i)) for i in range(1, 40)])
    caps = {s.max_num_active_seqs for d in decisions for s in d.setpoints.values()}
    assert len(caps) == 1
    assert all(d.replicas is None for d in decisions)
    assert {d.diagnosis.cause for d in decisions[1:12]} == {Cause.STALE}


ABORTS = 'vllm:request_success_total{engine="0",model_name="m",finished_reason="abort"} '


@pytest.mark.parametrize("hangs", [False, True], ids=["it serves", "it hangs"])
def test_whether_a_release_counts_aborted_requests_changes_no_cause_and_no_decision(hangs: bool) -> None:
    """Every second client gives up; the counter rises with each of them, stays 0, or is not there."""
    plant = Engine(CPU_24M)
    plant.load(streams=40)
    told: dict[str, list[tuple[float, Sample | Failure]]] = {"rises": [], "stays": [], "is missing": []}
    for i in range(1, 100):
        at = 2.0 * i
        if not hangs or at < 20.0:
            plant.run_until(at)
        text = speech.metrics(plant)
        for kind, added in (("rises", f"{ABORTS}{plant.finished + i}.0"), ("stays", f"{ABORTS}0.0")):
            told[kind].append((at, parse_exposition(f"{text}\n{added}\n", at, "uid/0")))
        told["is missing"].append((at, parse_exposition(text, at, "uid/0")))
    rises, stays, missing = (ticks(answers) for answers in told.values())
    assert rises == stays == missing
    assert rises[-1].diagnosis.cause is (Cause.STALLED if hangs else missing[-1].diagnosis.cause)
    assert (rises[-1].diagnosis.cause is Cause.STALLED) == hangs


def test_admission_stuck_on_deferred_requests_is_not_answered_with_a_higher_cap() -> None:
    """Running 4, 473 deferred and 19 in the queue, cache 20 %, half a token a second."""
    answers, made = [], document(running=4, waiting=492, waiting_deferred=473, max_num_active_seqs=32)
    made["engines"][0]["kv"]["used_blocks"] = int(0.2 * made["engines"][0]["kv"]["num_blocks"])
    for i in range(1, 30):
        made["requests"]["0"]["generation_tokens"] += 1
        answers.append((2.0 * i, said(made, 2.0 * i)))
    decisions = ticks(answers)
    assert decisions[-1].diagnosis.cause is Cause.ADMISSION_ELSEWHERE
    assert decisions[-1].diagnosis.evidence["deferred"] == 473
    assert "restart" in decisions[-1].diagnosis.advice
    assert all((s.max_num_active_seqs or 0) <= 32 for d in decisions for s in d.setpoints.values())
    assert all(d.replicas is None for d in decisions)


def test_several_engines_in_a_pod_are_summed_and_the_fullest_cache_counts() -> None:
    plant = Engine(CPU_24M)
    plant.load(streams=8)
    samples = []
    for at in (10.0, 12.0):
        plant.run_until(at)
        text = speech.metrics(plant)
        samples.append(parse_exposition(text + text.replace('engine="0"', 'engine="1"'), at, "uid/0"))
    memory, _ = advance(Memory(), {"pod": samples[0]}, 10.0)
    _, windows = advance(memory, {"pod": samples[1]}, 12.0)
    window = windows["pod"]
    assert isinstance(window, Window)
    assert window.running == 16
    assert window.kv_usage == max(e.kv_usage for e in window.last.engines)
    assert window.itl.count % 2 == 0


def test_the_cap_of_a_pod_with_two_engines_is_per_engine() -> None:
    """Sixteen streams over two data-parallel ranks: eight in each, and the cap speaks of one rank."""
    plant = Engine(CPU_24M)
    plant.load(streams=8)
    memory, state, decision = Memory(), initial(None, 0.0), None
    for i in range(1, 20):
        plant.run_until(2.0 * i)
        made: Any = speech.document(plant)
        second = json.loads(json.dumps(made["engines"][0])) | {"engine": 1}
        made["engines"].append(second)
        made["requests"]["1"] = made["requests"]["0"]
        memory, windows = advance(memory, {"pod": said(made, 2.0 * i)}, 2.0 * i)
        state, decision = decide(P95_50, Limits(), state, windows, ONE, 2.0 * i)
    assert decision is not None
    assert decision.observed.running == 16
    assert decision.setpoints["pod"].max_num_active_seqs == 8
    assert decision.diagnosis.cause is Cause.HEALTHY


@pytest.mark.parametrize(("clients", "needed"), [(40, 4), (100, 10)])
def test_desired_does_not_double_while_pods_load(clients: int, needed: int) -> None:
    """One replica holds 12 of the clients, all of which wait for their answers; no other is ready in time."""
    world = World(
        Objective(0.016, Statistic.MEAN), Limits(replicas_max=40), streams=constant(clients), cold_start_s=600
    )
    world.run(500)
    assert next(iter(world.decisions[-1][1].setpoints.values())).max_num_active_seqs == 12
    asked = [n for _, n in world.scales]
    assert asked[-1] == max(asked) == needed
    assert world.scales[-1][0] < 150, "and from then on what is asked for stays"


def test_latencies_below_the_first_bucket_are_at_most_and_far_below_the_target() -> None:
    """8.2 ms at 16 and 9.4 ms at 32 sequences look alike through a first bucket of 10 ms."""
    quick = replace(CPU_24M, a=7e-3, b=0.07e-3, g=0.0, d=1e-6, c=0.0)
    world = World(P95_50, profile=quick, rate=constant(9.0), text=True).run(90)
    decision = world.decisions[-1][1]
    assert (decision.observed.itl_s, decision.observed.itl_relation) == (0.01, "<=")
    assert decision.observed.slo_met is True
    assert "at most 10" in decision.diagnosis.message
    assert decision.setpoints == {}
    exact = World(P95_50, profile=quick, rate=constant(9.0)).run(90)
    caps = [c for _, _, c in exact.caps]
    assert caps == sorted(caps)  # grows with the demand after the start, and is never cut
    assert 0.007 < (exact.decisions[-1][1].observed.itl_s or 0.0) < 0.01


def test_a_target_inside_the_first_bucket_is_not_judged_by_it() -> None:
    quick = replace(CPU_24M, a=7e-3, b=0.07e-3, g=0.0, d=1e-6, c=0.0)
    world = World(Objective(0.009, Statistic.P95), profile=quick, rate=constant(9.0), text=True).run(60)
    assert world.decisions[-1][1].observed.slo_met is None
    assert "cannot be told" in world.decisions[-1][1].diagnosis.message


def test_every_latency_zero_is_a_lie_not_a_fast_engine() -> None:
    lying = document()
    lying["requests"]["0"]["itl"]["sum"] = 0.0
    decisions = ticks([(2.0 * i, said(lying, 2.0 * i)) for i in range(1, 4)])
    assert decisions[-1].observed.itl_s is None
    assert decisions[-1].diagnosis.cause is Cause.STALE
    assert decisions[-1].diagnosis.evidence["why"] == "Lying"


def test_an_empty_body_holds_everything() -> None:
    decisions = ticks([(2.0 * i, parse_exposition("", 2.0 * i, "uid/0")) for i in range(1, 10)])
    assert all(d.setpoints == {} and d.replicas is None for d in decisions)
    assert decisions[-1].observed.running is None


def test_a_healthy_engine_that_preempts_now_and_then_is_left_in_peace() -> None:
    """Seven requests in a hundred preempted once is common where the cache is well used; throughput must not
    suffer.
    """
    world = World(Objective(None), profile=replace(CPU_24M, kv_tokens=7600), streams=constant(40)).run(300)
    assert world.state.pods["pod-1"].kv.trust > 0.8
    assert world.tokens_per_s(60) > 950


def test_the_same_cache_usage_of_two_request_shapes_is_not_the_same_latency() -> None:
    """Seventy per cent full of long contexts or of many short ones: the cap follows the objective, not the
    usage.
    """
    caps = {}
    for name, prompt in (("short", 40), ("long", 400)):

        def lengths(rng: Any, _: float, prompt: int = prompt) -> tuple[int, int]:
            return prompt, rng.randint(60, 300)

        world = World(Objective(0.020, Statistic.MEAN), lengths=lengths, streams=constant(40)).run(150)
        caps[name] = world.engines["pod-1"].cap
        assert world.violated(60) <= 0.05
    assert caps["short"] > caps["long"] + 3


def test_a_pod_read_for_the_first_time_is_no_zero() -> None:
    made = document()
    _, windows = advance(Memory(), {"pod": said(made, 2.0)}, 2.0)
    assert isinstance(windows["pod"], NoWindow)
    assert windows["pod"].why is Unusable.FIRST
    _, decision = decide(P95_50, Limits(), initial(None, 0.0), windows, ONE, 2.0)
    assert decision.observed.tokens_per_s is None
