"""What is kept of vLLM's per-step statistics, and what happens when they are not what they were."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llamaserver_tuner.totals import Collected


def step(**changes: Any) -> Any:
    """Like vLLM's IterationStats of one step; the real class is used inside vLLM's own environment."""
    attributes = {
        "inter_token_latencies_iter": [],
        "num_generation_tokens": 0,
        "time_to_first_tokens_iter": [],
        "prompt_token_stats": SimpleNamespace(total=0, cached_tokens=0),
        "finished_requests": [],
    }
    return SimpleNamespace(**{**attributes, **changes})


def finished(reason: str, tokens: int, **changes: Any) -> Any:
    attributes = {
        "finish_reason": reason,
        "num_prompt_tokens": 10,
        "num_generation_tokens": tokens,
        "queued_time": 0.5,
        "mean_time_per_output_token": 0.02,
        "max_tokens_param": 100,
    }
    return SimpleNamespace(**{**attributes, **changes})


def collected(*steps: Any, longest: int | None = None) -> dict[str, Any]:
    here = Collected()
    here.start([0], longest)
    for one in steps:
        here.add(0, one)
    return here.engines[0].to_json()


def test_latencies_and_tokens_add_up() -> None:
    prefill = step(
        time_to_first_tokens_iter=[0.2],
        num_generation_tokens=1,
        prompt_token_stats=SimpleNamespace(total=100, cached_tokens=64),
    )
    decode = step(inter_token_latencies_iter=[0.01] * 12, num_generation_tokens=12)
    got = collected(prefill, decode, decode)
    assert (got["itl"]["count"], got["itl_events"]) == (24, 24)
    assert got["itl"]["sum"] == pytest.approx(0.24)
    assert (got["ttft"]["count"], got["prompt_tokens"], got["cached_prompt_tokens"]) == (1, 100, 64)
    assert got["generation_tokens"] == 25


def test_finished_requests_are_counted_by_reason_and_only_what_they_measured() -> None:
    got = collected(
        step(finished_requests=[finished("stop", 5), finished("length", 1), finished("abort", 0)]),
        step(finished_requests=[finished("repetition", 9)]),
    )
    assert got["finished"] == {"stop": 1, "length": 1, "abort": 1, "error": 0, "repetition": 1}
    assert (got["prompt_tokens_finished"], got["generation_tokens_finished"]) == (40, 15)
    # One token has no time per output token; a request that produced none was perhaps never scheduled.
    assert (got["tpot"]["count"], got["queue"]["count"]) == (2, 3)


def bounded(got: dict[str, Any]) -> list[int | None]:
    names = ("bounded_finished", "max_tokens_bounded_finished", "generation_tokens_bounded_finished")
    return [got[name] for name in names]


def test_what_finished_requests_were_allowed_counts_where_it_says_something() -> None:
    """Prompts of 10 in a model of 200 tokens: to be allowed 190 is to be allowed everything."""
    done = [finished("stop", 5, max_tokens_param=most) for most in (100, 189, 190, 4096, None)]
    assert bounded(collected(step(finished_requests=done), longest=200)) == [2, 289, 10]
    assert bounded(collected(step(finished_requests=done))) == [4, 100 + 189 + 190 + 4096, 20]
    assert bounded(collected(step())) == [0, 0, 0]


def test_a_release_that_does_not_tell_what_was_allowed_loses_that_alone() -> None:
    silent = finished("stop", 5)
    del silent.max_tokens_param
    got = collected(step(finished_requests=[silent, finished("stop", 5)]))
    assert bounded(got) == [None, None, None]
    assert got["generation_tokens_finished"] == 10


def test_statistics_that_changed_end_the_collection_and_say_so() -> None:
    here = Collected()
    assert here.reason == "StatLoggerMissing"
    here.start([0])
    assert here.reason == ""
    with pytest.raises(AttributeError):
        here.add(0, SimpleNamespace(inter_token_latencies=[0.01]))
    assert here.reason == "StatisticsChanged"
    here.add(0, step(num_generation_tokens=3))
    assert here.engines[0].generation_tokens == 0
