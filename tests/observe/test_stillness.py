"""Hung is what a pod testifies: work in hand and nothing that grows. Busy, idle and out of reach are not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.observe import (
    Doubt,
    Failure,
    Memory,
    Sample,
    Source,
    StepMoments,
    Still,
    Unusable,
    Window,
    advance,
    parse_exposition,
)
from observe.samples import engine, histogram, read, sample

MISSING = (Unusable.UNREACHABLE, Unusable.LYING, Unusable.MISSING, Unusable.UNKNOWN_SCHEMA)
SILENT = (Unusable.ENGINE_SILENT, Unusable.STALE)


REFUSED = histogram(0, 100, 0, 1)
"""As it is after one of the requests that an engine has in hand was ended before its next token."""


def tuned(at: float = 10.0, steps: int = 25, **changes: Any) -> Sample:
    """As the tuner tells it: with steps of the engine's own."""
    own = engine(
        **({"paused": False} | changes), decode_steps=StepMoments(n=steps), mixed_steps=StepMoments(n=0)
    )
    return sample(at, source=Source.TUNER, incarnation="uid/0/boot", engines=(own,))


def silent(at: float, incarnation: str = "uid/0", why: Unusable = Unusable.ENGINE_SILENT) -> Failure:
    return Failure(at, why, "the engine core does not answer", incarnation)


def stills(*results: Sample | Failure) -> list[Still | None]:
    memory, found = Memory(), []
    for one in results:
        memory, windows = advance(memory, {"pod": one}, one.at)
        found.append(windows["pod"].still)
    return found


def test_work_without_a_step_is_still_since_the_last_one() -> None:
    first, second, third = stills(tuned(10.0), tuned(12.0, steps=26), tuned(30.0, steps=26))
    assert (first, second) == (None, None)
    assert third is not None
    assert (third.since, third.until, third.answers, third.running) == (12.0, 30.0, 2, 4)
    assert (third.silent, third.doubt) == (False, None)


@pytest.mark.parametrize(
    "sign",
    [
        {"generation_tokens": 101},
        {"engine_steps": 26},
        {"engines": (engine(kv_usage=0.21),)},
        {"engines": (engine(preemptions=1),)},
    ],
    ids=["a token", "a step", "a block in the middle of a long prompt", "a preemption"],
)
def test_whatever_grows_is_getting_on(sign: dict[str, object]) -> None:
    assert stills(sample(10.0), sample(200.0, **sign))[1] is None


def test_where_no_step_is_told_prompts_stand_for_them() -> None:
    """Releases that count no steps count a prompt chunk by chunk, as its steps go."""
    first, second = (sample(at, engine_steps=None) for at in (10.0, 200.0))
    assert stills(first, replace(second, prompt_tokens=1001))[1] is None
    assert stills(first, second)[1] is not None


@pytest.mark.parametrize("source", Source)
def test_a_prompt_of_many_minutes_gets_on_with_every_block(source: Source) -> None:
    """Nothing is counted of it until its first token, 8 minutes later."""
    own = engine(running=1, generation_tokens=100, step_tokens=1100)
    chunks = [
        sample(10.0 + 20.0 * i, source=source, engines=(replace(own, kv_usage=0.2 + 0.02 * i),))
        for i in range(25)
    ]
    assert stills(*chunks) == [None] * 25


@pytest.mark.parametrize(
    "noise",
    [
        {"arrived": 9},
        {"finished": 5},
        {"prompt_tokens": 1900, "cached_prompt_tokens": 400},
        {"prompt_tokens": 1900, "ttft": histogram(0, 0, 0, 9)},
        {"itl": REFUSED},
        {"engines": (engine(waiting=7),)},
        {"engines": (engine(running=3, kv_usage=0.1),)},
    ],
    ids=[
        "clients that ask anew",
        "clients that give up",
        "prompts of those who gave up",
        "prompts of those who gave up, as first tokens",
        "a latency of one that was ended",
        "a longer queue",
        "an abort that frees blocks",
    ],
)
@pytest.mark.parametrize("source", Source)
def test_clients_that_come_and_go_in_front_of_it_are_no_progress(
    source: Source, noise: dict[str, object]
) -> None:
    before = sample(10.0, source=source, arrived=4)
    found = stills(before, replace(before, at=200.0, **noise))[1]  # type: ignore[arg-type]
    assert found is not None
    assert found.since == 10.0


def test_clients_that_give_up_for_an_hour_do_not_hide_it() -> None:
    """Each counts its prompt when it is aborted, and asks again; whether the core tells of it or not."""
    own = engine(generation_tokens=100, step_tokens=1100)
    asked = [
        sample(
            10.0 + 30.0 * i,
            prompt_tokens=1000 + 100 * i,
            finished=1 + i,
            engine_steps=25 + i,
            engines=(replace(own, running=3 + i % 2, waiting=i % 5),),
        )
        for i in range(120)
    ]
    found = stills(*asked)[-1]
    assert found is not None
    assert (found.since, found.until, found.doubt) == (10.0, 3580.0, Doubt.METRICS)


@pytest.mark.parametrize(
    "changes",
    [
        {"running": 0},
        {"running": 2, "parked": 2},
        {"running": 0, "waiting": 9, "waiting_deferred": 9},
        {"paused": True},
    ],
    ids=["idle", "sessions that wait for their users", "requests that wait for an adapter", "told to pause"],
)
def test_an_engine_that_has_nothing_to_get_on_with_is_not_still(changes: dict[str, object]) -> None:
    assert stills(*(tuned(10.0 + 20 * i, **changes) for i in range(9))) == [None] * 9


def test_one_of_two_engines_hangs_behind_the_other() -> None:
    def both(at: float, steps: int) -> Sample:
        moves = engine(engine=0, decode_steps=StepMoments(n=steps), mixed_steps=StepMoments())
        hangs = engine(engine=1, running=7, decode_steps=StepMoments(n=5), mixed_steps=StepMoments())
        return sample(at, source=Source.TUNER, generation_tokens=100 + steps, engines=(moves, hangs))

    memory = Memory()
    for at in range(10, 100, 2):
        memory, windows = advance(memory, {"pod": both(float(at), at)}, float(at))
    found = windows["pod"]
    assert isinstance(found, Window)
    assert found.still is not None
    assert (found.still.since, found.still.running, found.still.engine) == (10.0, 7, 1)


def two(at: float, generated: tuple[int, int], text: str = "") -> Sample:
    """Two engines of a pod, as their /metrics is: what each has generated, and beside it of its steps."""
    text = text or read("v0.32.0_generated_dp2.prom")
    for index, (was, now) in enumerate(zip((1280, 1200), generated, strict=True)):
        for name in ("generation_tokens_total", "iteration_tokens_total_sum"):
            series = f'vllm:{name}{{engine="{index}",model_name="llama-8b"}} '
            assert f"{series}{was}.0" in text
            text = text.replace(f"{series}{was}.0", f"{series}{now}.0")
    found = parse_exposition(text, at, "uid/0")
    assert isinstance(found, Sample), found
    return found


@pytest.mark.parametrize("hangs", [0, 1])
def test_one_of_two_engines_hangs_behind_the_other_by_metrics_alone(hangs: int) -> None:
    """Whose figures are added up, the pod gets on."""
    told = [two(10.0 + 20 * i, (1280 + 500 * i * hangs, 1200 + 500 * i * (1 - hangs))) for i in range(9)]
    found = stills(*told)[-1]
    assert found is not None
    assert (found.since, found.until, found.engine) == (10.0, 170.0, hangs)
    assert (found.running, found.waiting) == ((64, 12) if hangs == 0 else (60, 3))
    assert found.doubt is Doubt.METRICS


def test_two_engines_of_which_each_gets_on_now_and_then_hang_neither() -> None:
    told = [two(10.0 + 20 * i, (1280 + 500 * (i // 2), 1200 + 500 * ((i + 1) // 2))) for i in range(9)]
    found = [still for still in stills(*told) if still is not None]
    assert found, "one of the two stands still at any time"
    assert all(still.until - still.since <= 20.0 for still in found)


def test_a_step_that_only_says_that_a_request_was_refused_is_none() -> None:
    """A core whose steps hang may still refuse requests at its door, and each is counted as a step of no
    tokens.
    """
    text = read("v0.32.0_generated_dp2.prom")
    counted = r'(iteration_tokens_total_(?:bucket|count)\{engine="1",.*) (\d+)\.0'
    refused = re.sub(counted, lambda found: f"{found[1]} {int(found[2]) + 5}.0", text)
    assert 'iteration_tokens_total_count{engine="1",model_name="llama-8b"} 25.0' in refused
    found = stills(two(10.0, (1280, 1200)), two(170.0, (1900, 1200), refused))[1]
    assert found is not None
    assert found.engine == 1


def test_where_counters_do_not_tell_engines_apart_the_pod_gets_on_as_a_whole() -> None:
    text = read("v0.32.0_generated_dp2.prom")
    counters = r"(generation_tokens_total|iteration_tokens_total_\w+)\{"
    of_one = re.sub(counters + r'engine="1",.*\n', "", text)
    of_pod = re.sub(counters + r'engine="0",', r"\1{", of_one)
    assert of_pod.count("generation_tokens_total{model_name") == 1
    told = [
        parse_exposition(re.sub(r"(generation_tokens_total\{.*) \S+", rf"\1 {made}.0", of_pod), at, "uid/0")
        for at, made in ((10.0, 1280), (150.0, 1281), (290.0, 1281))
    ]
    assert all(isinstance(one, Sample) and len(one.engines) == 2 for one in told)
    found = stills(*told)
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert found[2].since == 150.0


@pytest.mark.parametrize("why", SILENT)
def test_a_core_that_does_not_answer_its_server_is_still_since_it_last_got_on(why: Unusable) -> None:
    found = stills(tuned(10.0), tuned(12.0, steps=30), *(silent(12.0 + 2 * i, why=why) for i in range(1, 9)))
    assert found[-1] is not None
    assert (found[-1].since, found[-1].answers, found[-1].silent, found[-1].running) == (12.0, 9, True, 4)


def test_what_a_silent_core_did_while_nobody_could_ask_is_not_known() -> None:
    away = [Failure(at, Unusable.UNREACHABLE, "no answer") for at in (14.0, 60.0, 100.0)]
    found = stills(tuned(10.0), silent(12.0), *away, silent(140.0), silent(142.0))
    assert found[-1] is not None
    assert (found[-1].since, found[-1].answers) == (140.0, 2)


def test_counters_that_are_what_they_were_stood_still_however_long_nobody_asked() -> None:
    away = Failure(60.0, Unusable.UNREACHABLE, "no answer")
    found = stills(tuned(10.0), away, tuned(150.0))
    assert found[1] is None
    assert found[2] is not None
    assert found[2].since == 10.0


@pytest.mark.parametrize("restarted", ["uid/1", "uid/10", "other/0"])
def test_another_start_of_the_engine_does_not_inherit_it(restarted: str) -> None:
    found = stills(tuned(10.0), silent(12.0), silent(14.0, restarted), silent(16.0, restarted))
    assert found[1] is not None
    assert found[2] is None
    assert found[3] is not None
    assert (found[3].since, found[3].running, found[3].incarnation) == (14.0, 0, restarted)


def test_a_silence_of_nobody_knows_which_start_says_nothing() -> None:
    assert stills(tuned(10.0), silent(12.0, ""), silent(14.0, ""))[1:] == [None, None]


def test_a_core_that_was_never_heard_is_told_without_work() -> None:
    """It fell silent before anybody looked: whether it has work is not known."""
    found = stills(*(silent(12.0 + 2 * i) for i in range(4)))[-1]
    assert found is not None
    assert (found.since, found.answers, found.running, found.waiting) == (12.0, 4, 0, 0)
    # Counters that move end it.
    assert stills(*(silent(12.0 + 2 * i) for i in range(4)), tuned(30.0), tuned(32.0, steps=26))[-1] is None


def test_an_idle_engine_that_falls_silent_is_told_without_work() -> None:
    found = stills(tuned(10.0, running=0), *(silent(12.0 + 2 * i) for i in range(4)))[-1]
    assert found is not None
    assert (found.since, found.running, found.waiting) == (12.0, 0, 0)


@pytest.mark.parametrize("source", Source)
def test_only_the_schedulers_own_account_is_certain(source: Source) -> None:
    """Gauges left over after all requests were aborted look the same, whoever passes them on."""
    steps = StepMoments(n=25)
    own = engine(paused=False, decode_steps=steps, mixed_steps=steps)
    found = stills(*(sample(at, source=source, engines=(own,)) for at in (10.0, 150.0)))[1]
    assert found is not None
    assert (found.doubt is None) == (source in (Source.TUNER, Source.TUNER_AND_METRICS))


def test_what_a_prometheus_tells_is_doubted_for_what_it_is() -> None:
    found = stills(*(sample(at, source=Source.PROMETHEUS) for at in (10.0, 150.0)))[1]
    assert found is not None
    assert found.doubt is Doubt.PROMETHEUS


@pytest.mark.parametrize("source", [Source.TUNER, Source.TUNER_AND_METRICS])
def test_a_tuner_that_counts_no_steps_any_more_is_not_certain(source: Source) -> None:
    """It has only what a front end counts, like everybody."""
    own = engine(paused=False, generation_tokens=100)
    found = stills(*(sample(at, source=source, engines=(own,)) for at in (10.0, 150.0)))[1]
    assert found is not None
    assert found.doubt is Doubt.STEPS_UNKNOWN


def test_a_tuner_that_does_not_tell_whether_somebody_paused_the_engine_is_not_certain() -> None:
    found = stills(*(tuned(at, paused=None) for at in (10.0, 150.0)), silent(152.0))
    assert [still and still.doubt for still in found[1:]] == [Doubt.PAUSE_UNKNOWN] * 2


@pytest.mark.parametrize("source", [Source.PROMETHEUS, Source.TUNER])
def test_an_answer_that_is_handed_out_again_testifies_to_nothing_new(source: Source) -> None:
    memory, found = Memory(), []
    own = engine(paused=False)
    for now, at in [(0.5, 0.0), (60.5, 60.0), *((60.5 + 15.0 * i, 60.0) for i in range(1, 18))]:
        answer = sample(at, source=source, engines=(own,), every_s=60.0)
        memory, windows = advance(memory, {"pod": answer}, now)
        found.append(windows["pod"].still)
    assert found[0] is None
    assert found[1] is not None
    assert (found[1].since, found[1].until, found[1].answers) == (0.0, 60.0, 2)
    # It goes on being said, and is not said to have lasted longer.
    assert set(found[1:]) == {found[1]}


def test_an_older_answer_does_not_undo_a_newer_one() -> None:
    found = stills(tuned(10.0), tuned(12.0), tuned(11.0, steps=24), tuned(14.0))
    assert [still and (still.since, still.until, still.answers) for still in found] == [
        None,
        (10.0, 12.0, 2),
        (10.0, 12.0, 2),
        (10.0, 14.0, 3),
    ]


def test_a_silence_that_is_handed_out_again_does_not_last_longer() -> None:
    found = stills(tuned(10.0), silent(12.0), silent(12.0), silent(14.0))
    assert [still and still.answers for still in found] == [None, 2, 2, 3]


def test_whether_it_was_seen_to_begin_is_known() -> None:
    """What an operator that has just started finds may be older than what it saw."""
    (_, first), (*_, second) = (
        stills(tuned(10.0), tuned(12.0)),
        stills(tuned(), tuned(12.0, 26), tuned(14.0, 26)),
    )
    assert first is not None
    assert second is not None
    assert (first.witnessed, second.witnessed) == (False, True)
    # Idle is as good; another source of figures, or a gap in a silence, is not.
    idle = stills(tuned(10.0, running=0), tuned(12.0), tuned(14.0))[-1]
    other = replace(tuned(12.0), source=Source.TUNER_AND_METRICS)
    elsewhere = stills(tuned(10.0), other, replace(other, at=14.0))[-1]
    gap = stills(tuned(), tuned(12.0, 26), silent(14.0), silent(90.0), silent(92.0))[-1]
    assert [still and still.witnessed for still in (idle, elsewhere, gap)] == [True, False, False]
    anew = [replace(tuned(at), incarnation="uid/1/boot") for at in (12.0, 14.0)]
    again = stills(tuned(10.0), *anew)[-1]
    assert again is not None
    assert again.witnessed


events = st.lists(
    st.sampled_from(["moves", "stands", "idle", "silent", *(why.value for why in MISSING)]), max_size=60
)


@given(events)
def test_it_is_never_made_of_what_is_missing(told: list[str]) -> None:
    results: list[Sample | Failure] = []
    steps, moved_at, testimonies = 0, 0.0, 0
    for i, event in enumerate(told):
        at = 2.0 * (i + 1)
        if event in ("moves", "stands", "idle"):
            steps += event == "moves"
            results.append(tuned(at, steps, **({"running": 0} if event == "idle" else {})))
        else:
            results.append(
                silent(at) if event == "silent" else Failure(at, Unusable(event), "nothing", "uid/0")
            )
    for event, result, found in zip(told, results, stills(*results), strict=True):
        if event in ("moves", "idle"):
            moved_at, testimonies = result.at, 1
        elif event in ("stands", "silent"):
            testimonies += 1
        if event not in ("stands", "silent"):
            assert found is None
        elif found is not None:
            assert found.since >= moved_at
            assert found.answers <= testimonies
