"""Windows, the load's span and the time to hold, from a recorder's output whose truth is known."""

from __future__ import annotations

import pytest

from demo.recording import Span, changes, load_span, near, parse, seconds_to_hold, windows


def test_lines_that_are_no_readings_are_skipped(tape) -> None:
    tape.quiet(2)
    lines = ["starting", '{"at": 1, "wall": 1, "error": "OSError: refused"}', *tape.lines, tape.lines[0][:40]]
    assert [reading.at for reading in parse(lines)] == [101.0, 102.0]


def test_the_span_starts_before_the_first_request_and_ends_with_the_last_wait(tape) -> None:
    tape.quiet(3)
    quiet_until = tape.at
    tape.load(50, 0.020)
    queued_until = tape.at
    tape.waiting = 0
    tape.second(0.010, 500)
    tape.quiet(3)
    assert load_span(parse(tape.lines), after=0.0) == Span(quiet_until, queued_until)


def test_a_load_before_the_moment_asked_for_is_not_found(tape) -> None:
    tape.quiet(2)
    tape.load(20, 0.020)
    tape.quiet(3)
    assert load_span(parse(tape.lines), after=tape.at - 2.0) is None


def test_windows_hold_only_what_happened_in_them(tape) -> None:
    tape.quiet(1)
    start = tape.at
    tape.load(10, 0.020, tokens=1000)
    tape.load(10, 0.040, tokens=500)
    found = windows(parse(tape.lines), start, tape.at)
    assert [w.tokens for w in found if w] == [10_000, 5_000]
    assert [w.meets("p95", 0.030) for w in found if w] == [True, False]


def test_a_window_across_a_restart_is_unknown(tape) -> None:
    tape.quiet(1)
    start = tape.at
    tape.load(15, 0.020)
    tape.boot = "boot-2"
    tape.load(15, 0.020)
    assert [w is None for w in windows(parse(tape.lines), start, tape.at)] == [False, True, False]


def test_a_window_without_readings_at_its_ends_is_unknown(tape) -> None:
    tape.quiet(1)
    start = tape.at
    tape.load(7, 0.020)
    for _ in range(6):
        tape.second(0.020, 1000, read=False)
    tape.load(17, 0.020)
    assert [w is None for w in windows(parse(tape.lines), start, tape.at)] == [True, True, False]


def test_a_window_without_tokens_is_neither_good_nor_bad(tape) -> None:
    tape.quiet(11)
    (found,) = windows(parse(tape.lines), tape.at - 10, tape.at)
    assert found is not None
    assert found.meets("p95", 1.0) is None


def test_time_to_hold_counts_from_the_loads_start(tape) -> None:
    tape.quiet(1)
    start = tape.at
    tape.load(12, 0.050)
    tape.load(60, 0.015)
    span = Span(start, tape.at)
    # The window that begins 12 s in is the first without a token of the slow time.
    assert seconds_to_hold(parse(tape.lines), span, "p95", 0.020) == pytest.approx(12, abs=1)


def test_one_bad_window_of_three_is_not_held(tape) -> None:
    tape.quiet(1)
    start = tape.at
    for _ in range(4):
        tape.load(20, 0.015)
        tape.load(6, 0.050)
    assert seconds_to_hold(parse(tape.lines), Span(start, tape.at), "p95", 0.020) is None


def test_changes_are_counted_between_readings(tape) -> None:
    for tape.cap, tape.budget in ((32, 2048), (32, 64), (16, 64), (16, 64), (18, 64), (16, 64)):
        tape.second()
    readings = parse(tape.lines)
    assert changes(reading.cap for reading in readings) == 3
    assert changes(reading.budget for reading in readings) == 1


def test_near_finds_the_closest_reading_and_nothing_far_away(tape) -> None:
    tape.quiet(5)
    readings = parse(tape.lines)
    found = near(readings, 103.4)
    assert found is not None
    assert found.at == 103.0
    assert near(readings, 110.0) is None
    assert near([], 0.0) is None
