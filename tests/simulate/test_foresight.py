"""The oracle for replicas: it knows the trace and what a replica serves, and asks one cold start ahead."""

from __future__ import annotations

import pytest

from llamaserver.api.enums import Statistic
from llamaserver.control import Objective
from llamaserver.simulate.compare import Scenario, compare
from llamaserver.simulate.demand import Demand, Request, constant
from llamaserver.simulate.foresight import Serves, foresight
from llamaserver.simulate.policies import policies
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.rules import FleetSeen
from llamaserver.simulate.shapes import Size, shaped

SERVES = Serves(tokens_per_s=1000.0, sequences=20.0)


def step(at: float, before: float, after: float) -> Demand:
    """Requests of 100 tokens at even distances."""
    requests, t = [], 0.0
    while t < 600.0:
        requests.append(Request(t, 10, 100))
        t += 1.0 / (before if t < at else after)
    return Demand("step", 600.0, requests)


def test_it_asks_one_cold_start_before_the_load_is_there_and_lets_go_when_it_has_gone() -> None:
    plan = foresight(step(300.0, 8.0, 25.0), CPU_24M, SERVES, 60.0).plan
    assert plan == ((0.0, 1), (240.0, 3))
    assert foresight(step(300.0, 25.0, 8.0), CPU_24M, SERVES, 60.0).plan == ((0.0, 3), (300.0, 1))


def test_clients_that_wait_are_planned_by_what_a_replica_runs() -> None:
    demand = Demand("streams", 300.0, streams=constant(50))
    assert foresight(demand, CPU_24M, SERVES, 60.0).plan == ((0.0, 3),)


@pytest.mark.parametrize(("now", "wanted"), [(0.0, 1), (239.0, 1), (240.0, 3), (900.0, 3)])
def test_the_plan_is_followed_by_the_clock_alone(now: float, wanted: int) -> None:
    rule = foresight(step(300.0, 8.0, 25.0), CPU_24M, SERVES, 60.0)
    assert rule.step(FleetSeen(now, 1, 0, (0,), (0.0,)))[1] == wanted


def test_beside_the_laws_caps_it_is_cheaper_than_anybody_and_waits_for_nothing() -> None:
    size = Size(300.0, 0, 3.0, 100, 150)
    scenario = Scenario(
        lambda seed: shaped("step", size, seed),
        CPU_24M,
        Objective(0.030, Statistic.P95),
        replicas_max=6,
        cold_start_s=30.0,
    )
    law, oracle = compare(scenario, policies("llamaserver,llamaserver+oracle"))
    assert oracle.mean.gpu_hours <= law.mean.gpu_hours
    assert oracle.mean.ttft_p95_s <= law.mean.ttft_p95_s
