"""An engine that hangs is told once no step of it could still take so long, and not before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llamaserver.api.enums import Statistic
from llamaserver.control import Cause, Decision, Fleet, Limits, Objective, decide, initial
from llamaserver.control.model import remembered
from llamaserver.control.stalls import GRACE_S, LONGEST_GRACE_S, grace_s
from llamaserver.observe import Failure, Memory, Sample, Source, StepMoments, Unusable, advance
from observe.samples import engine, sample

FAST = remembered(0.010, 1e-4, 1e-8, 1e-5, 0.002, 0.03)
SLOW = remembered(1.0, 0.01, 1e-5, 0.01, 0.2, 0.03)
"""On a CPU that is far too small: a full prefill budget takes minutes."""


def told(steps: int, at: float, *, hung: dict[str, Any], moves: dict[str, Any] | None = None) -> Sample:
    """Engine 0 has made so many steps, engine 1 five and no more."""
    first = engine(
        paused=False, decode_steps=StepMoments(n=steps), mixed_steps=StepMoments(), **(moves or {})
    )
    second = engine(
        **({"engine": 1, "paused": False} | hung), decode_steps=StepMoments(n=5), mixed_steps=StepMoments()
    )
    return sample(
        at, source=Source.TUNER, generation_tokens=100 + steps, engine_steps=steps, engines=(first, second)
    )


def ticks(answers: list[Sample | Failure]) -> list[Decision]:
    memory, state, found = Memory(), initial(None, 0.0), []
    for answer in answers:
        memory, windows = advance(memory, {"pod": answer}, answer.at)
        objective = Objective(0.050, Statistic.P95)
        state, decision = decide(objective, Limits(), state, windows, Fleet(1, 1, 0), answer.at)
        found.append(decision)
    return found


@pytest.mark.parametrize("model", [None, FAST])
def test_short_steps_leave_two_minutes(model: Any) -> None:
    settings = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 32768}
    assert grace_s(model, sample(engines=(engine(**settings),))) == GRACE_S


def test_an_engine_whose_steps_may_take_longer_is_given_longer() -> None:
    settings: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 4096, "max_model_len": 32768}
    chunked = grace_s(SLOW, sample(engines=(engine(**settings),)))
    assert GRACE_S < chunked < LONGEST_GRACE_S
    # Of several engines the slowest counts.
    assert grace_s(SLOW, sample(engines=(engine(), engine(engine=1, **settings)))) == chunked
    # Without chunks a prompt of any length is one step.
    whole = grace_s(SLOW, sample(engines=(engine(**settings, live_budget="ChunkedPrefillOff"),)))
    assert chunked < whole <= LONGEST_GRACE_S


def test_one_of_two_engines_that_hangs_is_told_by_its_number_while_the_other_serves() -> None:
    found = ticks([told(10 * i, 2.0 * i, hung={"running": 7}) for i in range(1, 70)])
    late = found[-1]
    assert late.diagnosis.cause is Cause.STALLED
    assert late.diagnosis.message.startswith("Engine 1 of pod answers, with 7 requests running")
    assert late.diagnosis.evidence["engine"] == 1
    (only,) = late.stalled
    assert (only.engine, only.running, only.doubt) == (1, 7, None)
    assert late.moving == frozenset()
    assert not any(decision.stalled for decision in found[:59])


def test_the_other_way_round_an_idle_engine_beside_a_busy_one_is_none_that_hangs() -> None:
    found = ticks([told(10 * i, 2.0 * i, hung={"running": 0}) for i in range(1, 200)])
    assert not any(decision.stalled for decision in found)
    assert found[-1].moving == {"pod"}


def test_that_a_pod_gets_on_takes_two_answers_to_know() -> None:
    busy = [told(10 * i, 2.0 * i, hung={"running": 0}) for i in (1, 2)]
    found = ticks([*busy, Failure(6.0, Unusable.UNREACHABLE, "no answer", "uid/0")])
    assert [decision.moving for decision in found] == [frozenset(), {"pod"}, frozenset()]


def test_a_hang_that_prometheus_tells_of_lasts_as_long_as_its_scrapes_say() -> None:
    """Looked at every 15 s, and scraped twice: what is not new is no longer standstill."""
    scrapes = [replace(sample(at, source=Source.PROMETHEUS), every_s=60.0) for at in (60.0, 120.0)]
    memory, state = Memory(), initial(None, 0.0)
    for i in range(40):
        now = 60.5 + 15.0 * i
        memory, windows = advance(memory, {"pod": scrapes[min(i // 4, 1)]}, now)
        state, decision = decide(
            Objective(0.050, Statistic.P95), Limits(), state, windows, Fleet(1, 1, 0), now
        )
        assert decision.stalled == ()


def test_the_advice_for_a_tuner_that_is_too_old_to_tell_of_a_pause_says_so() -> None:
    found = ticks([told(10 * i, 2.0 * i, hung={"running": 7, "paused": None}) for i in range(1, 70)])[-1]
    assert found.diagnosis.cause is Cause.STALLED
    assert "told the engine to pause" in found.diagnosis.advice
    assert "replaceStalledAfter" not in found.diagnosis.advice


def test_a_core_that_is_silent_from_the_first_look_on_is_told_and_said_to_have_no_known_work() -> None:
    found = ticks([Failure(2.0 * i, Unusable.ENGINE_SILENT, "no answer", "uid/0") for i in range(1, 70)])
    assert found[-1].diagnosis.cause is Cause.STALLED
    assert "its engine core has not for" in found[-1].diagnosis.message
    assert "replaceStalledAfter" not in found[-1].diagnosis.advice
    (only,) = found[-1].stalled
    assert (only.running, only.waiting, only.silent) == (0, 0, True)


def test_scrapes_that_time_out_make_no_engine_hang_however_many() -> None:
    busy = told(10, 2.0, hung={"running": 7})
    away = [Failure(2.0 * i, Unusable.UNREACHABLE, "no answer", "uid/0") for i in range(2, 300)]
    found = ticks([busy, *away])
    assert not any(decision.stalled for decision in found)
    assert found[-1].diagnosis.cause is Cause.STALE
