"""The laws of conditions: the time of transition moves only with the status, and nothing else gets lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api import (
    Condition,
    ConditionStatus,
    ConditionType,
    find_condition,
    is_true,
    set_condition,
    timestamp,
)

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STATUSES = st.sampled_from([True, False, None])
UPDATES = st.lists(
    st.tuples(st.sampled_from(ConditionType), STATUSES, st.text(max_size=20)), min_size=1, max_size=30
)


@given(UPDATES)
def test_the_transition_time_is_when_the_status_last_flipped(
    updates: list[tuple[ConditionType, bool | None, str]],
) -> None:
    conditions: tuple[Condition, ...] = ()
    last: dict[ConditionType, tuple[bool | None, str]] = {}
    for step, (kind, status, message) in enumerate(updates):
        now = START + timedelta(seconds=step)
        conditions = set_condition(conditions, kind, status, "Reason", message, generation=step, now=now)
        if kind not in last or last[kind][0] is not status:
            last[kind] = (status, timestamp(now))
        found = find_condition(conditions, kind)
        assert found is not None
        assert (found.message, found.observed_generation) == (message, step)
        assert is_true(conditions, kind) is (status is True)
    assert {c.type: c.last_transition_time for c in conditions} == {k: time for k, (_, time) in last.items()}
    assert [c.type for c in conditions] == list(last), "a condition keeps its place"


def test_nothing_known_is_said_as_unknown() -> None:
    conditions = set_condition(
        (), ConditionType.SLO_MET, None, "NoData", "nothing was measured", generation=1, now=START
    )
    assert conditions[0].status is ConditionStatus.UNKNOWN
    assert not is_true(conditions, ConditionType.SLO_MET)
    assert not is_true((), ConditionType.READY), "a condition that was never set is not true"


def test_a_message_is_cut_and_not_refused() -> None:
    conditions = set_condition((), ConditionType.READY, True, "Serving", "x" * 5000, generation=1, now=START)
    assert len(conditions[0].message) == 1024
    assert conditions[0].message.endswith("…")


def test_times_are_written_in_utc() -> None:
    assert timestamp(START.astimezone(timezone(timedelta(hours=5)))) == "2026-01-02T03:04:05Z"
    with pytest.raises(ValueError, match="without a zone"):
        timestamp(START.replace(tzinfo=None))
