"""Which replicas go: the laws of the choice, and that Kubernetes' own order makes the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.control.victims import Candidate, Stage, unseen, victims

COST = -1

loads = st.none() | st.integers(0, 300)
pods = st.builds(Candidate, st.just(""), st.sampled_from(Stage), loads, st.floats(0, 2e9)).flatmap(
    lambda pod: st.text("abcdef0123456789", min_size=5, max_size=5).map(lambda name: replace(pod, name=name))
)
fleets = st.lists(pods, max_size=12, unique_by=lambda pod: pod.name)


def ready(name: str, load: int | None, made_at: float = 0.0) -> Candidate:
    return Candidate(name, Stage.READY, load, made_at)


def names(chosen: Sequence[Candidate]) -> list[str]:
    return [pod.name for pod in chosen]


@given(fleets, st.integers(-2, 14))
def test_as_many_go_as_are_to_go(fleet: list[Candidate], number: int) -> None:
    going = victims(fleet, number)
    assert len(going) == min(max(0, number), len(fleet))
    assert len(set(names(going))) == len(going)
    assert set(going) <= set(fleet)


@given(fleets, st.integers(1, 12))
def test_nobody_goes_before_one_that_would_lose_less(fleet: list[Candidate], number: int) -> None:
    going = victims(fleet, number)
    staying = [pod for pod in fleet if pod not in going]
    for one in going:
        for other in staying:
            assert one.stage <= other.stage
            if one.stage is other.stage and other.load is not None:
                assert one.load is not None, "what is not known is not idle"
                assert one.load <= other.load


@given(fleets, st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_same_fleet_gives_the_same_answer(fleet: list[Candidate], number: int, draw: object) -> None:
    shuffled = list(fleet)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]
    assert victims(shuffled, number) == victims(fleet, number)


@given(fleets, st.integers(1, 12))
def test_one_more_to_go_changes_nobody_who_goes_already(fleet: list[Candidate], number: int) -> None:
    assert victims(fleet, number + 1)[:number] == victims(fleet, number)


@given(fleets, st.integers(1, 12), st.randoms(use_true_random=False))
def test_kubernetes_takes_the_chosen_ones(fleet: list[Candidate], number: int, draw: object) -> None:
    """By stage, then by cost, then by what the choice knows nothing of: here, by lot."""
    going = victims(fleet, number)
    lots = list(range(len(fleet)))
    draw.shuffle(lots)  # type: ignore[attr-defined]
    lot = dict(zip(names(fleet), lots, strict=True))
    order = sorted(fleet, key=lambda pod: (pod.stage, COST if pod in going else 0, lot[pod.name]))
    assert set(order[: len(going)]) == set(going)


def test_a_pod_that_serves_nobody_yet_goes_before_an_idle_one() -> None:
    fleet = [ready("idle", 0), Candidate("loading", Stage.NOT_READY, None, 0.0)]
    assert names(victims([*fleet, Candidate("pulling", Stage.PENDING, None, 0.0)], 2)) == [
        "pulling",
        "loading",
    ]


def test_among_equals_the_youngest_goes() -> None:
    assert names(victims([ready("old", 2, 10.0), ready("young", 2, 20.0)], 1)) == ["young"]


@pytest.mark.parametrize(
    ("fleet", "number", "expected"),
    [
        ([ready("a", 5), ready("b", 3)], 1, ()),
        ([ready("a", 5), ready("b", None)], 1, ("b",)),
        ([ready("a", None), Candidate("b", Stage.PENDING, None, 0.0)], 1, ()),
        ([ready("a", None), Candidate("b", Stage.PENDING, None, 0.0)], 2, ("a",)),
    ],
)
def test_a_load_that_is_not_known_matters_only_where_a_ready_pod_has_to_go(
    fleet: list[Candidate], number: int, expected: tuple[str, ...]
) -> None:
    assert unseen(fleet, victims(fleet, number)) == expected
