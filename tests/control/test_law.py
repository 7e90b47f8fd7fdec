"""One decision: modes, determinism, and that no window however odd breaks it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.api.enums import ScalingMode, Statistic, TuningMode
from llamaserver.control import Decision, Fleet, Limits, Objective, State, decide, initial
from llamaserver.observe import (
    Failure,
    Memory,
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

P95_30 = Objective(0.030, Statistic.P95)
ONE = Fleet(1, 1, 0)


def test_recommend_names_both_knobs_where_they_are_worth_it_and_they_hold_the_objective() -> None:
    recommend = Limits(tuning=TuningMode.RECOMMEND, scaling=ScalingMode.FIXED)
    world = World(P95_30, recommend, streams=constant(40)).run(120)
    assert all(d.setpoints == {} for _, d in world.decisions)
    named = {
        (v.evidence["recommended"], v.evidence.get("recommended_budget"))
        for t, d in world.decisions
        for v in d.trail
        if v.rule == "Recommend" and t > 60
    }
    ((cap, budget),) = named  # it does not waver
    assert (
        f"the recommended cap is {cap}, with {budget} tokens a step"
        in world.decisions[-1][1].diagnosis.message
    )
    alone = world.state.pods["pod-1"].best
    assert alone is not None
    assert int(cap) >= 1.1 * alone
    world.engines["pod-1"].put(cap, 1e9, budget)
    world.run(240)
    assert world.violated(140) <= 0.1


def test_recommend_computes_and_sets_nothing() -> None:
    limits = Limits(tuning=TuningMode.RECOMMEND, budget_moves=False)
    world = World(P95_30, limits, streams=constant(40)).run(90)
    assert all(d.setpoints == {} for _, d in world.decisions)
    decision = world.decisions[-1][1]
    (told,) = [v for v in decision.trail if v.rule == "Recommend"]
    assert 8 <= int(told.evidence["recommended"]) <= 18
    assert "the recommended cap is" in decision.diagnosis.message
    assert "tokens a step" not in decision.diagnosis.message
    assert decision.diagnosis.cause in ("OverBatched", "PrefillInterference")


@pytest.mark.parametrize(
    "limits", [Limits(tuning=TuningMode.OFF), Limits(suspended=True)], ids=["off", "suspended"]
)
def test_off_and_suspended_only_look(limits: Limits) -> None:
    world = World(P95_30, replace(limits, replicas_max=4), streams=constant(40)).run(90)
    assert all(d.setpoints == {} for _, d in world.decisions)
    assert world.decisions[-1][1].observed.slo_met is False
    assert world.decisions[-1][1].diagnosis.cause in ("OverBatched", "PrefillInterference")
    if limits.suspended:
        assert all(d.replicas is None for _, d in world.decisions)


def test_switching_to_auto_acts_on_what_was_learned_while_looking() -> None:
    world = World(P95_30, Limits(tuning=TuningMode.RECOMMEND), streams=constant(40)).run(60)
    world.limits = Limits()
    world.tick()
    engine = world.engines["pod-1"]
    assert engine.cap < 30
    assert engine.budget < 100


def test_text_alone_observes_and_diagnoses_and_says_why_no_cap_is_set() -> None:
    rising = lambda t: 4 if t < 20 else 40  # noqa: E731 - averages teach only where the load moves
    world = World(Objective(0.020, Statistic.MEAN), Limits(ceiling=32), streams=rising, text=True).run(90)
    decision = world.decisions[-1][1]
    assert all(d.setpoints == {} for _, d in world.decisions)
    assert decision.observed.itl_mean_s == pytest.approx(0.0293, rel=0.1)
    assert decision.observed.slo_met is False
    assert decision.diagnosis.cause == "OverBatched"
    assert "cannot be set live: NoTuner" in decision.diagnosis.message
    assert "maxNumSeqs" in decision.diagnosis.advice
    assert 14 <= int(decision.diagnosis.evidence["fitting"]) <= 22  # 18 hold it


def test_a_pod_that_may_not_be_written_gets_no_setpoint() -> None:
    engine = Engine(CPU_24M)
    engine.load(streams=40)
    for change in (
        {"writable": False, "reason": "NoPublicKeys"},
        {"live": {"max_num_active_seqs": "CustomScheduler", "max_num_scheduled_tokens": ""}},
    ):
        memory, state = Memory(), initial(None, 0.0)
        for at in (2.0, 4.0, 6.0):
            engine.run_until(engine.now + 2.0)
            document = speech.document(engine)
            document.update({k: v for k, v in change.items() if k != "live"})
            if "live" in change:
                document["engines"][0]["live"] = change["live"]  # type: ignore[index]
            said = parse_snapshot(json.dumps(document).encode(), at, "p")
            memory, windows = advance(memory, {"p": said}, at)
            state, decision = decide(P95_30, Limits(), state, windows, ONE, at)
            assert decision.setpoints == {}
        assert "cannot be set live" in decision.diagnosis.message


def test_the_users_bounds_hold_always() -> None:
    limits = Limits(cap_min=10, cap_max=11)
    world = World(Objective(0.004, Statistic.MEAN), limits, streams=constant(40)).run(60)
    assert {s.max_num_active_seqs for _, d in world.decisions for s in d.setpoints.values()} <= {10, 11}
    world = World(Objective(1.0, Statistic.MEAN), Limits(cap_min=40, cap_max=99), streams=constant(40)).run(
        60
    )
    assert {c for _, _, c in world.caps} <= {32}  # never above what the engine started with


@pytest.mark.parametrize(
    ("objective", "live_budget"),
    [
        (P95_30, "ChunkedPrefillOff"),
        (Objective(0.020, Statistic.MEAN), ""),
        (Objective(0.020, Statistic.P50), ""),
        (Objective(None), ""),
    ],
    ids=["not movable", "mean", "median", "batch"],
)
def test_the_prefill_budget_is_left_alone(objective: Objective, live_budget: str) -> None:
    world = World(objective, streams=lambda t: 40 if t > 10 else 0, live_budget=live_budget).run(60)
    assert world.caps
    assert all(s.max_num_scheduled_tokens is None for _, d in world.decisions for s in d.setpoints.values())


def test_the_same_arguments_give_the_same_decision() -> None:
    world = World(P95_30, streams=constant(40)).run(40)
    state, windows, now = world.state, world.windows, world.now
    before = copy.deepcopy(state)
    answers = [decide(P95_30, Limits(), state, windows, ONE, now + 2.0) for _ in range(2)]
    assert answers[0] == answers[1]
    assert state == before


@pytest.mark.parametrize(
    ("live_budget", "asked"),
    [("", ("Shares", "Budget")), ("NoAttribute", ("Breach",))],
    ids=["both knobs", "cap alone"],
)
def test_every_decision_explains_itself(live_budget: str, asked: tuple[str, ...]) -> None:
    world = World(P95_30, streams=constant(40), live_budget=live_budget).run(60)
    decision = world.decisions[-1][1]
    rules = [v.rule for v in decision.trail]
    assert {*asked, "Raise", "KVCeiling", "Replicas"} <= set(rules)
    assert all(v.reason for v in decision.trail)
    assert sum(v.fired for v in decision.trail if v.rule.startswith("diagnosis/")) <= 1
    json.dumps([dict(v.evidence) for v in decision.trail])


def test_no_pods_is_no_zero() -> None:
    state, decision = decide(P95_30, Limits(), initial(None, 0.0), {}, Fleet(1, 0, 1), 2.0)
    assert decision.observed.itl_s is None
    assert decision.observed.running is None
    assert decision.diagnosis.cause == "Stale"
    assert decision.setpoints == {}
    assert state.learned() is None


@pytest.fixture(scope="module")
def scene() -> tuple[list[bytes], list[str]]:
    """Snapshots and metrics of a busy pod, 2 s apart."""
    engine = Engine(replace(CPU_24M, kv_tokens=6000))
    engine.load(streams=40)
    snapshots, texts = [], []
    for at in range(2, 40, 2):
        engine.run_until(float(at))
        snapshots.append(speech.snapshot(engine))
        texts.append(speech.metrics(engine))
    return snapshots, texts


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_sequence_of_answers_breaks_it(scene: tuple[list[bytes], list[str]], data: st.DataObject) -> None:
    """Lost, repeated, reordered, restarted, lying or foreign answers of two pods, under any objective and
    limits.
    """
    snapshots, texts = scene
    objective = Objective(
        data.draw(st.one_of(st.none(), st.floats(1e-4, 10.0))),
        data.draw(st.sampled_from(list(Statistic))),
        data.draw(st.one_of(st.none(), st.floats(0.01, 100.0))),
    )
    low = data.draw(st.integers(1, 40))
    limits = Limits(
        cap_min=low,
        cap_max=data.draw(st.one_of(st.none(), st.integers(low, 80))),
        tuning=data.draw(st.sampled_from(list(TuningMode))),
        scaling=data.draw(st.sampled_from(list(ScalingMode))),
        replicas_max=data.draw(st.integers(1, 5)),
        suspended=data.draw(st.booleans()),
    )
    memory, state, now = Memory(), initial(None, 0.0), 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.sampled_from([0.0, 0.5, 2.0, 2.0, 2.0, 40.0]))
        results = {
            pod: _answer(data, snapshots, texts, now)
            for pod in data.draw(st.sets(st.sampled_from(["a", "b"])))
        }
        memory, windows = advance(memory, results, now)
        fleet = Fleet(
            data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6)), data.draw(st.integers(0, 2))
        )
        state, decision = decide(objective, limits, state, windows, fleet, now)
        _check(decision, state, limits, windows)


def _answer(data: st.DataObject, snapshots: list[bytes], texts: list[str], now: float) -> Sample | Failure:
    kind = data.draw(st.sampled_from(["snapshot", "snapshot", "snapshot", "text", "lost", "damaged"]))
    i = data.draw(st.integers(0, len(snapshots) - 1))
    incarnation = data.draw(st.sampled_from(["u/0", "u/0", "u/1"]))
    if kind == "snapshot":
        return parse_snapshot(snapshots[i], now, incarnation)
    if kind == "text":
        return parse_exposition(texts[i], now, incarnation)
    if kind == "damaged":
        names = ("running", "sum", "y", "used_blocks", "max_tokens", "generated_tokens")
        key = data.draw(st.sampled_from([f'"{name}": ' for name in names]))
        value = data.draw(st.sampled_from(["0", "1", "NaN", "1e308", "-5", "999999999999999999999999"]))
        return parse_snapshot(
            snapshots[i].replace(key.encode(), f'{key}{value}, "was": '.encode()), now, incarnation
        )
    return Failure(now, Unusable.UNREACHABLE, "timeout")


def _check(decision: Decision, state: State, limits: Limits, windows: object) -> None:
    for setpoint in decision.setpoints.values():
        cap = setpoint.max_num_active_seqs
        assert cap is not None
        assert 1 <= cap <= 32
        assert cap >= min(limits.cap_min, 32)
        assert limits.cap_max is None or cap <= limits.cap_max
    if limits.suspended or limits.tuning is not TuningMode.AUTO:
        assert decision.setpoints == {}
    if limits.suspended or limits.scaling is not ScalingMode.AUTO:
        assert decision.replicas is None
    elif decision.replicas is not None:
        assert limits.replicas_min <= decision.replicas <= limits.replicas_max
    assert decision.diagnosis.message
    kept = state.learned()
    assert kept is None or type(kept).from_dict(kept.to_dict()) == kept
    assert isinstance(windows, dict)


def test_windows_are_what_the_law_is_given() -> None:
    world = World(P95_30, streams=constant(40)).run(10)
    assert isinstance(world.windows["pod-1"], Window)
