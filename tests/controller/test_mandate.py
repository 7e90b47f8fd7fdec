"""Who may change engines when the API server cannot be asked."""

from __future__ import annotations

from dataclasses import dataclass

from llamaserver.controller.mandate import Mandate
from llamaserver.controller.queue import Key

POD = Key("ns", "pod")
NAMESAKE = Key("other", "pod")


@dataclass
class Lease:
    holds: bool = True
    proven: bool = True

    def mandate(self) -> Mandate:
        return Mandate(lambda: self.holds, lambda: self.proven)


def test_a_standby_changes_nothing() -> None:
    assert not Lease(holds=False, proven=False).mandate().may_change()


def test_a_leader_goes_on_while_the_api_is_gone() -> None:
    lease = Lease()
    mandate = lease.mandate()
    mandate.saw(POD, "life-1", 7)
    mandate.changed(POD, "life-1", 8)
    lease.proven = False
    mandate.saw(POD, "life-1", 8)
    assert mandate.may_change()


def test_a_change_of_ours_whose_answer_was_lost_is_no_stranger() -> None:
    lease = Lease()
    mandate = lease.mandate()
    mandate.saw(POD, "life-1", 7)
    lease.proven = False
    mandate.changed(POD, "life-1", 8)
    mandate.saw(POD, "life-1", 7)
    mandate.saw(POD, "life-1", 8)
    assert mandate.may_change()


def test_a_strangers_change_stops_it_on_every_pod_until_it_is_proven_again() -> None:
    lease = Lease()
    mandate = lease.mandate()
    mandate.saw(POD, "life-1", 7)
    lease.proven = False
    mandate.saw(POD, "life-1", 9)
    assert not mandate.may_change()
    assert mandate.stranger == "ns/pod"
    lease.proven = True
    assert mandate.may_change()
    lease.proven = False
    assert mandate.may_change()


def test_what_an_earlier_leader_set_is_no_strangers_change() -> None:
    lease = Lease()
    mandate = lease.mandate()
    lease.proven = False
    mandate.saw(POD, "life-1", 40)
    assert mandate.may_change()


def test_a_restarted_engine_counts_anew() -> None:
    lease = Lease()
    mandate = lease.mandate()
    mandate.changed(POD, "life-1", 50)
    lease.proven = False
    mandate.saw(POD, "life-2", 0)
    mandate.changed(POD, "life-2", 1)
    mandate.saw(POD, "life-2", 1)
    assert mandate.may_change()
    mandate.saw(POD, "life-2", 2)
    assert not mandate.may_change()


def test_a_proven_leader_claims_what_runs_with_somebody_elses_change_once() -> None:
    mandate = Lease().mandate()
    mandate.saw(POD, "life-1", 0)
    assert not mandate.claims
    mandate.saw(POD, "life-1", 7)
    assert mandate.claims == {POD}
    mandate.changed(POD, "life-1", 8)
    mandate.saw(POD, "life-1", 8)
    assert not mandate.claims
    mandate.saw(POD, "life-1", 9)
    assert mandate.claims == {POD}


def test_who_cannot_prove_to_lead_claims_nothing() -> None:
    mandate = Lease(proven=False).mandate()
    mandate.saw(POD, "life-1", 7)
    assert not mandate.claims


def test_pods_of_one_name_in_two_namespaces_are_two() -> None:
    lease = Lease()
    mandate = lease.mandate()
    for pod in (POD, NAMESAKE):
        mandate.saw(pod, "life-1", 7)
    mandate.changed(POD, "life-1", 8)
    assert (mandate.claimed("ns"), mandate.claimed("other")) == (set(), {"pod"})
    mandate.forget(POD)
    assert mandate.claims == {NAMESAKE}
    # What is known of the other one stays: a generation beyond it is a stranger's.
    lease.proven = False
    mandate.saw(NAMESAKE, "life-1", 8)
    assert mandate.stranger == "other/pod"
