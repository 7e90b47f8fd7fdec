"""Which engines have to be told something now."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fakes import FakeEngine
from llamaserver.control import Setpoint
from llamaserver.controller import retune
from llamaserver.observe import Sample, parse_snapshot

LEASE_S = 120.0


def sample(cap: int = 64, lease_s: float | None = None, generation: int = 3, budget: int = 2048) -> Sample:
    document = FakeEngine().snapshot()
    document["engines"][0] |= {
        "max_num_active_seqs": cap,
        "lease_expires_in_s": lease_s,
        "generation": generation,
        "max_num_scheduled_tokens": budget,
    }
    parsed = parse_snapshot(json.dumps(document).encode(), 1.0, "uid/0")
    assert isinstance(parsed, Sample), parsed
    return parsed


def due(setpoint: Setpoint, seen: Sample) -> list[retune.Change]:
    return retune.due({"pod": setpoint}, {"pod": seen}, LEASE_S)


def test_what_differs_is_changed_with_the_next_generation() -> None:
    (change,) = due(Setpoint(16), sample(cap=64, generation=3))
    assert (change.generation, change.renewal, change.before.num_seqs) == (4, False, 64)


def test_what_is_in_force_is_left_alone_while_its_lease_lasts() -> None:
    assert due(Setpoint(16), sample(cap=16, lease_s=100)) == []


@pytest.mark.parametrize("left", [59.0, None])
def test_a_lease_that_ends_soon_is_renewed(left: float | None) -> None:
    (change,) = due(Setpoint(16), sample(cap=16, lease_s=left))
    assert change.renewal


def test_start_values_need_no_lease() -> None:
    assert due(Setpoint(64), sample(cap=64)) == []
    assert due(Setpoint(None), sample(cap=64)) == []


def test_a_return_to_start_values_is_said_while_a_lease_holds_others() -> None:
    assert due(Setpoint(None), sample(cap=16, lease_s=100))
    assert due(Setpoint(64, None), sample(cap=64, lease_s=100, budget=512))


def test_the_budget_is_a_knob_of_its_own() -> None:
    (change,) = due(Setpoint(16, 512), sample(cap=16, lease_s=100))
    assert not change.renewal
    assert due(Setpoint(16, 512), sample(cap=16, lease_s=100, budget=512)) == []


def lifted(budget: int, in_force: int, **changes: Any) -> Sample:
    """A pod that was asked to keep to a budget, and whose step has got more."""
    one = sample(cap=16, lease_s=100, budget=in_force)
    (engine,) = one.engines
    return replace(one, engines=(replace(engine, wanted_num_scheduled_tokens=budget, **changes),))


def test_what_a_step_gets_beyond_its_budget_is_no_other_budget() -> None:
    calm, busy = lifted(512, 512), lifted(512, 700)
    assert retune.in_force(busy) == retune.in_force(calm) == retune.InForce(16, 512)
    assert due(Setpoint(16, 512), busy) == []
    (change,) = due(Setpoint(16, 256), busy)
    assert change.before.num_scheduled_tokens == 512


def test_an_engine_whose_budget_cannot_be_moved_runs_with_what_it_read_back() -> None:
    assert retune.in_force(lifted(512, 2048, live_budget="TunerFailed")) == retune.InForce(16, 2048)


def test_a_pod_that_was_not_read_this_time_or_cannot_be_written_is_left_alone() -> None:
    assert retune.due({"pod": Setpoint(16)}, {}, LEASE_S) == []
    assert due(Setpoint(16), replace(sample(), writable=False)) == []
    assert due(Setpoint(16), replace(sample(), engines=())) == []


def test_engines_of_one_pod_that_differ_are_brought_together() -> None:
    one = sample(cap=16, lease_s=100)
    both = replace(one, engines=(one.engines[0], replace(one.engines[0], engine=1, max_num_active_seqs=32)))
    (change,) = due(Setpoint(16), both)
    assert not change.renewal


def test_a_lease_that_is_somebody_elses_is_made_ours_at_once() -> None:
    seen = {"pod": sample(cap=16, lease_s=100)}
    (change,) = retune.due({"pod": Setpoint(16)}, seen, LEASE_S, {"pod"})
    assert change.renewal
    assert retune.due({"pod": Setpoint(64)}, {"pod": sample(cap=64)}, LEASE_S, {"pod"}) == []
