"""The sums are exact however large they are, and only steps that are samples enter them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from llamaserver_tuner.meter import MAX_HOST_GAP_US, StepMeter, StepShape
from llamaserver_tuner.moments import Moments

counts = st.integers(min_value=0, max_value=10**9)
steps = st.tuples(counts, counts, st.one_of(st.just(0), counts), counts)


@given(st.lists(steps, max_size=40))
def test_every_sum_is_the_sum_of_its_products(taken: list[tuple[int, int, int, int]]) -> None:
    moments = Moments()
    for step in taken:
        moments.add(*step)
    got = moments.to_json()
    assert got["n"] == len(taken)
    for index, name in enumerate("BKPy"):
        assert got[name] == sum(step[index] for step in taken)
    for (i, left), (j, right) in itertools.combinations_with_replacement(enumerate("BKPy"), 2):
        assert got[left + right] == sum(step[i] * step[j] for step in taken)
    assert set(got) == set(Moments.NAMES)


def test_the_sums_are_exact_beyond_64_bits() -> None:
    moments = Moments()
    for _ in range(3):
        moments.add(0, 10**11, 0, 10**9)
    assert moments.to_json()["KK"] == 3 * 10**22


def decode(sequences: int, clean: bool = True) -> StepShape:
    return StepShape(sequences, 100 * sequences, 0, clean)


def run(meter: StepMeter, start: int, times: list[int], shape: StepShape | None, idle: bool = False) -> None:
    """Steps scheduled right after the last output, with their outputs at `times`."""
    for scheduled, output in itertools.pairwise([start, *times]):
        meter.scheduled(scheduled)
        meter.output(output, shape, idle)


def test_a_step_lasts_from_output_to_output_and_the_first_has_no_predecessor() -> None:
    meter = StepMeter()
    run(meter, 0, [1000, 3000, 6000], decode(4))
    got = meter.decode.to_json()
    assert (got["n"], got["y"], got["B"], meter.skipped) == (2, 5000, 8, 1)
    assert meter.mixed.n == 0


def test_steps_with_prefill_are_kept_apart() -> None:
    meter = StepMeter()
    run(meter, 0, [1000, 2000], decode(4))
    run(meter, 2000, [9000], StepShape(3, 300, 256, True))
    assert (meter.decode.n, meter.mixed.n) == (1, 1)
    assert (meter.mixed.y, meter.mixed.P, meter.mixed.By) == (7000, 256, 21000)


def test_a_step_after_idleness_is_no_sample() -> None:
    meter = StepMeter()
    run(meter, 0, [1000, 2000], decode(1))
    run(meter, 2000, [3000], decode(1), idle=True)
    run(meter, 3010, [50_000, 51_000], decode(1))
    assert (meter.decode.n, meter.decode.y, meter.skipped) == (3, 3000, 2)


def test_a_pause_is_not_a_long_step() -> None:
    meter = StepMeter()
    run(meter, 0, [1000, 2000], decode(1))
    resumed = 2000 + MAX_HOST_GAP_US + 1
    run(meter, resumed, [resumed + 500, resumed + 1000], decode(1))
    assert (meter.decode.n, meter.decode.y, meter.skipped) == (2, 1500, 2)


def test_a_long_step_is_a_sample() -> None:
    meter = StepMeter()
    run(meter, 0, [1000, 1000 + 5 * MAX_HOST_GAP_US], decode(1))
    assert (meter.decode.n, meter.decode.y) == (1, 5 * MAX_HOST_GAP_US)


def test_with_a_batch_queue_outputs_pair_with_their_own_steps() -> None:
    """Step i + 1 is scheduled before the output of step i: the interval still ends with step i's output."""
    meter = StepMeter()
    meter.scheduled(0)
    for index, output in enumerate([1000, 2000, 4000]):
        meter.scheduled(output - 900)
        meter.output(output, decode(index + 1), idle=False)
    assert (meter.decode.n, meter.decode.By) == (2, 2 * 1000 + 3 * 2000)


def test_disturbed_and_empty_steps_are_no_samples() -> None:
    meter = StepMeter()
    run(meter, 0, [1000, 2000], decode(2))
    run(meter, 2000, [9000], decode(2, clean=False))
    run(meter, 9000, [9100], None)
    run(meter, 9100, [10_100], decode(2))
    assert (meter.decode.n, meter.decode.y, meter.skipped) == (2, 2000, 2)
