"""Windows: exact deltas, or a reason. Missing, frozen and restarted are never zero."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llamaserver.observe import Failure, Memory, NoWindow, Sample, Source, Unusable, Window, advance
from observe.samples import engine, histogram, sample


def later(before: Sample, at: float, **changes: object) -> Sample:
    """The same pod, 100 tokens on."""
    values: dict[str, object] = {
        "at": at,
        "itl": histogram(0, before.itl.counts[1] + 100, 0, 0),
        "generation_tokens": before.generation_tokens + 100,
        "engine_steps": (before.engine_steps or 0) + 25,
        "finished": (before.finished or 0) + 1,
    }
    return replace(before, **(values | changes))  # type: ignore[arg-type]


def run(*samples: Sample | Failure) -> list[Window | NoWindow]:
    memory, found = Memory(), []
    for one in samples:
        memory, windows = advance(memory, {"pod": one}, one.at)
        found.append(windows["pod"])
    return found


def failure(at: float) -> Failure:
    return Failure(at, Unusable.UNREACHABLE, "no answer within 1 s")


def test_the_first_answer_gives_no_window() -> None:
    (first,) = run(sample(10.0))
    assert isinstance(first, NoWindow)
    assert (first.why, first.last) == (Unusable.FIRST, sample(10.0))


def test_the_second_gives_exact_deltas() -> None:
    before = sample(10.0)
    window = run(before, later(before, 12.0))[1]
    assert isinstance(window, Window)
    assert (window.dt, window.itl.count, window.generation_tokens, window.steps, window.finished) == (
        2.0,
        100,
        100,
        25,
        1,
    )


def test_a_missed_scrape_is_bridged_exactly() -> None:
    before = sample(10.0)
    found = run(before, failure(12.0), later(before, 14.0))
    assert isinstance(found[1], NoWindow)
    assert found[1].why is Unusable.UNREACHABLE
    assert found[1].last == before
    assert isinstance(found[2], Window)
    assert found[2].dt == 4.0


def test_too_long_a_gap_starts_anew() -> None:
    before = sample(10.0)
    found = run(before, failure(30.0), later(before, 60.0), later(later(before, 60.0), 62.0))
    assert isinstance(found[2], NoWindow)
    assert found[2].why is Unusable.FIRST
    assert isinstance(found[3], Window)


@pytest.mark.parametrize(
    "after",
    [
        {"incarnation": "uid/1"},
        {"generation_tokens": 3},
        {"finished": 0},
        {"bounded_max_tokens": 4999},
        {"bounded_generation_tokens": 10},
        {"itl": histogram(0, 5, 0, 0)},
        {"itl": histogram(0, 60, 400, 0)},  # one bucket fell although the total rose
        {"engines": (engine(engine=0), engine(engine=1))},
    ],
    ids=[
        "container restart",
        "tokens fell",
        "finished fell",
        "allowed fell",
        "made fell",
        "count fell",
        "a bucket fell",
        "other engines",
    ],
)
def test_a_restart_is_seen_and_never_a_negative_rate(after: dict[str, object]) -> None:
    before = sample(10.0, bounded_max_tokens=5000, bounded_generation_tokens=700)
    found = run(before, later(before, 12.0, **after))[1]
    assert isinstance(found, NoWindow)
    assert found.why is Unusable.RESTARTED
    assert found.last is not None
    assert found.last.at == 12.0


def test_after_a_restart_the_next_two_answers_make_a_window() -> None:
    before = sample(10.0)
    reborn = sample(
        12.0, incarnation="uid/1", generation_tokens=0, itl=histogram(0, 0, 0, 0), finished=0, engine_steps=0
    )
    assert isinstance(run(before, reborn, later(reborn, 14.0))[2], Window)


def test_frozen_counters_with_work_in_hand_are_stale() -> None:
    """Gauges left over after an abort of all requests, or an engine that hangs: 106 running and no token."""
    busy = (engine(running=106, waiting=15, kv_usage=0.904),)
    frozen = [sample(10.0 + 2 * i, engines=busy) for i in range(4)]
    found = run(*frozen)
    assert [w.why for w in found[1:] if isinstance(w, NoWindow)] == [Unusable.STALE] * 3
    assert isinstance(found[3], NoWindow)
    assert found[3].since == 10.0
    assert "106 running" in found[3].message


def test_prompts_of_those_who_gave_up_are_no_sign_of_life() -> None:
    """A window of them would say that an engine which hangs had made no token in it."""
    busy = (engine(running=8),)
    given_up = [
        sample(10.0 + 2 * i, engines=busy, prompt_tokens=1000 + 90 * i, cached_prompt_tokens=9 * i)
        for i in range(4)
    ]
    assert [w.why for w in run(*given_up)[1:] if isinstance(w, NoWindow)] == [Unusable.STALE] * 3


def test_frozen_for_long_is_still_stale_and_not_a_gap() -> None:
    busy = (engine(running=8),)
    found = run(sample(10.0, engines=busy), sample(160.0, engines=busy))[1]
    assert isinstance(found, NoWindow)
    assert (found.why, found.since) == (Unusable.STALE, 10.0)


def test_an_idle_pod_is_not_stale() -> None:
    idle = (engine(running=0, waiting=0, kv_usage=0.0),)
    found = run(sample(10.0, engines=idle), sample(12.0, engines=idle))[1]
    assert isinstance(found, Window)
    assert (found.itl.count, found.generation_tokens) == (0, 0)


def test_an_engine_that_moves_again_gives_one_window_over_the_pause() -> None:
    before = sample(10.0)
    found = run(before, sample(12.0), later(before, 14.0))
    assert isinstance(found[1], NoWindow)
    assert isinstance(found[2], Window)
    assert found[2].dt == 4.0


def test_latencies_that_add_up_to_nothing_are_a_lie() -> None:
    before = sample(10.0, itl=histogram(0, 100, 0, 0, sum_s=2.0))
    found = run(before, later(before, 12.0, itl=histogram(208, 100, 0, 0, sum_s=2.0)))[1]
    assert isinstance(found, NoWindow)
    assert found.why is Unusable.LYING


def test_time_that_stands_still_gives_no_window() -> None:
    before = sample(10.0)
    found = run(before, later(before, 10.0))[1]
    assert isinstance(found, NoWindow)


def test_what_is_scraped_seldom_gives_windows_as_long_as_two_scrapes_may_fail() -> None:
    before = sample(10.0, source=Source.PROMETHEUS, every_s=60.0)
    window = run(before, later(before, 190.0))[1]
    assert isinstance(window, Window)
    assert window.dt == 180.0
    anew = run(before, later(before, 250.0))[1]
    assert isinstance(anew, NoWindow)
    assert (anew.why, anew.message) == (Unusable.FIRST, "the answer before this one is 240 s old")


def test_a_scrape_that_is_known_already_is_waited_on_and_no_fault() -> None:
    before = sample(10.0, source=Source.PROMETHEUS, every_s=15.0)
    found = run(before, before)[1]
    assert isinstance(found, NoWindow)
    assert (found.why, found.last) == (Unusable.NOT_SCRAPED, before)


def test_one_pod_never_affects_another() -> None:
    good = sample(10.0)
    memory, _ = advance(Memory(), {"good": good, "bad": sample(10.0)}, 10.0)
    alone, _ = advance(Memory(), {"good": good}, 10.0)
    _, together = advance(memory, {"good": later(good, 12.0), "bad": failure(12.0)}, 12.0)
    _, by_itself = advance(alone, {"good": later(good, 12.0)}, 12.0)
    assert together["good"] == by_itself["good"]


def test_a_pod_that_is_gone_is_forgotten() -> None:
    before = sample(10.0)
    memory, _ = advance(Memory(), {"pod": before}, 10.0)
    memory, windows = advance(memory, {}, 12.0)
    assert windows == {}
    _, windows = advance(memory, {"pod": later(before, 14.0)}, 14.0)
    found = windows["pod"]
    assert isinstance(found, NoWindow)
    assert found.why is Unusable.FIRST


def test_a_request_of_one_token_is_no_fast_request() -> None:
    """vLLM's histogram has it as 0 s, and no figure of it is told apart but that it had one token."""
    first = sample(tpot=histogram(40, 0, 0, 0, sum_s=0.0), unpaced=40)
    second = later(first, 12.0, tpot=histogram(70, 20, 0, 0, sum_s=0.4), unpaced=70)
    window = run(first, second)[1]
    assert isinstance(window, Window)
    assert window.tpot == histogram(0, 20, 0, 0, sum_s=0.4)
    # Where nobody counts those of one token, or more of them than there are, nothing is made up.
    silent, odd = replace(second, unpaced=None), replace(second, unpaced=999)
    for one, counts in ((silent, (30, 20, 0, 0)), (odd, (0, 20, 0, 0))):
        window = run(first, one)[1]
        assert isinstance(window, Window)
        assert window.tpot is not None
        assert window.tpot.counts == counts
