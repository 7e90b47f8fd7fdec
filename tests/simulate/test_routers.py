"""Requests go where their router says, and only to replicas that serve."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api.enums import ScalingMode, Statistic
from llamaserver.control import Limits, Objective
from llamaserver.simulate.demand import Request
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.faults import PodKilled
from llamaserver.simulate.prefixes import BLOCK
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.routers import LEAST_LOADED, PREFIX, ROUTERS, Prefix, RoundRobin, Router
from llamaserver.simulate.shapes import Size, shaped
from llamaserver.simulate.world import Orders, World

MEAN_20 = Objective(0.020, Statistic.MEAN)
FIXED = Limits(scaling=ScalingMode.FIXED)


def fleet(count: int) -> dict[str, Engine]:
    return {f"pod-{i}": Engine(CPU_24M) for i in range(1, count + 1)}


def chosen(router: Router, engines: dict[str, Engine], *hash_ids: int) -> str:
    engine = router.choose(engines, hash_ids)
    return next(name for name, one in engines.items() if one is engine)


def conversations(turns: int, count: int, seed: int) -> list[Request]:
    """So many of each, in turn, all with one block in the beginning that they share."""
    rng, made = random.Random(seed), list[Request]()
    for turn in range(turns):
        for one in range(count):
            ids = (0, *(1000 * (one + 1) + i for i in range(turn + 1)))
            made.append(Request(len(made) * 0.4 + rng.random() * 0.3, BLOCK * len(ids) + 20, 20, ids))
    return made


def run(router: str, seed: int = 1, **more: object) -> World:
    """Three replicas under two minutes of requests."""
    requests = shaped("poisson", Size(120.0, 0, 4.0, 100, 60), seed).requests
    settings: dict[str, object] = {"requests": requests, "replicas": 3, "cold_start_s": 20.0, **more}
    return World(MEAN_20, FIXED, seed=seed, router=router, **settings)  # type: ignore[arg-type]


def begun(world: World) -> list[int]:
    """Requests that each replica got, in the order in which they were started."""
    return [e.arrived + len(e.coming) for e in world.ever()]


@given(st.integers(1, 7), st.integers(0, 60))
def test_round_robin_serves_all_alike_within_one(replicas: int, requests: int) -> None:
    router, engines = RoundRobin(), fleet(replicas)
    counts = Counter(chosen(router, engines) for _ in range(requests))
    assert max(counts.values(), default=0) - min(counts[name] for name in engines) <= 1


def test_round_robin_is_even_in_a_run_where_the_fewest_in_hand_is_not() -> None:
    even, uneven = begun(run("round-robin").run(120)), begun(run(LEAST_LOADED).run(120))
    assert sum(even) == sum(uneven)
    assert max(even) - min(even) <= 1 < max(uneven) - min(uneven)


@given(
    st.sampled_from(sorted(ROUTERS)),
    st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 9), max_size=4, unique=True)), max_size=40),
)
def test_who_does_not_serve_is_sent_nothing(router: str, asked: list[tuple[int, list[int]]]) -> None:
    """Replicas come and go between any two requests."""
    routing, everybody = ROUTERS[router].make(7), fleet(5)
    for serving, ids in asked:
        engines = dict(list(everybody.items())[-serving:])
        assert chosen(routing, engines, *ids) in engines


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_a_replica_that_starts_or_drains_gets_no_request(router: str) -> None:
    world = run(router, faults=[PodKilled(40.0, 60.0)]).run(80)
    assert list(world.engines) == ["pod-2", "pod-3", "pod-4"]
    killed, new = world.retired[0], world.engines["pod-4"]
    assert all(at < 40.5 for at, _ in killed.waits)
    assert min((at for at, _ in new.queued), default=60.0) >= 60.0
    world._apply(Orders({}, 2))
    (leaving,) = world.draining
    before = leaving.arrived
    world.run(120)
    assert leaving.arrived == before
    assert not leaving.coming


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_every_request_is_served_once(router: str) -> None:
    world = run(router)
    wanted = len(world.requests)  # type: ignore[arg-type]
    world.run(240)
    assert sum(len(e.waits) for e in world.ever()) == wanted


def test_the_same_seed_goes_the_same_ways_and_another_one_others() -> None:
    one, again, other = (ROUTERS["random"].make(seed) for seed in (3, 3, 4))
    engines = fleet(3)
    ways = [[chosen(router, engines) for _ in range(50)] for router in (one, again, other)]
    assert ways[0] == ways[1] != ways[2]
    assert set(ways[0]) == set(engines)
    first, second = (run("random", 5).run(120) for _ in range(2))
    assert begun(first) == begun(second)


def test_a_prompt_goes_where_its_beginning_was_and_elsewhere_when_that_is_gone() -> None:
    router, engines = Prefix(), fleet(3)
    engines["pod-1"].submit(0.0, 100, 10)
    home = chosen(router, engines, 1, 2, 3)
    assert home == "pod-2", "nobody knows it, and these have the fewest in hand"
    engines[home].submit(0.0, 100, 10)
    engines[home].submit(0.0, 100, 10)
    assert chosen(router, engines, 1, 2, 3, 4) == home
    assert chosen(router, engines, 1, 7, 8, 9) == "pod-3", "one block in four is not enough"
    assert chosen(router, engines, 1, 2) == home
    del engines[home]
    moved = chosen(router, engines, 1, 2, 3, 4, 5)
    assert moved != home
    assert chosen(router, engines, 1, 2, 3, 4, 5, 6) == moved


def test_conversations_stay_where_they_began_and_find_more_in_the_cache() -> None:
    profile = replace(CPU_24M, max_model_len=8192, kv_tokens=40_000)
    requests = conversations(turns=5, count=12, seed=2)
    hits = {}
    for router in (PREFIX, "random"):
        world = World(
            MEAN_20, FIXED, profile, requests=requests, replicas=3, prefix_cache=True, router=router
        ).run(120)
        hits[router] = sum(e.prefix_hits for e in world.ever())
        assert sum(len(e.waits) for e in world.ever()) == len(requests)
    assert hits[PREFIX] > 1.5 * hits["random"]
