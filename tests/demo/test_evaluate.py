"""From a recording to the report: the verdict, and that the report keeps to its own schema."""

from __future__ import annotations

import json

import pytest

from demo.evaluate import KV_FILL_S, NotMeasuredError, kv_checks, kv_run, run_part, slo_checks
from demo.recording import Span, load_span, parse
from demo.report import Report

TARGET_S = 0.020


def test_a_slow_run_violates_every_window_and_has_no_goodput(run_of) -> None:
    run = run_of(0.040)
    assert run.violated_window_share == 1.0
    assert run.goodput_tokens_per_s == 0.0
    assert run.tokens_per_s == pytest.approx(1000, rel=0.02)
    assert run.itl_ms.p95 == pytest.approx(40, rel=0.02)


def test_a_fast_run_violates_none_and_all_its_tokens_are_good(run_of) -> None:
    run = run_of(0.015)
    assert run.violated_window_share == 0.0
    assert run.windows == 4
    assert run.goodput_tokens_per_s == pytest.approx(run.tokens_per_s, rel=0.02)


def test_windows_without_data_count_as_violated(tape, client) -> None:
    tape.quiet(1)
    after = tape.at
    tape.load(45, 0.015)
    for _ in range(12):
        tape.second(0.015, 1000, read=False)
    tape.load(28, 0.015)
    readings = parse(tape.lines)
    span = load_span(readings, after)
    assert span is not None
    run = run_part(readings, span, "p95", TARGET_S, client)
    assert run.windows_unknown == 2
    assert run.violated_window_share == pytest.approx(2 / run.windows, abs=0.001)


def test_a_load_that_is_too_short_is_said_to_be(run_of) -> None:
    with pytest.raises(NotMeasuredError, match="too short"):
        run_of(0.015, seconds=40)


def test_a_restart_during_the_load_is_not_averaged_away(tape, client) -> None:
    tape.quiet(1)
    after = tape.at
    tape.load(50, 0.015)
    tape.boot = "boot-2"
    tape.load(30, 0.015)
    readings = parse(tape.lines)
    span = load_span(readings, after)
    assert span is not None
    with pytest.raises(NotMeasuredError, match="restarted"):
        run_part(readings, span, "p95", TARGET_S, client)


@pytest.mark.parametrize(
    ("off_itl", "auto_itl", "held", "rolled", "broken"),
    [
        (0.040, 0.015, 5.0, False, []),
        (0.015, 0.015, 5.0, False, ["without tuning the load breaks the objective"]),
        (0.040, 0.040, None, False, ["with tuning the objective is held"]),
        (0.040, 0.015, None, False, ["with tuning the objective is held"]),
        (0.040, 0.015, 5.0, True, ["tuning restarts nothing"]),
    ],
)
def test_each_promise_fails_for_its_own_reason(run_of, off_itl, auto_itl, held, rolled, broken) -> None:
    off, auto = run_of(off_itl), run_of(auto_itl)
    checks = slo_checks(off, auto, auto, held, rolled)
    assert [check.name for check in checks if not check.passed] == broken


def test_a_cut_stream_breaks_its_promise(run_of) -> None:
    off, auto = run_of(0.040), run_of(0.015)
    checks = slo_checks(off, auto.model_copy(update={"streams_cut": 1}), auto, 5.0, False)
    assert [check.name for check in checks if not check.passed] == ["no stream is cut"]


def test_of_a_short_run_one_window_may_miss_and_not_two(run_of) -> None:
    off, auto = run_of(0.040), run_of(0.015)
    for missed, broken in ((1, []), (2, ["with tuning the objective is held"])):
        run = auto.model_copy(update={"violated_window_share": round(missed / auto.windows, 3)})
        checks = slo_checks(off, auto, run, 5.0, False)
        assert [check.name for check in checks if not check.passed] == broken


def test_both_knobs_must_do_the_work_of_the_cap_alone(run_of) -> None:
    off, alone, auto = run_of(0.040), run_of(0.015, tokens=1000), run_of(0.015, tokens=990)
    (broken,) = (check for check in slo_checks(off, alone, auto, 5.0, False) if not check.passed)
    assert "990 tokens/s against 1000" in broken.detail


def test_a_run_tells_the_settings_that_were_in_force_once_it_had_settled(tape, client) -> None:
    tape.quiet(1)
    after = tape.at
    tape.load(20, 0.015)
    for tape.cap, tape.budget in ((20, 96), (24, 64), (22, 80)):
        tape.load(20, 0.015)
    readings = parse(tape.lines)
    span = load_span(readings, after)
    assert span is not None
    run = run_part(readings, span, "p95", TARGET_S, client)
    assert (run.cap_lowest, run.cap_highest, run.cap_last) == (20, 24, 22)
    assert (run.budget_lowest, run.budget_highest, run.budget_last) == (64, 96, 80)


@pytest.mark.parametrize(
    ("made", "passed"),
    [
        ((40, 10), [True, True, True]),
        ((40, 11), [True, False, True]),
        ((0, 0), [False, False, True]),
        ((40, 2, "Healthy"), [False, True, True]),
        ((40, 2, "KVPressure", 470), [True, True, False]),
    ],
)
def test_memory_promises(kv_of, made, passed: list[bool]) -> None:
    assert [check.passed for check in kv_checks(kv_of(*made))] == passed


def test_kv_run_is_the_difference_of_its_ends_and_its_throughput_that_of_a_full_cache(tape) -> None:
    tape.quiet(1)
    start = tape.at
    for second in range(30):
        tape.preemptions += 1
        tape.finished += 2
        tape.second(0.02, 900 if second < KV_FILL_S else 500)
    run = kv_run(parse(tape.lines), Span(start, tape.at))
    assert run.preemptions == 30
    assert run.finished == 60
    assert run.preemptions_per_minute == pytest.approx(60)
    assert run.tokens_per_s == pytest.approx(500)


def test_a_report_reads_back_what_it_wrote_and_refuses_what_it_does_not_know(report: Report) -> None:
    text = report.model_dump_json()
    assert Report.model_validate_json(text) == report
    assert report.passed
    with pytest.raises(ValueError, match="extra"):
        Report.model_validate_json(json.dumps({**json.loads(text), "unknown": 1}))


def test_the_schema_names_every_promised_figure() -> None:
    schema = Report.model_json_schema()
    promised = {
        "target_ms",
        "statistic",
        "off",
        "cap_alone",
        "auto",
        "retune_ms",
        "cap_changes",
        "seconds_to_hold",
        "kv",
        "tuner_overhead",
    }
    assert promised <= set(schema["required"])
    run = schema["$defs"]["Run"]["required"]
    assert {
        "violated_window_share",
        "itl_ms",
        "goodput_tokens_per_s",
        "budget_lowest",
        "budget_highest",
        "budget_last",
        "streams_total",
        "streams_cut",
        "client",
    } <= set(run)
