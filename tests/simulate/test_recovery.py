"""How long a step is felt: by the latency, and by the queue."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api.enums import Statistic
from llamaserver.cli.main import main
from llamaserver.control import Objective
from llamaserver.simulate.compare import Scenario, run
from llamaserver.simulate.outcome import mean_of
from llamaserver.simulate.policies import policy
from llamaserver.simulate.profiles import CPU_24M
from llamaserver.simulate.recovery import LEAST_WAIT_S, queue_windows, recovery_s
from llamaserver.simulate.shapes import Size, shaped

P95_30 = Objective(0.030, Statistic.P95)


def windows(fine: str, first: float = 30.0) -> list[tuple[float, bool]]:
    """Windows of 10 s by their letters: + was fine, - was not."""
    return [(first + 10.0 * i, letter == "+") for i, letter in enumerate(fine)]


@pytest.mark.parametrize(
    ("fine", "seconds"),
    [
        ("+++++++++", None),  # nothing was to recover
        ("-----++++", None),  # it was bad before, and the step has nothing to do with that
        ("++++++++-", None),  # what is bad much later is another matter
        ("+++++-+++", 10.0),
        ("+++++---+++", 30.0),
        ("+++++-++-+++", 40.0),  # two in a row are not enough
        ("++++++-+++", 20.0),  # nor is one, if it is bad after that
        ("+++++-----", 50.0),  # never: at least what was left
        ("+++++", None),
    ],
)
def test_recovered_is_what_is_fine_three_windows_in_a_row(fine: str, seconds: float | None) -> None:
    end = 20.0 + 10.0 * len(fine)
    assert recovery_s(windows(fine), 70.0, 10.0, end) == seconds


def test_a_window_in_which_the_step_falls_is_after_it() -> None:
    assert recovery_s(windows("+++++-+++"), 75.0, 10.0, 110.0) == 5.0
    assert recovery_s(windows("++++-++++"), 75.0, 10.0, 110.0) is None


@given(st.text("+-", min_size=3, max_size=30), st.integers(0, 25))
def test_it_is_never_longer_than_what_was_left(fine: str, step: int) -> None:
    end = 20.0 + 10.0 * len(fine)
    found = recovery_s(windows(fine), 20.0 + 10.0 * min(step, len(fine)), 10.0, end)
    assert found is None or 0.0 < found <= end - 20.0 - 10.0 * min(step, len(fine))


def told(waits: list[list[float]], waiting: tuple[tuple[float, int], ...] = ()) -> str:
    """The letters of windows of 10 s after a step at 100 s, by the waits that ended in each; requests waited
    2 s before.
    """
    queued = [(60.0 + i, 2.0) for i in range(30)] + [(10.0, 500.0)]
    queued += [(100.0 + 10.0 * i + 5.0, wait) for i, one in enumerate(waits) for wait in one]
    found = queue_windows(queued, waiting, (20.0, 100.0, 100.0 + 10.0 * len(waits)), 10.0)
    assert [at for at, _ in found] == list(accumulate([10.0] * len(waits), initial=100.0))[1:]
    return "".join("+" if fine else "-" for _, fine in found)


def test_a_queue_is_back_when_its_p95_is_what_it_was() -> None:
    assert told([[2.0], [2.1], [0.1] * 19 + [9.0], [0.1] * 18 + [9.0] * 2]) == "+-+-"


def test_where_no_wait_ends_it_depends_on_whether_anybody_waits() -> None:
    assert told([[], [], [1.0]], ((104.0, 3), (110.0, 2), (118.0, 0))) == "-++"


def test_a_wait_that_nobody_could_see_is_no_queue() -> None:
    queued = [(90.0, 0.01), (105.0, LEAST_WAIT_S), (115.0, 0.31)]
    assert [fine for _, fine in queue_windows(queued, (), (20.0, 100.0, 120.0), 10.0)] == [True, False]


def scenario(name: str, **more: Any) -> Scenario:
    size = Size(300.0, 40, 2.0, 100, 150)
    return Scenario(lambda seed: shaped(name, size, seed), CPU_24M, P95_30, **more)


def test_the_default_does_not_recover_before_the_load_does_and_the_law_does() -> None:
    steep = scenario("step", seeds=(1,))
    demand = steep.demand(1)
    assert demand.step_s == 100.0
    default, law = (run(steep, demand, policy(name), 1).outcome for name in ("default", "llamaserver"))
    assert default.recovery_s is not None
    assert default.recovery_s >= 90.0
    assert law.recovery_s is None or law.recovery_s <= 20.0


def test_without_a_step_there_is_nothing_to_recover() -> None:
    outcome = run(scenario("poisson"), scenario("poisson").demand(1), policy("default"), 1).outcome
    assert (outcome.recovery_s, outcome.queue_recovery_s) == (None, None)
    assert mean_of([outcome, outcome]).recovery_s is None


def test_the_command_tells_them_of_the_seeds_that_have_them() -> None:
    asked = "simulate --profile CPU --duration 90s --shape step --policies default --json --seed 1 --seed 2"
    found = json.loads(CliRunner().invoke(main, asked.split()).stdout)["policies"]["default"]
    known = [seed["recovery_s"] for seed in found["seeds"] if seed["recovery_s"] is not None]
    mean = sum(known) / len(known) if known else None
    assert found["mean"]["recovery_s"] == (pytest.approx(mean) if known else None)
