"""One demand under several policies: the same requests for all, and figures that add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llamaserver.api.enums import Statistic
from llamaserver.control import Objective
from llamaserver.simulate.compare import Scenario, compare, run
from llamaserver.simulate.demand import Demand, Request
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.hindsight import best_cap, best_pair, holds
from llamaserver.simulate.outcome import FIGURES, Outcome
from llamaserver.simulate.policies import policies, policy
from llamaserver.simulate.profiles import CPU_24M, H100_8B
from llamaserver.simulate.report.table import refusals
from llamaserver.simulate.rules.caps import Static
from llamaserver.simulate.shapes import Size, shaped


def scenario(name: str, duration_s: float = 90.0, **more: object) -> Scenario:
    size = Size(duration_s, 40, 3.0, 120, 150)
    made = Scenario(lambda seed: shaped(name, size, seed), CPU_24M, Objective(0.030, Statistic.P95))
    return replace(made, **more)  # type: ignore[arg-type]


def test_the_law_holds_what_the_default_misses() -> None:
    default, ours = compare(scenario("steady", 150.0), policies("default,llamaserver"))
    assert default.mean.violated_window_share > 0.9
    assert ours.mean.violated_window_share <= 0.1
    assert ours.mean.itl_p95_s < default.mean.itl_p95_s
    assert ours.mean.cap_changes > 0 == default.mean.cap_changes


def test_a_run_comes_out_again() -> None:
    one, again = (compare(scenario("poisson"), policies("aimd"))[0] for _ in range(2))
    assert one.mean == again.mean


def test_every_request_is_served_or_still_waits() -> None:
    """A request served by any policy is that of the trace: nothing is lost when replicas come and go."""
    size = Size(240.0, 0, 6.0, 120, 100)
    made = Scenario(
        lambda seed: shaped("step", size, seed),
        CPU_24M,
        Objective(0.030, Statistic.P95),
        replicas_max=4,
        cold_start_s=20.0,
    )
    demand = made.demand(1)
    quiet = replace(demand, duration_s=600.0)
    traced = run(made, quiet, policy("llamaserver-cap+hpa"), 1)
    assert traced.outcome.replica_changes > 1
    assert traced.moments[-1].replicas == 1
    assert traced.outcome.waiting_at_end == 0
    alone = run(made, quiet, policy("default"), 1).outcome
    assert traced.outcome.gpu_hours > alone.gpu_hours == pytest.approx(600 / 3600)


def test_gpus_of_a_replica_count() -> None:
    four = scenario("poisson", profile=replace(CPU_24M, gpus=4))
    one = scenario("poisson")
    assert compare(four, policies("default"))[0].mean.gpu_hours == pytest.approx(
        4 * compare(one, policies("default"))[0].mean.gpu_hours
    )


def test_who_still_waits_counts_with_its_age() -> None:
    """A cap that hides failure in the queue is seen in the first token."""
    requests = [Request(21.0 + 0.01 * i, 50, 400) for i in range(300)]
    made = scenario("poisson", demand=lambda _: Demand("burst", 60.0, requests))
    traced = run(made, made.demand(1), policy("default").settled(Static(1)), 1)
    assert traced.outcome.waiting_at_end > 250
    assert traced.outcome.ttft_p50_s > 30


def test_requests_that_are_too_long_are_counted_and_the_others_served() -> None:
    requests = [Request(0.5 * i, 5000 if i % 3 == 0 else 50, 40) for i in range(90)]
    made = scenario("poisson", demand=lambda _: Demand("some too long", 60.0, requests))
    outcome = run(made, made.demand(1), policy("default"), 1).outcome
    assert (outcome.refused, outcome.waiting_at_end) == (30, 0)
    assert outcome.tokens_per_s > 30
    assert "30 requests" in refusals([outcome], 2048)
    assert refusals([replace(outcome, refused=0.0)], 2048) == ""


def test_where_all_requests_are_too_long_it_is_said_how_to_cure_it() -> None:
    requests = [Request(1.0 * i, 5000, 40) for i in range(9)]
    made = scenario("poisson", demand=lambda _: Demand("all too long", 60.0, requests))
    with pytest.raises(SimulationError, match="raise max_model_len"):
        run(made, made.demand(1), policy("default"), 1)


def test_hindsight_finds_the_largest_cap_that_holds() -> None:
    tried: list[int] = []

    def outcome(static: Static) -> Outcome:
        assert static.cap is not None
        tried.append(static.cap)
        missed = 0.0 if static.cap <= 77 else 1.0
        return made(missed, 100.0 * static.cap)

    assert best_cap(H100_8B, outcome) == Static(77)
    assert len(tried) <= 10


def test_under_an_open_loop_hindsight_does_not_take_a_cap_for_what_it_puts_off() -> None:
    """What a small cap puts off counts later: it seems to make a little more, and keeps all waiting."""

    def outcome(static: Static) -> Outcome:
        assert static.cap is not None
        return made(0.0 if static.cap <= 77 else 1.0, 1620.0 - 0.1 * static.cap)

    assert best_cap(H100_8B, outcome) == Static(77)


def test_hindsight_finds_a_pair_where_no_cap_holds() -> None:
    def outcome(static: Static) -> Outcome:
        assert static.cap is not None
        chunk = 8192 if static.budget is None else static.budget - static.cap
        return made(0.0 if chunk <= 200 and static.cap <= 50 else 1.0, static.cap + 0.1 * min(chunk, 128))

    found = best_pair(H100_8B, outcome)
    assert found.cap == 50
    assert found.budget is not None
    assert 64 <= found.budget - 50 <= 200


def test_where_nothing_holds_hindsight_takes_the_least_bad() -> None:
    def outcome(static: Static) -> Outcome:
        assert static.cap is not None
        return made(0.5 + static.cap / 1000, 100.0)

    found = best_cap(H100_8B, outcome)
    assert found == Static(1)
    assert not holds(outcome(found))


def made(missed: float, tokens_per_s: float) -> Outcome:
    figures = dict.fromkeys(FIGURES, 0.0)
    return Outcome(**{**figures, "violated_window_share": missed, "tokens_per_s": tokens_per_s})
