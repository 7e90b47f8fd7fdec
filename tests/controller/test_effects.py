"""What came of a decision is told once, when the figures are of the time after it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api.status import DecisionStatus
from llamaserver.control import Observed
from llamaserver.controller.effects import GIVEN_UP_S, SETTLED_S, Seen, follow
from llamaserver.controller.journal import Move, retunes, scaled
from llamaserver.controller.retune import InForce
from llamaserver.controller.runtime import Followed

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def figures(itl_s: float | None = None, queue_s: float | None = None, met: bool | None = None) -> Observed:
    return Observed(itl_s, itl_s, queue_s, 8, 0, None, None, None, met)


def cut(pod: str = "a", refused: str = "") -> DecisionStatus:
    (entry,) = retunes([Move(pod, InForce(64, None), InForce(48, None), refused)], "slow", NOW)
    return entry


def seen(now: float, observed: Observed, ready: int = 1, draining: bool = False) -> Seen:
    return Seen(observed, ready, draining, now)


def told(
    entries: Sequence[DecisionStatus], before: Observed, moments: Sequence[Seen]
) -> tuple[list[Followed], list[str | None]]:
    """What is said of decisions (newest first, all of the time 0) after some ticks."""
    followed, decisions = [Followed(entry, before, 0.0) for entry in entries], list(entries)
    for moment in moments:
        followed, decisions = follow(followed, decisions, moment)
    return followed, [entry.outcome for entry in decisions]


def test_the_latencies_before_and_after_are_told_once_it_has_settled() -> None:
    before, after = figures(0.061, 0.2), figures(0.047, 0.9, met=True)
    left, early = told([cut()], before, [seen(0.0, before), seen(SETTLED_S - 1, after)])
    assert (len(left), early) == (1, ["Applied"])
    left, late = told([cut()], before, [seen(0.0, before), seen(SETTLED_S, after)])
    assert left == []
    assert late == ["Applied: interTokenLatency 61ms -> 47ms, queueTime 200ms -> 900ms; objectives met"]


def test_a_cut_holds_when_its_engines_have_drained() -> None:
    after = figures(0.047, met=False)
    drains = [seen(float(at), after, draining=True) for at in range(0, 60, 2)]
    assert told([cut()], figures(0.061), drains)[1] == ["Applied"]
    (outcome,) = told([cut()], figures(0.061), [*drains, seen(60.0, after), seen(76.0, after)])[1]
    assert outcome == "Applied: interTokenLatency 61ms -> 47ms; objectives missed"


def test_replicas_hold_when_they_serve() -> None:
    grown, after = scaled(1, 2, "full", NOW), figures(0.04, 0.1, met=True)
    waits = [seen(2.0, after), seen(90.0, after, ready=1)]
    assert told([grown], figures(0.05, 9.0), waits)[1] == ["Asked"]
    served = [*waits, seen(95.0, after, ready=2), seen(111.0, after, ready=2)]
    (outcome,) = told([grown], figures(0.05, 9.0), served)[1]
    assert (
        outcome == "Applied after 95 s: interTokenLatency 50ms -> 40ms, queueTime 9s -> 100ms; objectives met"
    )
    shrunk = scaled(3, 2, "idle", NOW)
    assert told([shrunk], after, [seen(5.0, after, ready=3)])[1] == ["Asked"]
    assert "Applied after 9 s" in str(told([shrunk], after, [seen(9.0, after, 2), seen(30.0, after, 2)])[1])


def test_replicas_that_never_come_are_not_waited_for_for_ever() -> None:
    after = figures(0.05)
    left, (outcome,) = told([scaled(1, 2, "full", NOW)], after, [seen(3600.0, after)])
    assert (left, outcome) == ([], "Asked; not done after 60 minutes")


def test_a_decision_that_another_follows_has_no_figures_of_its_own() -> None:
    newer, older = cut(), cut().model_copy(update={"to": "56"})
    left, outcomes = told([newer, older], figures(0.06), [seen(6.0, figures(0.05))])
    assert outcomes == ["Applied", "Applied; another followed after 6 s"]
    assert [one.entry for one in left] == [newer]


@pytest.mark.parametrize("newer", [cut("b"), cut("a", refused="OutOfBounds"), scaled(1, 2, "full", NOW)])
def test_what_is_about_something_else_does_not_end_it(newer: DecisionStatus) -> None:
    assert told([newer, cut("a")], figures(0.06), [seen(6.0, figures(0.05))])[1][1] == "Applied"


def test_without_traffic_it_says_so() -> None:
    moments = [seen(0.0, figures()), seen(GIVEN_UP_S - 1, figures()), seen(GIVEN_UP_S, figures())]
    assert told([cut()], figures(0.06), moments[:2])[1] == ["Applied"]
    left, (outcome,) = told([cut()], figures(0.06), moments)
    assert (left, outcome) == ([], "Applied; no latency was measured in the 10 minutes after")


def test_what_fell_out_of_the_list_is_followed_no_longer() -> None:
    gone = Followed(cut(), figures(0.06), 0.0)
    assert follow([gone], [], seen(2.0, figures(0.05))) == ([], [])


@given(st.lists(st.tuples(st.floats(0, 5000), st.booleans(), st.none() | st.floats(0.001, 9)), max_size=30))
def test_each_decision_is_told_at_most_one_outcome(ticks: list[tuple[float, bool, float | None]]) -> None:
    """So it costs one write, and never changes its mind."""
    entries = [cut(), scaled(1, 2, "full", NOW)]
    followed, decisions = [Followed(entry, figures(0.06), 0.0) for entry in entries], entries
    said: list[list[str | None]] = [[], []]
    for at, draining, itl in sorted(ticks, key=lambda tick: tick[0]):
        followed, decisions = follow(followed, decisions, seen(at, figures(itl), 2, draining))
        for outcomes, entry in zip(said, decisions, strict=True):
            outcomes.append(entry.outcome)
    for outcomes in said:
        assert len(dict.fromkeys(outcomes)) <= 2
