"""The rules that the law is compared with do what their authors say they do."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.policies import CAPS, SAYS, SCALERS, policies, policy
from llamaserver.simulate.rules import CapRule, FleetSeen, PodSeen, ReplicaRule, ReplicaSeen, Traffic
from llamaserver.simulate.rules.aibrix import ApaKvUsage, KpaKvUsage
from llamaserver.simulate.rules.caps import AIMD, Bisection, Gradient2, SlewedBisection
from llamaserver.simulate.rules.dynamo import DynamoLoad, DynamoThroughput, Trend
from llamaserver.simulate.rules.queueing import Filter, Queue, QueueingWVA
from llamaserver.simulate.rules.regression import Steps
from llamaserver.simulate.rules.scaling import QueueHPA, SaturationWVA

POD = PodSeen(target_s=0.03, itl_s=0.02, batch=20, running=20, waiting=0, cap=20, ceiling=256)


@given(
    name=st.sampled_from(sorted(CAPS)),
    seen=st.lists(
        st.tuples(
            st.none() | st.floats(1e-4, 10.0), st.floats(0, 256), st.integers(0, 256), st.integers(0, 500)
        ),
        min_size=1,
        max_size=40,
    ),
    ceiling=st.integers(1, 256),
)
def test_every_cap_is_one_that_an_engine_takes(
    name: str, seen: list[tuple[float | None, float, int, int]], ceiling: int
) -> None:
    rule: CapRule = CAPS[name]
    cap = ceiling
    for itl_s, batch, running, waiting in seen:
        pod = PodSeen(0.03, itl_s, min(batch, ceiling), min(running, ceiling), waiting, cap, ceiling)
        rule, setpoint = rule.step(pod)
        assert setpoint.max_num_active_seqs is not None
        cap = setpoint.max_num_active_seqs
        assert 1 <= cap <= ceiling


def settled(rule: CapRule, slope_s: float, steps: int) -> list[int]:
    """The caps on an engine whose latency is 10 ms and `slope_s` a sequence, with ever more waiting."""
    caps, pod = [], replace(POD, cap=64)
    for _ in range(steps):
        batch = pod.cap
        rule, setpoint = rule.step(
            replace(pod, itl_s=0.010 + slope_s * batch, batch=batch, running=batch, waiting=500)
        )
        pod = replace(pod, cap=setpoint.max_num_active_seqs or 1)
        caps.append(pod.cap)
    return caps


@pytest.mark.parametrize("rule", [AIMD(), Gradient2(), Bisection(), SlewedBisection(band_s=0.001)])
def test_each_search_comes_near_the_batch_that_holds_the_target(rule: CapRule) -> None:
    """20 ms over 0.2 ms: 100 sequences."""
    caps = settled(rule, 2e-4, 400)[-100:]
    assert 70 <= sum(caps) / len(caps) <= 135


def test_aimd_grows_by_one_and_falls_by_a_tenth_and_not_while_half_is_unused() -> None:
    rule, setpoint = AIMD(limit=30).step(POD)
    assert setpoint.max_num_active_seqs == 31
    _, setpoint = rule.step(replace(POD, itl_s=0.031))
    assert setpoint.max_num_active_seqs == 27
    _, setpoint = AIMD(limit=60).step(POD)
    assert setpoint.max_num_active_seqs == 60


def test_a_search_with_small_steps_moves_by_two() -> None:
    rule = SlewedBisection()
    before = 64
    for itl_s in (0.02, 0.02, 0.02):
        rule, setpoint = rule.step(replace(POD, itl_s=itl_s, cap=64, running=64))
        assert abs((setpoint.max_num_active_seqs or 0) - before) <= 2
        before = setpoint.max_num_active_seqs or 0


def fleet(now: float, waiting: tuple[int, ...], kv: tuple[float, ...], pending: int = 0) -> FleetSeen:
    return FleetSeen(now, len(waiting) + pending, pending, waiting, kv)


def asked(rule: ReplicaRule, seconds: float, seen: FleetSeen) -> list[int]:
    """Every answer while the fleet looks the same for so long."""
    answers = []
    start = seen.now
    while seen.now < start + seconds:
        rule, wanted = rule.step(seen)
        if wanted is not None:
            answers.append(wanted)
        seen = replace(seen, now=seen.now + 2.0)
    return answers


def test_an_hpa_is_proportional_bounded_and_slow_on_the_way_down() -> None:
    assert asked(QueueHPA(), 16, fleet(0, (10, 10), (0.5, 0.5)))[0] == 4
    assert asked(QueueHPA(), 16, fleet(0, (500, 500), (0.5, 0.5)))[0] == 6  # two and four more
    assert asked(QueueHPA(), 16, fleet(0, (5, 5), (0.5, 0.5)))[0] == 2  # within the tolerance
    rule, _ = QueueHPA().step(fleet(0, (5, 5, 5), (0.5,) * 3))
    answers = asked(rule, 400, fleet(15, (0, 0, 0), (0.1,) * 3))
    assert answers[:15] == [3] * 15
    assert answers[-1] == 1


def test_the_saturation_rule_keeps_a_reserve_and_waits_for_what_is_pending() -> None:
    idle, full = (0.1, 0.1), (0.75, 0.78)
    assert asked(SaturationWVA(), 130, fleet(0, (0, 0), idle))[-1] == 1
    assert asked(SaturationWVA(), 130, fleet(0, (0, 0), full))[-1] == 3
    assert asked(SaturationWVA(), 130, fleet(0, (9, 9), (0.95, 0.95)))[-1] == 3
    assert asked(SaturationWVA(), 130, fleet(0, (9, 9), (0.95, 0.95), pending=1)) == []


@pytest.mark.parametrize("name", sorted(SCALERS))
def test_a_replica_rule_always_has_one_at_least(name: str) -> None:
    assert all(n >= 1 for n in asked(SCALERS[name], 700, fleet(0, (0,), (0.0,))))


def test_policies_go_by_name_and_a_wrong_one_is_told_the_right_ones() -> None:
    assert [p.name for p in policies("all")] == list(SAYS)
    assert [p.name for p in policies("aimd, aimd+hpa,aimd")] == ["aimd", "aimd+hpa"]
    for wrong in ("magic", "aimd+magic", " ,"):
        with pytest.raises(SimulationError, match="there are"):
            policies(wrong)
    assert policy("llamaserver").caps is None
    assert not policy("llamaserver-cap").budget_moves


def test_no_token_is_no_news() -> None:
    for rule in CAPS.values():
        _, setpoint = rule.step(replace(POD, itl_s=None, running=0, batch=0.0))
        assert math.isfinite(setpoint.max_num_active_seqs or 0)


def test_gradient2_with_a_target_rests_above_it() -> None:
    """Where gradient x limit + queue = limit: by its own arithmetic, and said beside its figures."""
    cap = settled(Gradient2(), 2e-4, 300)[-1]
    assert 0.0305 < 0.010 + 2e-4 * cap < 0.0315  # 30 ms x 106 / 102


# --- rules that model a replica -------------------------------------------------------------------------


def replica(
    *,
    resident: float = 50_000,
    prefill: float = 60,
    step_s: float = 0.012,
    waiting: int = 0,
    seconds: float = 2.0,
) -> ReplicaSeen:
    """Half a request a second of 1,000 tokens in and 200 out; a step of 50 sequences."""
    steps = int(seconds / step_s)
    n = 0.5 * seconds
    traffic = Traffic(
        seconds=seconds,
        arrived=n,
        finished=n,
        prompt=1000 * n,
        output=200 * n,
        itl_s=200 * n * step_s,
        itls=200 * n,
        ttft_s=0.05 * n,
        ttfts=n,
    )
    return ReplicaSeen("pod-1", traffic, waiting, steps, step_s, 50, resident, prefill, 467_000, 256, 8192)


def modelled(now: float, pods: Sequence[ReplicaSeen], target_s: float = 0.03, pending: int = 0) -> FleetSeen:
    waiting, usage = tuple(p.waiting for p in pods), tuple(p.resident / 467_000 for p in pods)
    return FleetSeen(now, len(pods) + pending, pending, waiting, usage, target_s, tuple(pods))


def fed(steps: Steps, seed: int = 1, count: int = 40) -> Steps:
    """Observations of 6 ms + 20 us a prefill token + 60 ns a resident token, with 2 % of noise."""
    rng = random.Random(seed)
    for _ in range(count):
        p, k = rng.uniform(0, 800), rng.uniform(2e3, 3e5)
        y = (6e-3 + 20e-6 * p + 60e-9 * k) * rng.gauss(1.0, 0.02)
        steps = steps.add(replica(prefill=p, resident=k, step_s=y))
    return steps


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), count=st.integers(20, 90))
def test_dynamos_regression_finds_what_a_step_costs_and_keeps_a_bounded_number(seed: int, count: int) -> None:
    steps = fed(Steps(), seed, count)
    assert len(steps.seen) <= 64
    fit = steps.fit()
    assert fit is not None
    assert fit.step_s(400, 150_000) == pytest.approx(6e-3 + 8e-3 + 9e-3, rel=0.05)


def test_dynamos_regression_keeps_the_rare_loads_when_one_load_lasts() -> None:
    steps = fed(Steps())
    for _ in range(500):
        steps = steps.add(replica())
    assert {round(p) for p, _, _ in steps.seen} != {60}


def test_dynamos_load_mode_moves_by_one_and_only_when_all_replicas_miss() -> None:
    rule = DynamoLoad(steps=fed(Steps()))
    heavy, light = replica(resident=400_000, step_s=0.031), replica(resident=20_000, step_s=0.0085)
    assert rule.step(modelled(5, [heavy, heavy]))[1] == 3
    assert rule.step(modelled(5, [heavy, light]))[1] == 2
    assert rule.step(modelled(5, [light, light]))[1] == 1
    assert rule.step(modelled(5, [heavy, heavy], pending=1))[1] is None
    assert rule.step(modelled(5, [replica(waiting=2000, resident=400_000, step_s=0.031)] * 2))[1] == 3


def test_dynamos_load_mode_leaves_alone_what_could_not_take_over() -> None:
    """17 ms on two replicas are 25 ms on one, which is over four fifths of 30 ms."""
    pods = [replica(resident=170_000, step_s=0.0175)] * 2
    assert DynamoLoad(steps=fed(Steps())).step(modelled(5, pods))[1] == 2


def test_dynamo_says_nothing_before_it_has_seen_enough() -> None:
    assert DynamoLoad().step(modelled(5, [replica()]))[1] is None
    assert DynamoThroughput().step(modelled(180, [replica()]))[1] is None


def test_dynamos_throughput_mode_divides_the_demand_by_what_an_engine_takes() -> None:
    rule = DynamoThroughput(steps=fed(Steps()))
    fit = rule.steps.fit()
    assert fit is not None
    pod = replica()
    one = fit.rate(1000, 200, pod, 0.5, 0.03)
    assert 5 < one < 25
    many = replace(pod, traffic=replace(pod.traffic, arrived=180 * 3.5 * one))
    assert rule.step(modelled(180, [many]))[1] == 4
    assert rule.step(modelled(100, [many]))[1] is None
    assert fit.rate(1000, 200, pod, 0.5, 0.02) < one < fit.rate(1000, 200, pod, 0.5, 0.04)


def test_dynamos_predictor_repeats_the_last_point_and_then_follows_a_trend() -> None:
    trend = Trend()
    for value in (100.0, 120.0, 140.0):
        trend = trend.add(value)
    assert trend.next() == 140.0
    for value in range(160, 400, 20):
        trend = trend.add(float(value))
    assert 360 < trend.next() < 420


TRUE = (6e-3, 20e-6, 80e-9)


def minute(rate: float, prompt: float = 1000, output: float = 200) -> Traffic:
    """What a replica of the queueing model would show of a minute."""
    got = Queue(prompt, output, TRUE).times(rate)
    assert got is not None
    n = 60 * rate
    return Traffic(60, n, n, n * prompt, n * output, n * output * got[1], n * output, n * got[0], n)


def test_the_queueing_model_is_at_rest_without_arrivals_and_ends_where_it_is_full() -> None:
    queue = Queue(1000, 200, TRUE)
    ttft_s, itl_s = queue.times(0.0) or (0.0, 0.0)
    assert ttft_s == pytest.approx(6e-3 + 1000 * 20.08e-6)
    assert itl_s == pytest.approx(6e-3 + 20e-6 + 80e-9 * 1100.5)
    assert queue.times(1.01 / queue.busy(1.0)) is None
    slack = 3.0 * TRUE[0] + (TRUE[1] + TRUE[2]) * 1000
    assert queue.busy(queue.largest(slack, 1.0, 10_000)) == pytest.approx(2 / 3, rel=1e-3)  # 1 - 1 / 3
    assert queue.largest(slack, 1.0, 10) < queue.largest(slack, 1.0, 10_000)


def test_the_filter_follows_a_load_that_grows_slowly_where_it_is() -> None:
    """And only there: two figures a minute do not tell three parameters apart."""
    kept = Filter()
    for i in range(120):
        rate = 1.0 + 0.12 * i
        kept = kept.update(minute(rate))
        assert kept.now is not None
        if i > 3:
            found, true = Queue(1000, 200, kept.now).times(rate), Queue(1000, 200, TRUE).times(rate)
            assert found == pytest.approx(true, rel=0.02)


def test_the_filter_believes_no_jump_and_stays_in_its_bounds() -> None:
    kept = Filter().update(minute(2.0))
    broken = replace(minute(2.0), itl_s=1e4)
    assert kept.update(broken).now == kept.now
    assert kept.update(Traffic()) == kept


def test_the_queueing_rule_asks_for_the_rate_over_what_one_takes() -> None:
    rule = QueueingWVA(filter=Filter().update(minute(4.0)))
    pod = replace(replica(), traffic=minute(18.0))
    after, wanted = rule.step(modelled(60, [pod]))
    assert wanted is not None
    assert wanted > 1
    assert after.step(modelled(90, [pod]))[1] is None
    assert QueueingWVA().step(modelled(60, [replace(pod, traffic=Traffic())]))[1] is None


def test_apa_is_proportional_within_its_tolerances_and_rates() -> None:
    assert asked(ApaKvUsage(), 8, fleet(0, (0, 0), (0.7, 0.7))) == [3]
    assert asked(ApaKvUsage(), 8, fleet(0, (0, 0), (0.54, 0.54))) == [2]
    assert asked(ApaKvUsage(), 8, fleet(0, (0,), (1.0,))) == [2]
    assert asked(ApaKvUsage(kv_usage=0.1), 8, fleet(0, (0,), (1.0,))) == [2]  # twice at most
    slow = asked(ApaKvUsage(), 330, fleet(0, (0,) * 4, (0.05,) * 4))
    assert slow[0] == 2  # nothing was asked for before: half at most
    rule, _ = ApaKvUsage().step(fleet(0, (0,) * 4, (0.5,) * 4))
    assert asked(rule, 330, fleet(20, (0,) * 4, (0.05,) * 4))[0] == 4


def test_kpa_panics_at_twice_the_load_and_lets_nobody_go_meanwhile() -> None:
    rule: ReplicaRule = KpaKvUsage()
    calm = fleet(0, (0,), (0.3,))
    while calm.now < 60:
        rule, wanted = rule.step(calm)
        calm = replace(calm, now=calm.now + 2.0)
        assert wanted in (None, 1)
    assert asked(rule, 12, fleet(60, (0,), (0.95,)))[-1] == 2  # the long average alone would say 1
    panicking, _ = KpaKvUsage().step(fleet(0, (0,), (0.95,)))
    assert asked(panicking, 50, fleet(2, (0,) * 2, (0.1,) * 2)) == [2] * 5


@pytest.mark.parametrize("name", sorted(SCALERS))
def test_every_replica_rule_bears_a_fleet_of_which_nothing_is_known(name: str) -> None:
    empty = FleetSeen(0.0, 2, 2, (), ())
    assert all(n >= 1 for n in asked(SCALERS[name], 400, empty))
