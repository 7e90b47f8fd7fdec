"""What the demand needs: the forecast of arrivals, exact numbers, and a slow loop that never hunts."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from control.fleets import Replicas, poisson
from llamaserver.api.enums import ScalingMode, TuningMode
from llamaserver.control import Limits, Objective
from llamaserver.control.arrivals import GROWTH_MAX, Arrivals, busiest, trend
from llamaserver.simulate.clients import reversals

WIDE = Limits(replicas_max=20)
FEW = settings(max_examples=12, deadline=None)


def arrivals(rate: object, until: float = 120.0, tick_s: float = 2.0, seed: int = 1) -> list[Arrivals]:
    """Poisson arrivals at `rate(t)`."""
    rng, at = random.Random(seed), [tick_s * (i + 1) for i in range(int(until / tick_s))]
    return [Arrivals(t, float(poisson(rng, rate(t) * tick_s)), tick_s) for t in at]  # type: ignore[operator]


def test_nothing_seen_is_no_rate_and_not_zero() -> None:
    assert trend([], 10.0) is None
    assert trend([Arrivals(2.0, 0.0, 2.0)], 2.0) is None
    assert busiest([], 60.0) == 0.0


@given(st.integers(0, 2000), st.floats(0.2, 80.0))
@settings(max_examples=60, deadline=None)
def test_a_steady_rate_is_found_and_noise_makes_no_forecast(seed: int, rate: float) -> None:
    found = trend(arrivals(lambda _: rate, seed=seed), 120.0)
    assert found is not None
    assert abs(found.rate - rate) <= 6.0 * max(found.error, math.sqrt(rate / 120.0))
    assert found.rate <= found.ahead(75.0) <= GROWTH_MAX * found.rate


@pytest.mark.parametrize("seed", range(10))
def test_a_step_is_seen_in_ten_seconds_and_is_no_ramp(seed: int) -> None:
    seen = arrivals(lambda t: 12.0 if t <= 110.0 else 48.0, seed=seed)
    found = trend(seen, 120.0)
    assert found is not None
    assert found.rate == pytest.approx(48.0, rel=0.2)
    assert found.jumped > 20.0
    assert found.ahead(75.0) <= 1.2 * 48.0


@pytest.mark.parametrize("seed", range(10))
def test_a_ramp_is_extrapolated(seed: int) -> None:
    found = trend(arrivals(lambda t: 12.0 + 0.12 * t, seed=seed), 120.0)
    assert found is not None
    assert found.rate == pytest.approx(26.4, rel=0.15)
    assert 1.1 * found.rate <= found.ahead(75.0) <= GROWTH_MAX * found.rate


@given(
    st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 30.0)), max_size=80),
    st.floats(0.0, 1000.0),
)
@settings(max_examples=200, deadline=None)
def test_whatever_comes_the_forecast_is_bounded(counts: list[tuple[float, float]], ahead_s: float) -> None:
    seen = [Arrivals(2.0 * i, n, s) for i, (n, s) in enumerate(counts)]
    found = trend(seen, 2.0 * len(seen))
    if found is not None:
        assert math.isfinite(found.rate)
        assert found.rate >= 0.0
        assert found.rate <= found.ahead(ahead_s) <= max(found.rate, GROWTH_MAX * found.rate)


def test_the_busiest_minute_is_not_hidden_by_a_quiet_one() -> None:
    seen = arrivals(lambda t: 30.0 if t <= 60.0 else 5.0)
    assert busiest(seen, 60.0) == pytest.approx(30.0, rel=0.15)


@pytest.mark.parametrize("replicas", [2, 3, 4, 5])
def test_a_step_gets_at_once_what_it_needs(replicas: int) -> None:
    """Filled to 85 %, with what waits to be worked off besides, and no replica beyond that."""
    half = (replicas + 1) // 2
    fleet = Replicas(limits=WIDE, seed=replicas, count=half)
    high = 0.85 * replicas * fleet.serves
    fleet.rate = lambda t: 0.6 * half * fleet.serves if t < 300 else high
    fleet.run(360)
    assert [n for t, n in fleet.scales if t < 300] == []
    (at, wanted), *more = fleet.scales
    assert more == []
    assert at <= 320
    backlog = (high - half * fleet.serves) * fleet.cold_start_s
    most = math.ceil(1.15 * (high + backlog / 90.0) / 0.9 / fleet.serves)
    assert replicas <= wanted <= most
    reason = next(a.reason for _, a in fleet.answers if a.wanted == wanted)
    assert "requests/s come" in reason
    assert f"{wanted} replicas are needed" in reason


def test_a_large_step_is_taken_in_bounded_ones() -> None:
    fleet = Replicas(limits=WIDE)
    fleet.rate = lambda t: (0.5 if t < 300 else 12.0) * fleet.serves
    fleet.run(420)
    ups = [(300.0, 1), *(s for s in fleet.scales if s[0] > 300)]
    assert all(b <= max(2 * a, a + 4) for (_, a), (_, b) in pairwise(ups))
    assert all(later - sooner >= 30.0 for (sooner, _), (later, _) in pairwise(ups[1:]))
    assert "for now" in next(a.reason for _, a in fleet.answers if a.wanted == 5)


def test_replicas_that_load_count_and_only_growth_adds_more() -> None:
    steady = Replicas(limits=WIDE, cold_start_s=300)
    steady.rate = lambda t: (0.5 if t < 300 else 2.5) * steady.serves
    steady.run(590)
    grows = Replicas(limits=WIDE, cold_start_s=300)
    grows.rate = lambda t: (0.5 if t < 300 else 2.5 if t < 450 else 5.0) * grows.serves
    grows.run(590)
    assert all(t < 400 for t, _ in steady.scales)
    assert [n for t, n in grows.scales if t > 450], "while others load"
    assert grows.replicas > steady.replicas


def test_a_ramp_is_met_before_anyone_waits_long() -> None:
    fleet = Replicas(limits=WIDE)
    fleet.rate = lambda t: (0.5 + 3.0 * min(1.0, t / 600.0)) * fleet.serves
    fleet.run(900)
    assert 4 <= fleet.replicas <= 5
    assert max(n for _, n in fleet.waited) <= 10.0 * fleet.serves, "ten seconds of one replica"


def test_a_burst_that_is_worked_off_by_itself_gets_no_replica() -> None:
    fleet = Replicas(limits=WIDE, cold_start_s=120)
    fleet.rate = lambda t: (2.0 if 300 <= t < 306 else 0.4) * fleet.serves
    fleet.run(600)
    assert fleet.scales == []


def test_a_queue_objective_says_how_much_may_wait() -> None:
    def run(objective: Objective) -> Replicas:
        fleet = Replicas(limits=WIDE, objective=objective)
        fleet.rate = lambda t: (0.5 if t < 300 else 1.05) * fleet.serves
        return fleet.run(500)

    assert run(Objective(0.050)).scales != []
    assert run(Objective(0.050, queue_s=60.0)).scales == []


@pytest.mark.parametrize("model", [True, False])
def test_clients_that_wait_are_counted_in_sequences(model: bool) -> None:
    fleet = Replicas(clients=lambda _: 300, limits=WIDE, model=model).run(400)
    assert fleet.replicas == 5  # 300 sequences, 80 to a replica, filled to nine tenths
    assert fleet.scales[-1][0] < 200


@pytest.mark.parametrize(("clients", "needed"), [(24, 1), (60, 3)])
def test_where_caps_are_not_moved_an_engine_is_full_at_what_it_admits(clients: int, needed: int) -> None:
    """The objective would want 14 sequences: missed, it is no reason for replicas, and a request that is on
    its way in waits for no room.
    """
    limits = replace(WIDE, tuning=TuningMode.OFF)
    fleet = Replicas(clients=lambda _: clients, limits=limits, cap=32, best=14, on_their_way=1).run(400)
    assert fleet.replicas == needed


def test_a_recommendation_stands_as_long_as_the_demand() -> None:
    fleet = Replicas(limits=replace(WIDE, scaling=ScalingMode.RECOMMEND))
    fleet.rate = lambda t: 2.5 * fleet.serves
    fleet.run(300)
    assert fleet.scales == []
    late = [a.recommended for t, a in fleet.answers if t > 100 and a.recommended is not None]
    assert min(late) >= 3


@given(
    load=st.floats(0.2, 6.0),
    tokens=st.sampled_from([50.0, 200.0, 800.0]),
    count=st.sampled_from([1, 3, 6]),
    slope_error=st.floats(0.5, 2.0),
    noise=st.floats(0.03, 0.10),
    tick_s=st.sampled_from([1.0, 2.0, 5.0]),
    cold_start_s=st.sampled_from([30.0, 60.0, 120.0, 600.0]),
    dropped=st.sampled_from([0.0, 0.3]),
    tells=st.booleans(),
    waits=st.booleans(),
    seed=st.integers(0, 10_000),
)
@example(
    load=5.75,
    tokens=800.0,  # 40 s long: it takes longer than STILL_S to see that all in hand were replaced
    count=1,
    slope_error=1.0,
    noise=0.078125,
    tick_s=1.0,
    cold_start_s=60.0,
    dropped=0.0,
    tells=False,
    waits=True,
    seed=955,
)
@example(
    load=2.0,
    tokens=50.0,
    count=1,
    slope_error=1.6875,  # measured by while it was wrong, and learned since
    noise=0.03,
    tick_s=1.0,
    cold_start_s=30.0,
    dropped=0.0,
    tells=False,
    waits=False,
    seed=0,
)
@FEW
def test_a_steady_load_sees_no_reversal_in_half_an_hour(
    load: float,
    tokens: float,
    count: int,
    slope_error: float,
    noise: float,
    tick_s: float,
    cold_start_s: float,
    dropped: float,
    tells: bool,
    waits: bool,
    seed: int,
) -> None:
    """Whatever the model believed, the noise, the cold start, the tick, and with scrapes that are lost."""
    fleet = Replicas(
        limits=WIDE,
        tokens=tokens,
        count=count,
        slope_error=slope_error,
        noise=noise,
        tick_s=tick_s,
        cold_start_s=cold_start_s,
        dropped=dropped,
        tells_arrivals=tells,
        seed=seed,
    )
    if waits:
        fleet.clients = lambda _: int(load * fleet.cap)
    else:
        fleet.rate = lambda _: load * fleet.serves
    settled = 900.0 + 2.0 * cold_start_s
    fleet.run(settled)
    before = fleet.replicas
    fleet.run(settled + 1800.0)
    late = [n for t, n in fleet.scales if t > settled]
    assert reversals([before, *late]) == 0, fleet.scales


@pytest.mark.parametrize("load", [0.95, 1.9, 2.9])
@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_stays_wrong_is_found_out_once(load: float, seed: int) -> None:
    """It says that one replica less is enough; they are full then, and what they make is measured."""
    fleet = Replicas(limits=WIDE, count=6, slope_error=0.5, refit_s=math.inf, seed=seed)
    fleet.rate = lambda _: load * fleet.serves
    fleet.run(7200)
    assert reversals([6, *(n for _, n in fleet.scales)]) <= 1
    assert fleet.replicas >= load
