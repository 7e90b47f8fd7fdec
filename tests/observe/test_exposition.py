"""Exposition text: what is read, what is refused and why, and that no damage to it yields nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.observe import Failure, Sample, Source, Unusable, parse_exposition
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import CPU_24M
from observe.samples import read


def parsed(text: str) -> Sample:
    result = parse_exposition(text, 5.0, "uid/0")
    assert isinstance(result, Sample), result
    return result


def refused(text: str) -> Failure:
    result = parse_exposition(text, 5.0, "uid/0")
    assert isinstance(result, Failure), result
    return result


@pytest.fixture(scope="module")
def live() -> str:
    """A pod under load, as its /metrics shows it."""
    made = Engine(CPU_24M)
    made.load(streams=40)
    made.run_until(20.0)
    return speech.metrics(made)


def test_release_0_32_with_two_engines() -> None:
    found = parsed(read("v0.32.0_generated_dp2.prom"))
    assert found.source is Source.METRICS
    assert [e.waiting for e in found.engines] == [12, 5]  # not 12 + 12 and 5 + 5: by_reason is another family
    assert [(e.generation_tokens, e.step_tokens) for e in found.engines] == [(1280, 1280), (1200, 1200)]
    assert not found.writable
    assert found.prompt_tokens is None  # not exposed there: unknown, not zero


def test_where_steps_are_not_counted_they_worked_on_the_prompts_and_what_was_generated() -> None:
    text = read("v0.5.0_V0_datadog.prom")
    prompts = 'vllm:prompt_tokens_total{model_name="facebook/opt-125m"} '
    assert "iteration_tokens" not in text + prompts
    (own,) = parsed(f"{text}\n{prompts}21.0\n").engines
    assert (own.generation_tokens, own.step_tokens) == (7, 28)
    (own,) = parsed(text).engines
    assert (own.generation_tokens, own.step_tokens) == (7, None)


@pytest.mark.parametrize("body", ["", "\n \n", "<html><body>404</body></html>", "# HELP nothing here\n"])
def test_an_empty_or_foreign_body_is_missing_not_zero(body: str) -> None:
    assert refused(body).why is Unusable.MISSING


def test_the_new_latency_name_wins_and_both_are_never_added(live: str) -> None:
    old = live.replace("inter_token_latency_seconds", "time_per_output_token_seconds")
    assert parsed(old).itl == parsed(live).itl
    both = [line for line in old.splitlines() if ":time_per_output_token" in line]
    assert parsed(live + "\n".join(both) + "\n").itl == parsed(live).itl


def test_how_requests_ended_is_no_sign_of_anything(live: str) -> None:
    """What ended by itself is counted, and not how; aborts, which some releases count, are no such end."""
    assert 'finished_reason="length"' in live
    for reason in ("error", "of_a_later_release"):
        assert parsed(live.replace('finished_reason="length"', f'finished_reason="{reason}"')) == parsed(live)
    for count in (0, 57):
        aborted = f'vllm:request_success_total{{engine="0",model_name="m",finished_reason="abort"}} {count}.0'
        assert parsed(f"{live}\n{aborted}\n") == parsed(live)


def test_rays_prefix_is_read_like_vllms(live: str) -> None:
    assert parsed(live.replace("vllm:", "ray_vllm:")).itl == parsed(live).itl


def test_two_engines_add_up_and_keep_their_own_cache(live: str) -> None:
    two = live + live.replace('engine="0"', 'engine="1"')
    one, both = parsed(live), parsed(two)
    assert both.itl.count == 2 * one.itl.count
    assert sum(e.running for e in both.engines) == 2 * one.engines[0].running
    assert [e.kv_usage for e in both.engines] == [one.engines[0].kv_usage] * 2


def test_who_has_its_kv_cache_and_waits_for_room_is_not_deferred(live: str) -> None:
    """vLLM counts it as deferred until it is admitted, and by its stage as one whose transfer is over."""
    labels = 'engine="0",model_name="m"'
    waiting = "".join(
        f'vllm:num_requests_waiting_by_reason{{{labels},reason="{reason}"}} {count}\n'
        for reason, count in (("capacity", 2.0), ("deferred", 7.0))
    )
    stages = "".join(
        f'vllm:num_requests_kv_fetch_by_stage{{{labels},stage="{stage}"}} {count}\n'
        for stage, count in (("waiting_to_start", 1.0), ("in_progress", 2.0), ("completed_waiting", 4.0))
    )
    assert parsed(live + waiting).engines[0].waiting_deferred == 7
    assert parsed(live + waiting + stages).engines[0].waiting_deferred == 3


@pytest.mark.parametrize(
    ("find", "put", "why"),
    [
        (
            'num_requests_running{engine="0",model_name="m"} 32.0',
            'num_requests_running{engine="0"} NaN',
            Unusable.LYING,
        ),
        (
            'num_requests_running{engine="0",model_name="m"} 32.0',
            'num_requests_running{engine="0"} -1',
            Unusable.LYING,
        ),
        (
            'num_requests_running{engine="0",model_name="m"} 32.0',
            'num_requests_running{engine="x"} 1',
            Unusable.LYING,
        ),
        ('le="0.05",model_name="m"} ', 'le="0.05",model_name="m"} -', Unusable.LYING),
        (
            'inter_token_latency_seconds_bucket{engine="0",le="+Inf"',
            'x{engine="0",le="+Inf"',
            Unusable.MISSING,
        ),
        ("inter_token_latency_seconds_count{", "other_count{", Unusable.MISSING),
        ("vllm:kv_cache_usage_perc", "vllm:other", Unusable.MISSING),
        ("vllm:num_preemptions_total", "vllm:other", Unusable.MISSING),
        ("vllm:generation_tokens_total", "vllm:other", Unusable.MISSING),
        ("vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason", Unusable.MISSING),
    ],
)
def test_figures_that_cannot_be_are_refused(live: str, find: str, put: str, why: Unusable) -> None:
    assert find in live
    assert refused(live.replace(find, put)).why is why


def test_a_sum_of_nan_or_zero_is_refused(live: str) -> None:
    line = next(part for part in live.splitlines() if part.startswith("vllm:inter_token_latency_seconds_sum"))
    name = line.rsplit(" ", 1)[0]
    for value in ("NaN", "0.0", "-3.0", "+Inf"):
        assert refused(live.replace(line, f"{name} {value}")).why is Unusable.LYING


def test_nan_in_a_family_that_is_not_read_is_harmless(live: str) -> None:
    assert parsed(live + 'process_something{a="b"} NaN\n').itl.count > 0


def test_a_count_that_contradicts_its_buckets_is_refused(live: str) -> None:
    line = next(
        part for part in live.splitlines() if part.startswith("vllm:inter_token_latency_seconds_count")
    )
    assert refused(live.replace(line, line.rsplit(" ", 1)[0] + " 3.0")).why is Unusable.LYING


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_to_a_body_raises_or_yields_nonsense(live: str, data: st.DataObject) -> None:
    """Cut, doubled or overwritten anywhere: a sample with sane figures, or a failure with a reason."""
    start = data.draw(st.integers(0, len(live)))
    end = data.draw(st.integers(start, min(len(live), start + 400)))
    junk = data.draw(st.sampled_from(["", "NaN", "-1", "1e999", '{le="', "\x00", "\n", "} 5 5 5", "vllm:"]))
    result = parse_exposition(live[:start] + junk + live[end:], 5.0, "uid/0")
    if isinstance(result, Failure):
        assert result.message
    else:
        assert result.itl.count == sum(result.itl.counts) >= 0
        assert all(0 <= e.kv_usage <= 1 and e.running >= 0 for e in result.engines)


def test_times_per_output_token_of_a_release_that_tells_them(live: str) -> None:
    found = parsed(live)
    assert found.tpot is not None
    assert found.finished is not None
    assert found.tpot.count == found.finished > 50
    assert 0.02 < found.tpot.sum_s / found.tpot.count < 0.05
    assert found.unpaced == 0
    lines = [line for line in live.splitlines() if "request_time_per_output_token" not in line]
    assert parsed("\n".join(lines) + "\n").tpot is None


def test_requests_of_one_token_are_counted_over_all_engines() -> None:
    """The capture of 0.32 with requests that have finished, as its two engines would show them."""
    text = read("v0.32.0_generated_dp2.prom")
    tpot, lengths = "vllm:request_time_per_output_token_seconds", "vllm:request_generation_tokens"
    for engine, zeros in ((0, 3), (1, 4)):
        text = "".join(
            line.rsplit(" ", 1)[0] + " 9.0\n"
            if line.startswith((f"{tpot}_bucket", f"{tpot}_count")) and f'engine="{engine}"' in line
            else line
            for line in text.splitlines(keepends=True)
        )
        labels = f'engine="{engine}",model_name="m"'
        text += (
            f'{lengths}_bucket{{{labels},le="1.0"}} {zeros}.0\n{lengths}_bucket{{{labels},le="2.0"}} 8.0\n'
        )
    found = parsed(text)
    assert found.tpot is not None
    assert (found.tpot.count, found.unpaced) == (18, 7)
