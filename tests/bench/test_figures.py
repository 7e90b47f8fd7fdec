"""The arithmetic of windows, percentiles and medians."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bench.figures import NothingSeenError, PartFigures, Seen, figures, parts, spread, summary, worst_tail_ms
from demo.digest import Digest
from harness.traffic import Tape

LO, GROWTH = 1e-4, 1.04


def digest(seconds: float, count: int = 100) -> Digest:
    index = math.floor(math.log(seconds / LO) / math.log(GROWTH))
    return Digest(LO, GROWTH, count, seconds * count, {index: count})


def seen(start: float, end: float, engine: Digest | None, preemptions: int = 0) -> Seen:
    return Seen(start, end, engine, cap=16, budget=64, preemptions=preemptions)


def tape_of(*gaps_ms: float, start: float = 100.0, every: float = 0.1, tokens: int = 1) -> Tape:
    """Events one after the other, each with its gap."""
    return Tape(itl=[(start + i * every, gap / 1e3, tokens) for i, gap in enumerate(gaps_ms)])


def test_only_what_came_in_the_window_counts() -> None:
    tape = tape_of(*([10.0] * 50), *([20.0] * 100), *([30.0] * 50))
    found = figures(tape, [seen(105.0, 115.0, digest(0.02))], 25.0)
    assert (found.itl_p50_ms, found.itl_p95_ms, found.itl_p99_ms) == (20.0, 20.0, 20.0)
    assert found.tokens_per_s == 10.0


def test_percentiles_are_those_of_all_windows_of_a_repeat_together() -> None:
    tape = tape_of(*([10.0] * 100), *([40.0] * 100))
    windows = [seen(100.0, 110.0, digest(0.01)), seen(110.0, 120.0, digest(0.04))]
    found = figures(tape, windows, 25.0)
    assert (found.itl_p50_ms, found.itl_p95_ms) == (40.0, 40.0)
    assert found.violated_window_share == 0.5
    assert found.engine_itl_tail_ms == pytest.approx(40.0, rel=0.03)


def test_first_tokens_count_as_tokens_and_not_as_gaps() -> None:
    tape = tape_of(*([10.0] * 100))
    tape.ttft = [(105.0, 1.5, 1), (106.0, 2.5, 1), (300.0, 9.0, 1)]
    found = figures(tape, [seen(100.0, 110.0, digest(0.01))], None)
    assert found.tokens_per_s == 10.2
    assert (found.ttft_p50_s, found.ttft_p95_s) == (2.5, 2.5)


def test_tokens_joined_into_one_event_are_all_counted() -> None:
    found = figures(tape_of(*([10.0] * 100), tokens=3), [seen(100.0, 110.0, None)], None)
    assert found.tokens_per_s == 30.0
    assert found.ttft_p50_s is None


def test_a_window_that_the_engine_does_not_tell_of_counts_as_violated() -> None:
    found = figures(tape_of(*([10.0] * 100)), [seen(100.0, 110.0, None)], 25.0)
    assert found.violated_window_share == 1.0
    assert found.engine_itl_tail_ms is None


def test_windows_without_a_token_are_an_error_and_not_a_good_latency() -> None:
    with pytest.raises(NothingSeenError):
        figures(Tape(), [seen(0.0, 10.0, digest(0.01))], 25.0)


def test_preemptions_are_told_a_minute() -> None:
    tape = tape_of(*([10.0] * 200))
    windows = [seen(100.0, 110.0, digest(0.01), 3), seen(110.0, 120.0, digest(0.01), 5)]
    assert figures(tape, windows, None).preemptions_per_min == 24.0


def test_what_others_used_is_told_over_all_windows(figure) -> None:
    tape = tape_of(*([10.0] * 300))
    windows = [
        Seen(100.0, 110.0, None, 16, 64, 0, others_cores=0.5),
        Seen(110.0, 130.0, None, 16, 64, 0, others_cores=0.2),
    ]
    assert figures(tape, windows, None).others_cores == 0.3
    assert figures(tape, [*windows, seen(130.0, 140.0, None)], None).others_cores is None


def test_a_summary_is_the_median_but_for_the_share_of_violated_windows(figure) -> None:
    repeats = [figure(30.0, 700.0), figure(50.0, 720.0, violated_window_share=1.0), figure(32.0, 900.0)]
    found = summary(repeats)
    assert (found["itl_p95_ms"], found["tokens_per_s"], found["violated_window_share"]) == (
        32.0,
        720.0,
        0.333,
    )
    assert spread(repeats)["itl_p95_ms"] == [30.0, 50.0]


def test_what_one_repeat_does_not_know_the_others_tell(figure) -> None:
    repeats = [figure(30.0, 700.0, ttft_p50_s=None), figure(31.0, 700.0, ttft_p50_s=3.0)]
    assert summary(repeats)["ttft_p50_s"] == 3.0
    assert spread(repeats)["ttft_p50_s"] == [3.0, 3.0]
    assert summary(repeats[:1])["ttft_p50_s"] is None
    assert "ttft_p50_s" not in spread(repeats[:1])


# --- parts --------------------------------------------------------------------------------------


def halves(short: int = 300, long: int = 100, **of_second) -> tuple[Tape, list[Seen]]:
    """A quiet part with many tokens, and one with few of which every one is late."""
    tape = tape_of(*([10.0] * short), every=10.0 / short)
    tape.itl += tape_of(*([40.0] * long), start=110.0, every=10.0 / long).itl
    first = replace(seen(100.0, 110.0, digest(0.01)), part="quiet")
    return tape, [first, replace(seen(110.0, 120.0, digest(0.04)), part="late", **of_second)]


def test_every_part_is_judged_by_itself() -> None:
    tape, windows = halves(short=3000, long=100)
    found = figures(tape, windows, 25.0)
    assert found.itl_p95_ms == 10.0, "few late tokens do not show in the whole"
    assert [(part.name, part.itl_tail_ms, part.tokens_per_s) for part in found.parts] == [
        ("quiet", 10.0, 300.0),
        ("late", 40.0, 10.0),
    ]
    assert found.worst_tail_ms == 40.0


def test_windows_of_one_part_are_judged_together() -> None:
    tape, windows = halves()
    found = figures(tape, [replace(window, part="one") for window in windows], 25.0)
    assert [part.name for part in found.parts] == ["one"]
    assert found.worst_tail_ms == found.itl_p95_ms == 40.0


def test_the_answer_to_a_change_counts_for_tokens_alone() -> None:
    tape, windows = halves(change=True)
    end = replace(windows[0], start=120.0, end=130.0, part="late")
    tape.itl += tape_of(*([20.0] * 100), start=120.0).itl
    found = figures(tape, [*windows, end], 25.0)
    assert (found.itl_p99_ms, found.worst_tail_ms, found.violated_window_share) == (20.0, 20.0, 0.0)
    assert found.tokens_per_s == pytest.approx((300 + 100 + 100) / 30, abs=0.1)
    assert found.parts[1].tokens_per_s == 10.0
    assert found.violated_at_change == 1.0
    assert figures(tape, [*windows, end], 50.0).violated_at_change == 0.0
    assert figures(tape, [windows[0], end], 25.0).violated_at_change is None


def test_the_statistic_of_the_objective_judges(figure) -> None:
    tape = tape_of(*([10.0] * 97), *([90.0] * 3))
    windows = [seen(100.0, 110.0, digest(0.01))]
    assert figures(tape, windows, 25.0).worst_tail_ms == 10.0
    assert figures(tape, windows, 25.0, "p99").worst_tail_ms == 90.0


def test_each_parts_medians_are_its_own(figure) -> None:
    repeats = [
        figure(20.0, 500.0, parts=(PartFigures("a", 5.0, first, 100.0), PartFigures("b", 6.0, second, 200.0)))
        for first, second in ((30.0, 10.0), (10.0, 30.0), (11.0, 12.0))
    ]
    assert [part.itl_tail_ms for part in parts(repeats)] == [11.0, 12.0]
    assert worst_tail_ms(repeats) == summary(repeats)["worst_tail_ms"] == 12.0
    assert spread(repeats)["worst_tail_ms"] == [12.0, 30.0]


def test_of_shares_the_mean_is_told(figure) -> None:
    repeats = [figure(20.0, 500.0, violated_at_change=value) for value in (0.0, 0.0, 1.0)]
    assert summary(repeats)["violated_at_change"] == 0.333
    assert summary([figure(20.0, 500.0)])["violated_at_change"] is None
