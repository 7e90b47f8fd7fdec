"""A history rebuilt: what is known exactly comes out exactly, and what is not known is said."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api.enums import LatencyScope, Statistic
from llamaserver.control import Objective
from llamaserver.observe.series import SCRAPED_AT, Recorded, Series
from llamaserver.observe.types import Distribution
from llamaserver.simulate.demand import Request
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.profiles import CPU_24M, PROFILES
from llamaserver.simulate.replay.fit import fitted
from llamaserver.simulate.replay.history import History
from llamaserver.simulate.replay.judged import beyond, bounds, was
from llamaserver.simulate.replay.lengths import lengths, pools
from llamaserver.simulate.replay.limits import limits
from llamaserver.simulate.replay.rebuild import arrivals, rebuilt
from llamaserver.simulate.replay.replay import Question, Replay, replay
from llamaserver.simulate.replay.report import document, text
from llamaserver.simulate.replay.timeline import history
from llamaserver.simulate.rules.caps import Static
from llamaserver.simulate.shapes import Size, shaped
from llamaserver.simulate.world import World
from recording import EPOCH, Recording, record

P95 = Objective(0.030, Statistic.P95)
SPAN_S = 300.0


def asked(rate: float = 2.0, shape: str = "ramp") -> list[Request]:
    return list(shaped(shape, Size(SPAN_S, 0, rate, 120, 150), 1).requests)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record(asked(), SPAN_S)


def of(recorded: Recorded, step_s: float = 10.0) -> History:
    return history(recorded, EPOCH, SPAN_S, step_s)


def changed(
    recorded: Recorded, keep: Callable[[str, float], bool], value: Callable[[float], float] = lambda v: v
) -> dict[str, list[Series]]:
    """The points for which `keep(name, seconds from the start)`."""
    return {
        name: [Series(s.labels, [(t, value(v)) for t, v in s.points if keep(name, t - EPOCH)]) for s in some]
        for name, some in recorded.items()
    }


def came(told: History) -> float:
    return sum(c.requests for r in told.replicas for c in arrivals(r))


def test_all_requests_and_tokens_are_there(recording: Recording) -> None:
    (engine,) = recording.world.ever()
    told = of(recording.series())
    assert came(told) == engine.arrived
    assert sum(i.generated for i in told.intervals) == engine.generation_tokens
    demand = rebuilt(told, "m", 1)
    assert len(demand.requests) == engine.arrived
    assert [r.at for r in demand.requests] == sorted(r.at for r in demand.requests)
    assert sum(r.output for r in demand.requests) == pytest.approx(sum(r.output for r in asked()), rel=0.05)
    assert sum(r.prompt for r in demand.requests) == pytest.approx(sum(r.prompt for r in asked()), rel=0.05)


def test_requests_come_when_they_came(recording: Recording) -> None:
    """In every ten seconds as many as in truth, whatever the queue was then."""
    demand = rebuilt(of(recording.series()), "m", 1)
    for k in range(int(SPAN_S / 10)):
        truly = sum(10 * k < r.at <= 10 * (k + 1) for r in asked())
        assert sum(10 * k < r.at <= 10 * (k + 1) for r in demand.requests) == pytest.approx(truly, abs=1)


def test_the_same_seed_rebuilds_the_same(recording: Recording) -> None:
    told = of(recording.series())
    assert rebuilt(told, "m", 7).requests == rebuilt(told, "m", 7).requests
    assert rebuilt(told, "m", 7).requests != rebuilt(told, "m", 8).requests


def test_a_gap_loses_no_request_and_is_told(recording: Recording) -> None:
    told = of(changed(recording.series(), lambda _, t: not 100 < t < 160))
    assert came(told) == came(of(recording.series()))
    assert [round(g.seconds) for g in told.gaps] == [60]
    assert any("1 gaps of 60 s" in s for s in limits(told, was(told, P95), P95))


def test_a_scrape_that_was_told_twice_counts_once(recording: Recording) -> None:
    """A range query repeats the last value for minutes when a target is not scraped any more."""
    whole = recording.series()
    stuck = {
        name: [
            Series(s.labels, [*s.points, *((s.points[-1][0] + 10 * k, s.points[-1][1]) for k in (1, 2, 3))])
            for s in some
        ]
        for name, some in whole.items()
    }
    assert of(stuck).intervals == of(whole).intervals


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf])
def test_what_is_no_number_is_as_if_it_were_missing(recording: Recording, value: float) -> None:
    whole = recording.series()
    broken = {
        name: [
            Series(
                s.labels, [(t, value if t == EPOCH + 100 and name != SCRAPED_AT else v) for t, v in s.points]
            )
            for s in some
        ]
        for name, some in whole.items()
    }
    assert came(of(broken)) == came(of(whole))
    assert [round(i.seconds) for i in of(broken).intervals].count(20) == 1


def test_a_restart_counts_from_zero() -> None:
    def restart(world: World) -> None:
        if world.now == 150.0:
            world.engines["pod-1"].reset()

    requests = asked(1.0)
    told = of(record(requests, SPAN_S, meddle=restart).series())
    assert told.restarts == 1
    assert all(i.finished >= 0 and i.generated >= 0 for i in told.intervals)
    assert came(told) <= len(requests)
    assert came(told) >= len(requests) - 25  # what came since the last scrape is lost
    assert any(s.startswith("1 restarts") for s in limits(told, was(told, P95), P95))


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("request_success_total", "vllm:request_success_total"),
        ("num_requests_waiting", "vllm:num_requests_waiting"),
        ("inter_token_latency_seconds_bucket", "vllm:inter_token_latency_seconds_bucket"),
    ],
)
def test_what_is_needed_and_missing_is_named(recording: Recording, gone: str, says: str) -> None:
    recorded = {name: some for name, some in recording.series().items() if name != gone}
    with pytest.raises(SimulationError, match=f"kept no {says}.*metric_relabel_configs"):
        of(recorded)


def test_what_is_good_to_have_and_missing_is_told(recording: Recording) -> None:
    names = ("request_prompt_tokens", "request_generation_tokens", "time_to_first_token", "num_preemptions")
    told = of({n: s for n, s in recording.series().items() if not n.startswith(names)})
    told_limits = " ".join(limits(told, was(told, P95), P95))
    assert "Of lengths only means are known" in told_limits
    assert "vllm:num_preemptions_total" in told_limits
    demand = rebuilt(told, "m", 1)
    assert sum(r.output for r in demand.requests) == pytest.approx(sum(r.output for r in asked()), rel=0.1)


def test_too_few_scrapes_are_refused(recording: Recording) -> None:
    with pytest.raises(SimulationError, match="too few points to judge by: widen --start and --end"):
        of(changed(recording.series(), lambda _, t: t <= 20))
    with pytest.raises(SimulationError, match="no replica was scraped twice"):
        of(changed(recording.series(), lambda _, t: t == 20))


def test_an_idle_history_is_refused() -> None:
    with pytest.raises(SimulationError, match="no request finished"):
        rebuilt(of(record([], SPAN_S).series()), "m", 1)


def test_old_names_are_read(recording: Recording) -> None:
    old = {
        name.replace("inter_token_latency_seconds", "time_per_output_token_seconds").replace(
            "kv_cache", "gpu_cache"
        ): s
        for name, s in recording.series().items()
    }
    assert of(old).intervals == of(recording.series()).intervals


# --- lengths and latencies by bucket ----------------------------------------------------------------------
EDGES = (1.0, 2.0, 5.0, 10.0, 50.0, 200.0, math.inf)


@st.composite
def distributions(draw: st.DrawFn) -> tuple[Distribution, list[float]]:
    """A histogram, and the observations that it is of."""
    values = draw(st.lists(st.floats(0.5, 400.0), min_size=1, max_size=60))
    edges = (0.0, *EDGES)
    counts = tuple(sum(low < v <= high for v in values) for low, high in pairwise(edges))
    return Distribution(len(values), sum(values), EDGES, counts, exact=False), values


@given(distributions())
def test_lengths_that_are_drawn_have_the_mean_that_was(made: tuple[Distribution, list[float]]) -> None:
    d, values = made
    drawn, rng = lengths(d), random.Random(1)
    assert drawn is not None
    mean, n = sum(values) / len(values), 4000
    some = [drawn.draw(rng) for _ in range(n)]
    assert min(some) >= 1
    spread = max(some) / math.sqrt(n)
    assert sum(some) / n == pytest.approx(mean, abs=5 * spread + 0.6)


@given(distributions(), st.floats(0.01, 0.99), st.floats(0.6, 300.0))
def test_what_buckets_allow_holds_the_truth(
    made: tuple[Distribution, list[float]], q: float, target: float
) -> None:
    d, values = made
    low, high = bounds(d, q)
    truth = sorted(values)[max(0, math.ceil(q * len(values) - 1e-9) - 1)]
    assert low <= truth <= high
    least, most = beyond(d, target)
    share = sum(v > target for v in values) / len(values)
    assert least - 1e-9 <= share <= most + 1e-9


@pytest.mark.parametrize("edge", [2.0, 10.0, 50.0])
def test_at_an_edge_the_share_is_exact(edge: float) -> None:
    d = Distribution(10, 100.0, EDGES, (1, 2, 3, 1, 1, 1, 1), exact=False)
    least, most = beyond(d, edge)
    assert least == most


# --- the whole --------------------------------------------------------------------------------------------
def question(**more: Any) -> Question:
    return replace(Question("m", P95, PROFILES["CPU"], ()), **more)


@pytest.fixture(scope="module")
def answered(recording: Recording) -> Replay:
    return replay(of(recording.series()), question())


def test_the_plant_makes_what_the_engine_made(answered: Replay, recording: Recording) -> None:
    assert answered.trusted
    assert abs(answered.errors["itl_mean"]) < 0.05
    low, high = answered.was.missed
    assert 0.0 < low <= high
    assert low - 0.1 <= answered.as_it_was.outcome.violated_window_share <= high + 0.1


def test_a_plant_of_another_machine_is_not_trusted(recording: Recording) -> None:
    slow = replace(CPU_24M, a=2 * CPU_24M.a, b=2 * CPU_24M.b)
    found = replay(of(recording.series()), question(calibrated=replace(PROFILES["CPU"], profile=slow)))
    assert not found.trusted
    assert "DO NOT TRUST" in text(found)
    assert document(found)["plant"]["trusted"] is False


def test_the_answer_is_for_people_and_for_programs(answered: Replay) -> None:
    told = text(answered)
    assert "the history" in told
    assert "The law would have set caps of" in told
    assert "What this history cannot tell:" in told
    found = json.loads(json.dumps(document(answered), allow_nan=False))
    assert found["history"]["itl_mean_s"] == pytest.approx(found["as_it_was"]["itl_mean_s"], rel=0.05)
    assert found["limits"] == list(answered.limits)


def test_without_an_objective_nothing_is_missed(recording: Recording) -> None:
    found = document(replay(of(recording.series()), question(objective=Objective(None))))
    assert found["history"]["violated_window_share"] == [None, None]
    assert found["llamaserver"]["violated_window_share"] is None


def test_a_history_of_answers_without_latencies_is_refused(recording: Recording) -> None:
    told = of(recording.series())
    silent = [replace(r, intervals=[replace(i, itl=None) for i in r.intervals]) for r in told.replicas]
    with pytest.raises(SimulationError, match=r"no inter-token latency was recorded.*choose another time"):
        replay(replace(told, replicas=silent), question())


def test_replicas_are_those_that_were_there() -> None:
    """Two replicas are played as two, and the law may do with one what they did."""
    told = of(record(asked(1.0), SPAN_S, replicas=2).series())
    found = replay(told, question())
    assert set(found.serving) == {2}
    assert {m.replicas for m in found.as_it_was.moments} == {2}
    assert found.was.replica_hours == pytest.approx(2 * SPAN_S / 3600)
    assert (found.least, found.most) == (1, 2)
    assert found.law.outcome.gpu_hours <= found.as_it_was.outcome.gpu_hours


def test_a_replica_that_ended_is_gone() -> None:
    two = record(asked(1.0), SPAN_S, replicas=2)
    kept = [(t, pod, said) for t, pod, said in two.scrapes if pod == "pod-1" or t <= EPOCH + 150]
    told = of(Recording(kept).series())
    assert told.serving() == [2] * 15 + [1] * 15


def test_a_cap_that_the_tuner_told_is_in_force(recording: Recording) -> None:
    recorded = dict(record(asked(1.5, "step"), SPAN_S, static=Static(8)).series())
    running = recorded["num_requests_running"]
    labels = {k: v for k, v in running[0].labels.items() if k in ("engine", "pod", "instance")}
    recorded["llamaserver_max_num_active_seqs"] = [Series(labels, [(t, 8.0) for t, _ in running[0].points])]
    found = replay(of(recorded), question())
    assert {m.cap for m in found.as_it_was.moments if m.at > 10.0} == {8}
    assert abs(found.errors["itl_mean"]) < 0.1


# --- a plant from the history ------------------------------------------------------------------------------
def test_a_fitted_plant_makes_the_latencies_that_were(recording: Recording) -> None:
    told = of(recording.series())
    on = fitted(told, {"max_num_seqs": 32, "budget": 2048})
    assert on.assumed == []
    assert on.calibrated.profile.kv_tokens == CPU_24M.kv_tokens
    found = replay(told, question(calibrated=on.calibrated))
    assert abs(found.errors["itl_mean"]) < 0.05


def test_a_history_that_never_changes_fits_nothing() -> None:
    told = of(record(asked(6.0, "poisson"), SPAN_S, static=Static(4)).series())
    with pytest.raises(SimulationError, match=r"--profile H100-8B"):
        fitted(told, {})


def test_what_vllm_does_not_tell_is_assumed_aloud(recording: Recording) -> None:
    assert any(
        "budget 2048: vLLM does not tell it" in what for what in fitted(of(recording.series()), {}).assumed
    )


def test_without_the_size_of_the_cache_it_has_to_be_given(recording: Recording) -> None:
    told = of({n: s for n, s in recording.series().items() if n != "cache_config_info"})
    with pytest.raises(SimulationError, match="--profile fit,kv_tokens=400000"):
        fitted(told, {})
    assert fitted(told, {"kv_tokens": 9000}).calibrated.profile.kv_tokens == 9000


def test_pools_follow_what_requests_are_like() -> None:
    """Short outputs in the first half, long ones in the second."""
    requests = [Request(i * 0.2, 100, 20) for i in range(750)]
    requests += [Request(150 + i * 0.8, 100, 150) for i in range(180)]
    found = pools(of(record(requests, SPAN_S).series()))
    rng = random.Random(1)
    early, late = ([p.outputs.draw(rng) for _ in range(500)] for p in (found[0], found[-1]))
    assert sum(early) / 500 == pytest.approx(20, rel=0.2)
    assert sum(late) / 500 > 60


REQUESTS = Objective(0.030, Statistic.P95, itl_scope=LatencyScope.REQUEST)


def test_a_history_is_judged_by_its_requests_where_the_objective_is(recording: Recording) -> None:
    told = of(recording.series())
    found = was(told, REQUESTS)
    assert 0 < len(found.steps) <= len(was(told, P95).steps)
    paces = sorted(pace for e in recording.world.ever() for _, pace, _ in e.answers)
    lows, highs = zip(*(s.statistic for s in found.steps), strict=True)
    assert min(lows) <= paces[int(0.95 * len(paces))] <= max(highs)
    assert not any("objective of requests" in s for s in limits(told, found, REQUESTS))


def test_a_history_that_does_not_tell_them_says_so(recording: Recording) -> None:
    told = of(changed(recording.series(), lambda name, _: "request_time_per_output_token" not in name))
    found = was(told, REQUESTS)
    assert found.steps == []
    assert any("vllm:request_time_per_output_token_seconds" in s for s in limits(told, found, REQUESTS))
