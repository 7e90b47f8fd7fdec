"""The target chosen for a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.calibration import LEAST_RATIO, NoRoomError, calibrate


@given(st.floats(0.004, 0.2), st.floats(LEAST_RATIO + 0.01, 20.0))
def test_the_target_lies_between_the_two_measured_latencies(one: float, ratio: float) -> None:
    found = calibrate(one, one * ratio, 32)
    assert found.one_stream_ms < found.target_ms < found.ceiling_ms


def test_a_machine_without_room_is_told_so() -> None:
    with pytest.raises(NoRoomError, match="too busy"):
        calibrate(0.020, 0.025, 32)
