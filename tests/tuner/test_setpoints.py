"""Bounds, generations and leases, against a model of what they promise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llamaserver_tuner.setpoints import BUDGET, CAP, Change, Limits, Refusal, Setpoints, parse_change

LIMITS = Limits(
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    start_cap=24,
    start_budget=2000,
    tokens_per_seq=4,
    chunk_reserve=16,
    live={CAP: "", BUDGET: ""},
)


def body(**changes: Any) -> bytes:
    data = {CAP: 8, BUDGET: 512, "generation": 1, "lease_seconds": 60, **changes}
    return json.dumps({name: value for name, value in data.items() if value != "absent"}).encode()


def test_a_whole_body_is_understood() -> None:
    assert parse_change(body()) == Change(8, 512, 1, 60)
    assert parse_change(body(**{CAP: None, BUDGET: None, "lease_seconds": 7.5})) == Change(None, None, 1, 7.5)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"", ""),
        (b"[]", ""),
        (b"\xff", ""),
        (body(**{CAP: "absent"}), CAP),
        (body(lease_seconds="absent"), "lease_seconds"),
        (body(**{CAP: "8"}), CAP),
        (body(**{CAP: True}), CAP),
        (body(**{BUDGET: 512.0}), BUDGET),
        (body(generation=None), "generation"),
        (body(lease_seconds=None), "lease_seconds"),
        (body(lease_seconds=True), "lease_seconds"),
        (body(max_num_running_reqs=64), "max_num_running_reqs"),
    ],
)
def test_a_body_with_a_fault_is_refused_by_field(text: bytes, field: str) -> None:
    refusal = parse_change(text)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == ("InvalidBody", field)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (Change(0, None, 1, 60), CAP),
        (Change(33, None, 1, 60), CAP),
        (Change(-1, None, 1, 60), CAP),
        (Change(8, 8 * 4 + 16 - 1, 1, 60), BUDGET),
        (Change(None, 24 * 4 + 16 - 1, 1, 60), BUDGET),
        (Change(8, 2001, 1, 60), BUDGET),
        (Change(8, None, 1, 4.9), "lease_seconds"),
        (Change(8, None, 1, 3601), "lease_seconds"),
        (Change(8, None, 1, float("nan")), "lease_seconds"),
        (Change(8, None, 1, float("inf")), "lease_seconds"),
    ],
)
def test_what_is_out_of_bounds_changes_nothing(change: Change, field: str) -> None:
    setpoints = Setpoints(LIMITS)
    refusal = setpoints.put(change, 0.0)
    assert refusal is not None
    assert (refusal.reason, refusal.field) == ("OutOfBounds", field)
    assert (setpoints.cap, setpoints.budget, setpoints.generation) == (24, 2000, 0)
    assert setpoints.rejected == 1


@pytest.mark.parametrize(
    "change", [Change(1, 20, 1, 5), Change(32, 32 * 4 + 16, 1, 3600), Change(8, 2000, 1, 60)]
)
def test_the_bounds_themselves_are_inside(change: Change) -> None:
    assert Setpoints(LIMITS).put(change, 0.0) is None


def test_a_knob_that_is_not_live_takes_only_null() -> None:
    limits = Limits(32, 2048, 32, 2048, 1, 0, {CAP: "", BUDGET: "ChunkedPrefillOff"})
    setpoints = Setpoints(limits)
    refusal = setpoints.put(Change(8, 512, 1, 60), 0.0)
    assert refusal is not None
    assert (refusal.reason, refusal.field) == ("NotWritable", BUDGET)
    assert "ChunkedPrefillOff" in refusal.message
    assert setpoints.put(Change(8, None, 1, 60), 0.0) is None
    assert setpoints.budget_in_force(running=32) == 2048


def test_an_old_generation_is_refused_with_the_current_one_even_after_the_lease() -> None:
    setpoints = Setpoints(LIMITS)
    assert setpoints.put(Change(8, None, 7, 10), 0.0) is None
    assert setpoints.expire(10.0)
    for generation in (7, 6, -1):
        refusal = setpoints.put(Change(9, None, generation, 10), 20.0)
        assert refusal is not None
        assert (refusal.reason, refusal.generation) == ("StaleGeneration", 7)
    assert setpoints.put(Change(9, None, 8, 10), 20.0) is None


@settings(deadline=None)
@given(running=st.integers(0, 32), cap=st.integers(1, 32))
def test_while_a_cap_drains_every_running_sequence_keeps_its_tokens(running: int, cap: int) -> None:
    setpoints = Setpoints(LIMITS)
    assert setpoints.put(Change(cap, LIMITS.min_budget(cap), 1, 60), 0.0) is None
    budget = setpoints.budget_in_force(running)
    assert budget >= min(LIMITS.start_budget, running * LIMITS.tokens_per_seq + LIMITS.chunk_reserve)
    assert budget <= LIMITS.start_budget
    if running <= cap:
        assert budget == LIMITS.min_budget(cap)


@settings(deadline=None)
@given(running=st.integers(0, 32), cap=st.integers(1, 32), owed=st.integers(0, 4000))
def test_what_prompts_before_decodes_take_is_left_to_them_as_far_as_the_engine_started(
    running: int, cap: int, owed: int
) -> None:
    setpoints = Setpoints(LIMITS)
    assert setpoints.put(Change(cap, LIMITS.min_budget(cap), 1, 60), 0.0) is None
    budget = setpoints.budget_in_force(running, owed)
    assert budget >= min(LIMITS.start_budget, owed)
    assert budget == max(setpoints.budget_in_force(running), min(LIMITS.start_budget, owed))


def test_the_smallest_budget_never_exceeds_the_largest() -> None:
    tight = Limits(32, 64, 32, 64, 4, 128, {CAP: "", BUDGET: ""})
    assert tight.min_budget(32) == 64
    assert Setpoints(tight).put(Change(32, 64, 1, 60), 0.0) is None


class Leases(RuleBasedStateMachine):
    """Random changes, waits and looks. The model: the newest accepted change, until its lease is over."""

    def __init__(self) -> None:
        super().__init__()
        self.setpoints = Setpoints(LIMITS)
        self.now = 0.0
        self.accepted: Change | None = None
        self.until = 0.0
        self.newest = 0

    @rule(
        cap=st.one_of(st.none(), st.integers(-1, 34)),
        budget=st.one_of(st.none(), st.integers(0, 2100)),
        ahead=st.integers(-2, 3),
        lease=st.floats(1.0, 4000.0),
    )
    def put(self, cap: int | None, budget: int | None, ahead: int, lease: float) -> None:
        change = Change(cap, budget, self.newest + ahead, lease)
        wanted_cap = LIMITS.start_cap if cap is None else cap
        low = wanted_cap * LIMITS.tokens_per_seq + LIMITS.chunk_reserve
        good = (
            ahead > 0
            and 1 <= wanted_cap <= LIMITS.max_num_seqs
            and (budget is None or low <= budget <= LIMITS.start_budget)
            and 5 <= lease <= 3600
        )
        self.setpoints.expire(self.now)
        assert (self.setpoints.put(change, self.now) is None) == good
        if good:
            self.accepted, self.until, self.newest = change, self.now + lease, change.generation

    @rule(seconds=st.floats(0.0, 5000.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.setpoints.expire(self.now)

    @precondition(lambda self: self.accepted is not None)
    @rule()
    def wait_for_the_end_of_the_lease(self) -> None:
        self.now = max(self.now, self.until)
        self.setpoints.expire(self.now)
        assert self.setpoints.remaining(self.now) is None

    @invariant()
    def the_newest_change_holds_until_its_lease_is_over(self) -> None:
        held = self.accepted if self.accepted is not None and self.now < self.until else None
        cap = LIMITS.start_cap if held is None or held.cap is None else held.cap
        budget = LIMITS.start_budget if held is None or held.budget is None else held.budget
        assert (self.setpoints.cap, self.setpoints.budget) == (cap, budget)
        assert self.setpoints.generation == self.newest
        assert (self.setpoints.remaining(self.now) is None) == (held is None)


TestLeases = Leases.TestCase
