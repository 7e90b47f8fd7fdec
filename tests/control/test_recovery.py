"""A pod whose engine hangs is replaced one at a time, on testimony alone, and ever more rarely."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.control import StalledEngine
from llamaserver.control.recovery import (
    APART_S,
    FIRST_PAUSE_S,
    FORGOTTEN_S,
    LONGEST_PAUSE_S,
    Past,
    Replace,
    Replica,
    Standing,
    Wait,
    pause_s,
    replacement,
)
from llamaserver.observe import Doubt

NOW = 1_800_000_000.0
NEVER = Past()


def hung(pod: str = "a", **changes: Any) -> StalledEngine:
    told = StalledEngine(
        pod, f"uid-{pod}/0/boot", 400.0, 120.0, 200, 8, 2, silent=False, doubt=None, witnessed=True
    )
    return replace(told, **changes)


def fleet(*names: str, **changes: Any) -> Standing:
    replicas = tuple(Replica(name, True, f"uid-{name}/0") for name in names or ("a", "b"))
    return replace(Standing(len(replicas), replicas, 0), **changes)


def decide(
    *stalled: StalledEngine, at: Standing | None = None, past: Past = NEVER, after_s: float = 300.0
) -> Replace | Wait | None:
    return replacement(after_s, stalled, at or fleet(), past, NOW)


def test_a_hung_engine_among_serving_ones_is_replaced_and_the_reason_has_its_evidence() -> None:
    found = decide(hung())
    assert isinstance(found, Replace)
    assert (found.engine.pod, found.count, found.again) == ("a", 1, False)
    assert "no step and no token for 400 s in 200 answers, with 8 requests running" in found.reason


def test_where_none_hangs_nothing_is_said() -> None:
    assert decide() is None


def test_of_two_only_the_one_that_hangs_longest_goes() -> None:
    found = decide(hung("a", still_s=310.0), hung("b", still_s=500.0))
    assert isinstance(found, Replace)
    assert found.engine.pod == "b"


def test_one_that_was_chosen_and_is_still_there_goes_before_any_other() -> None:
    past = Past("a", NOW - 5.0, 3)
    found = decide(hung("a", still_s=310.0), hung("b", still_s=500.0), past=past)
    assert isinstance(found, Replace)
    assert (found.engine.pod, found.again, found.count) == ("a", True, 3)


@pytest.mark.parametrize(
    ("stalled", "why"),
    [
        (hung(doubt=Doubt.METRICS), "/metrics alone"),
        (hung(doubt=Doubt.PROMETHEUS), "Prometheus"),
        (hung(doubt=Doubt.PAUSE_UNKNOWN), "told the engine to pause"),
        (hung(running=0, waiting=0, silent=True), "never heard to have a request in hand"),
        (hung(answers=4), "not been watched for long enough"),
        (hung(still_s=299.0), "if it hangs on"),
        (hung(still_s=400.0, grace_s=500.0), "if it hangs on"),
    ],
)
def test_doubt_keeps_the_pod(stalled: StalledEngine, why: str) -> None:
    found = decide(stalled)
    assert isinstance(found, Wait)
    assert why in found.reason


def test_a_doubtful_one_does_not_hide_a_sure_one() -> None:
    found = decide(hung("a", doubt=Doubt.METRICS, still_s=900.0), hung("b"))
    assert isinstance(found, Replace)
    assert found.engine.pod == "b"


@pytest.mark.parametrize(
    ("standing", "why"),
    [
        (fleet(busy="a rollout is under way"), "a rollout is under way"),
        (fleet(ending=1), "1 pod is still ending"),
        (fleet(ending=2), "2 pods are still ending"),
        (fleet(wanted=3), "2 pods of 3"),
        (fleet(wanted=1), "2 pods of 1"),
        (fleet(replicas=(*fleet("a").replicas, Replica("b", False, ""))), "pod b is not ready"),
        (fleet(replicas=(Replica("a", False, "uid-a/0"), *fleet("b").replicas)), "pod a is not ready"),
    ],
)
def test_while_anything_else_is_under_way_the_pod_stays(standing: Standing, why: str) -> None:
    found = decide(hung(), at=standing)
    assert isinstance(found, Wait)
    assert why in found.reason


@pytest.mark.parametrize("incarnation", ["", "uid-a/1", "uid-other/0"])
def test_testimony_of_another_start_counts_for_nothing(incarnation: str) -> None:
    assert decide(hung(), at=fleet(replicas=(Replica("a", True, incarnation),), wanted=1)) is None


def test_testimony_of_a_pod_that_is_gone_counts_for_nothing() -> None:
    assert decide(hung("c")) is None


@pytest.mark.parametrize(("count", "minutes"), [(1, 10), (2, 20), (3, 40), (6, 320), (7, 360), (99, 360)])
def test_each_replacement_makes_the_next_wait_longer(count: int, minutes: int) -> None:
    assert pause_s(count) == 60 * minutes
    early = decide(hung(), past=Past("gone", NOW - 60 * minutes + 1, count))
    assert isinstance(early, Wait)
    late = decide(hung(), past=Past("gone", NOW - 60 * minutes, count))
    assert isinstance(late, Replace)
    assert late.count == count + 1


def test_a_day_later_the_first_pause_is_the_first_again() -> None:
    found = decide(hung(), past=Past("gone", NOW - FORGOTTEN_S - 1, 9))
    assert isinstance(found, Replace)
    assert found.count == 1


def test_a_pod_that_was_spared_long_ago_and_hangs_anew_is_a_new_case() -> None:
    """Its eviction was refused until the engine got on again."""
    found = decide(hung(), past=Past("a", NOW - FORGOTTEN_S - 1, 2))
    assert isinstance(found, Replace)
    assert (found.again, found.count) == (False, 1)


@pytest.mark.parametrize(
    ("engine", "started_at"),
    [(hung(), float("-inf")), (hung(witnessed=False), NOW - 500.0)],
    ids=["it got on since", "its container was started since"],
)
def test_a_pod_that_was_spared_and_hangs_anew_is_a_new_case_with_its_pause(
    engine: StalledEngine, started_at: float
) -> None:
    replicas = (replace(fleet("a").replicas[0], started_at=started_at), *fleet("b").replicas)
    early = decide(engine, at=fleet(replicas=replicas, wanted=2), past=Past("a", NOW - 599.0, 1))
    assert isinstance(early, Wait)
    assert "10 minutes after the last" in early.reason
    late = decide(engine, at=fleet(replicas=replicas, wanted=2), past=Past("a", NOW - 600.0, 1))
    assert isinstance(late, Replace)
    assert (late.again, late.count) == (False, 2)


def test_one_that_hung_before_anybody_looked_is_the_one_that_was_to_go() -> None:
    """A new leader knows of no progress since, and of no start."""
    replicas = (replace(fleet("a").replicas[0], started_at=NOW - 9000.0), *fleet("b").replicas)
    found = decide(
        hung(witnessed=False), at=fleet(replicas=replicas, wanted=2), past=Past("a", NOW - 500.0, 1)
    )
    assert isinstance(found, Replace)
    assert (found.again, found.count) == (True, 1)


def test_engines_of_several_servers_are_not_replaced_at_once() -> None:
    early = replacement(300.0, [hung()], fleet(), NEVER, NOW, NOW - APART_S + 1)
    assert isinstance(early, Wait)
    assert "another LlamaServer" in early.reason
    assert isinstance(replacement(300.0, [hung()], fleet(), NEVER, NOW, NOW - APART_S), Replace)
    # One that was refused until now is no exception.
    again = Past("a", NOW - 20.0, 1)
    assert isinstance(replacement(300.0, [hung()], fleet(), again, NOW, NOW - APART_S + 1), Wait)
    assert isinstance(replacement(300.0, [hung()], fleet(), again, NOW, NOW - APART_S), Replace)


def test_which_of_a_pods_engines_hangs_is_said() -> None:
    found = decide(hung(engine=1))
    assert isinstance(found, Replace)
    assert found.reason.startswith("engine 1 hangs: ")


def test_a_replacement_dated_in_the_future_is_no_reason_for_another() -> None:
    assert isinstance(decide(hung(), past=Past("gone", NOW + 3600, 1)), Wait)


engines = st.builds(
    hung,
    st.sampled_from("abc"),
    still_s=st.floats(0, 5000),
    grace_s=st.floats(120, 3600),
    answers=st.integers(0, 500),
    running=st.integers(0, 3),
    waiting=st.integers(0, 3),
    doubt=st.sampled_from([None, *Doubt]),
    witnessed=st.booleans(),
)
fleets = st.builds(
    Standing,
    wanted=st.integers(0, 3),
    replicas=st.lists(
        st.builds(
            Replica, st.sampled_from("abc"), st.booleans(), st.sampled_from(["", "uid-a/0", "uid-b/0"])
        ),
        max_size=3,
        unique_by=lambda replica: replica.name,
    ),
    ending=st.integers(0, 1),
    busy=st.sampled_from(["", "a rollout is under way"]),
)
pasts = st.builds(Past, st.sampled_from(["", "a", "b"]), st.floats(NOW - 2e5, NOW + 1e4), st.integers(0, 12))


@given(st.floats(120, 86400), st.lists(engines, max_size=3), fleets, pasts)
@settings(max_examples=500)
def test_whatever_is_said_only_a_whole_fleet_loses_a_pod_and_only_on_sure_testimony(
    after_s: float, stalled: list[StalledEngine], standing: Standing, past: Past
) -> None:
    found = replacement(after_s, stalled, standing, past, NOW)
    if not isinstance(found, Replace):
        assert found is None or (found.reason and found.again_s >= 1.0)
        return
    engine = found.engine
    assert engine in stalled
    assert engine.doubt is None
    assert engine.running + engine.waiting > 0
    assert engine.still_s >= max(after_s, engine.grace_s)
    assert not standing.busy
    assert not standing.ending
    assert len(standing.replicas) == standing.wanted
    assert all(replica.ready for replica in standing.replicas)
    if not found.again:
        assert NOW - past.at >= pause_s(past.count) or NOW - past.at > FORGOTTEN_S


@given(st.lists(st.floats(1.0, 4000.0), min_size=1, max_size=400), st.integers(1, 3))
def test_a_fault_that_every_pod_has_is_answered_ever_more_rarely(gaps: list[float], size: int) -> None:
    """Every engine hangs always, every successor is ready at once, and an operator looks at odd times."""
    names, serial, now, past = [f"p{i}" for i in range(size)], size, NOW, Past()
    done: list[float] = []
    for gap in gaps:
        now += gap
        found = replacement(300.0, [hung(name) for name in names], fleet(*names), past, now)
        if isinstance(found, Replace):
            assert not found.again
            past = Past(found.engine.pod, now, found.count)
            names = [name for name in names if name != found.engine.pod] + [f"p{serial}"]
            serial += 1
            done.append(now)
    for n, (sooner, later) in enumerate(pairwise(done), 1):
        assert later - sooner >= min(FIRST_PAUSE_S * 2 ** (n - 1), LONGEST_PAUSE_S)
    assert all(sum(at <= other < at + 86400 for other in done) <= 10 for at in done)
