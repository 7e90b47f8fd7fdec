"""Conditions and status, judged from facts alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from llamaserver.api import Status, effective, parse
from llamaserver.api.conditions import Reason
from llamaserver.api.effective import EffectiveSpec
from llamaserver.cluster import EventType
from llamaserver.cluster.kinds import DEPLOYMENT
from llamaserver.control import Cause, Decision, Diagnosis, Observed, Verdict
from llamaserver.controller.announce import news
from llamaserver.controller.cache import trim
from llamaserver.controller.conditions import judge
from llamaserver.controller.diff import HASH_ANNOTATION
from llamaserver.controller.facts import Facts, Rollout, waits
from llamaserver.controller.facts import rollout as read_rollout
from llamaserver.controller.journal import Move, recommended, retunes, scaled, why
from llamaserver.controller.pods import Pod, Trouble
from llamaserver.controller.retune import InForce
from llamaserver.controller.runtime import EngineReport, PodReport, Report
from llamaserver.controller.status import Identity, Moment, compose, tells_something_new
from llamaserver.desired import ClaimProblem

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
WELL = Rollout(exists=True, current=True, wanted=2, updated=2, total=2, ready=2, deadline_exceeded="")


def spec(**groups: Any) -> EffectiveSpec:
    content = {
        "model": {"uri": "hf://org/model"},
        "engine": {"image": "vllm:v0.32.0"},
        "slo": {"interTokenLatency": {"target": "50ms"}},
        "scaling": {"minReplicas": 1, "maxReplicas": 4},
    }
    server = {
        "apiVersion": "llamaserver.dev/v1alpha1",
        "kind": "LlamaServer",
        "metadata": {"name": "chat", "namespace": "ns"},
        "spec": content | groups,
    }
    return effective(parse(server).spec)


def report(
    cause: Cause = Cause.HEALTHY,
    met: bool | None = True,
    itl_s: float | None = 0.0412,
    cap: int = 32,
    **more: Any,
) -> Report:
    observed = Observed(itl_s, 0.03, 0.0, 12, 3, 0.631, 0.0, 412.3, met)
    diagnosis = Diagnosis(cause, f"it is {cause}", "do this", {"p95_s": 0.0612345, "pods": 2}, since=90.0)
    decision = Decision({}, None, 2, "enough", observed, diagnosis, ())
    fields: dict[str, Any] = {
        "pods": (PodReport("chat-0", cap, 2048, 64, 12, 3, "InForce"),),
        "silent": {},
        "unavailable": {},
        "failed": {},
        "partial": False,
    }
    return Report(at=100.0, asked_at=100.0, decision=decision, **(fields | more))


def facts(**changes: Any) -> Facts:
    fields: dict[str, Any] = {
        "spec": spec(),
        "invalid": "",
        "apply_problem": None,
        "claim_problem": None,
        "rollout": WELL,
        "rollout_reason": "",
        "pods": [],
        "report": report(),
        "now": NOW,
        "patience_s": 330.0,
    }
    return Facts(**(fields | changes))


def verdict(given: Facts, type_: str) -> tuple[bool | None, str]:
    found = {str(one.type): (one.status, str(one.reason)) for one in judge(given)}
    return found[type_]


def rollout(**changes: Any) -> Rollout:
    return replace(WELL, **changes)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (WELL, (True, "Serving")),
        (rollout(exists=False), (False, "Starting")),
        (rollout(current=False), (False, "RollingOut")),
        (rollout(updated=1), (False, "RollingOut")),
        (rollout(ready=0), (False, "NoReplicasReady")),
        (rollout(wanted=0, updated=0, total=0, ready=0), (True, "ScaledToZero")),
        # One more replica on its way is elasticity: fewer than promised would be trouble.
        (rollout(wanted=3, updated=3, total=3, ready=2), (True, "Serving")),
    ],
)
def test_ready_is_serving_with_the_present_spec(state: Rollout, expected: tuple[bool, str]) -> None:
    assert verdict(facts(rollout=state), "Ready") == expected


def pod(
    reason: Reason | None = None, since_s: float = 0.0, *, terminating: bool = False, name: str = "chat-0"
) -> Pod:
    """A pod that is not ready, for `reason` since so many seconds."""
    ails = reason and Trouble(reason, f"pod {name}: {reason}", NOW - timedelta(seconds=since_s))
    return Pod(name, f"uid-{name}", terminating, False, terminating, None, None, ails)


STARTING = rollout(updated=1, total=1, ready=1)


def test_a_full_cluster_rolls_without_a_stall() -> None:
    given = facts(rollout=STARTING, pods=[pod(Reason.UNSCHEDULABLE, 900), pod(terminating=True, name="old")])
    assert verdict(given, "Stalled") == (False, "NotStalled")
    assert verdict(given, "Ready")[1] != "Unschedulable"
    assert verdict(given, "Progressing") == (True, "Scaling")


@pytest.mark.parametrize("reason", [Reason.UNSCHEDULABLE, Reason.IMAGE_UNAVAILABLE, Reason.CRASH_LOOPING])
def test_a_pods_trouble_is_said_at_once_and_stalls_only_when_it_lasts(reason: Reason) -> None:
    state = rollout(updated=2, total=2, ready=0)
    young = facts(rollout=state, pods=[pod(reason, 20)])
    assert verdict(young, "Ready") == (False, reason)
    assert verdict(young, "Stalled") == (False, "NotStalled")
    (said,) = [one.message for one in judge(young) if one.type == "Progressing"]
    assert str(reason) in said
    assert verdict(facts(rollout=state, pods=[pod(reason, 331)]), "Stalled") == (True, reason)
    late = replace(state, deadline_exceeded="too late")
    assert verdict(facts(rollout=late, pods=[pod(reason, 20)]), "Stalled") == (True, reason)


QUOTA = 'pods "chat-7d9-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1'
FORBIDDEN = 'pods "chat-7d9-x" is forbidden:'
SECURITY = 'pods "chat-7d9-x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes'


def refused(message: str, since_s: float) -> Rollout:
    """A Deployment whose only pod the API server does not take, for so many seconds."""
    condition = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": message,
        "lastTransitionTime": (NOW - timedelta(seconds=since_s)).isoformat(),
    }
    live = deployment()
    counts = {"replicas": 0, "updatedReplicas": 0, "readyReplicas": 0}
    return read_rollout({**live, "status": {**live["status"], **counts, "conditions": [condition]}}, "wanted")


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        (QUOTA, "raise the namespace's quota"),
        (SECURITY, "Pod Security level"),
        (f"{FORBIDDEN} failed quota: q: must specify memory for: vllm", "spec.engine.resources"),
        (
            f'{FORBIDDEN} error looking up service account ns/x: serviceaccount "x" not found',
            "spec.scheduling.serviceAccountName",
        ),
        (
            f'{FORBIDDEN} pod rejected: RuntimeClass "x" not found',
            "spec.scheduling.runtimeClassName",
        ),
        (
            f"{FORBIDDEN} no PriorityClass with name x was found",
            "spec.scheduling.priorityClassName",
        ),
        (
            f"{FORBIDDEN} maximum memory usage per Container is 1Gi, but limit is 2Gi",
            "LimitRange",
        ),
        ("denied", "a policy"),
    ],
)
def test_pods_that_the_api_server_refuses_are_told_with_the_cure(message: str, cure: str) -> None:
    young, late = facts(rollout=refused(message, 5)), facts(rollout=refused(message, 400))
    assert (verdict(young, "Ready"), verdict(young, "Stalled")) == (
        (False, "PodsRefused"),
        (False, "NotStalled"),
    )
    assert verdict(late, "Stalled") == (True, "PodsRefused")
    (said,) = [one.message for one in judge(late) if one.type == "Stalled"]
    assert message in said
    assert cure in said


def test_a_quota_that_an_ending_pod_still_fills_is_no_trouble() -> None:
    given = facts(rollout=refused(QUOTA, 400), pods=[pod(terminating=True, name="old")])
    assert verdict(given, "Stalled") == (False, "NotStalled")


def test_what_only_time_can_change_is_looked_at_again() -> None:
    assert waits(facts(pods=[pod()]))
    assert waits(facts(rollout=refused(QUOTA, 5)))
    assert not waits(facts(pods=[replace(pod(), ready=True), pod(terminating=True)]))


def test_a_refusal_that_is_over_is_none() -> None:
    assert read_rollout(deployment(), "wanted").refused is None


EXTRA = rollout(wanted=3, updated=3, total=3, ready=2)


def test_replicas_beyond_what_is_promised_are_not_waited_for_for_ever() -> None:
    """Two serve and one was promised: that the third finds no node is told, and is no failure."""
    young = facts(rollout=EXTRA, pods=[pod(Reason.UNSCHEDULABLE, 20)])
    assert verdict(young, "Progressing") == (True, "Scaling")
    late = facts(rollout=EXTRA, pods=[pod(Reason.UNSCHEDULABLE, 331)])
    assert verdict(late, "Progressing") == (False, "Unschedulable")
    assert (verdict(late, "Ready"), verdict(late, "Stalled")) == ((True, "Serving"), (False, "NotStalled"))


@pytest.mark.parametrize(("minutes", "overdue"), [(36, False), (51, True)])
def test_a_pod_that_says_nothing_may_take_as_long_as_a_start_and_no_longer(
    minutes: int, overdue: bool
) -> None:
    silent = replace(pod(), coming_up_since=NOW - timedelta(minutes=minutes))
    few = facts(rollout=rollout(ready=0), pods=[silent])
    assert verdict(few, "Stalled") == ((True, "StartupFailed") if overdue else (False, "NotStalled"))
    many = facts(rollout=EXTRA, pods=[silent])
    assert verdict(many, "Progressing") == ((False, "StartupFailed") if overdue else (True, "Scaling"))


@pytest.mark.parametrize("reason", [Reason.UNSCHEDULABLE, Reason.CLAIM_NOT_SHAREABLE, Reason.PODS_REFUSED])
def test_a_surge_that_finds_no_room_is_told_with_the_way_without_one(reason: Reason) -> None:
    surging = rollout(wanted=1, updated=1, total=2, ready=1)
    ails = pod(reason, 400)
    told = {
        surge: " ".join(
            one.message
            for one in judge(facts(spec=spec(rollout={"maxSurge": surge}), rollout=surging, pods=[ails]))
        )
        for surge in (0, 1)
    }
    assert "spec.rollout.maxSurge: 0 replaces them in place" in told[1]
    assert "maxSurge" not in told[0]


@pytest.mark.parametrize(
    ("begun", "minutes", "stalled"),
    [(False, 6, True), (False, 2, False), (True, 6, False)],
    ids=["held by its volumes", "not for long", "loading on the same node"],
)
def test_an_additional_pod_that_a_claim_holds_back_is_a_stall_though_the_old_one_serves(
    begun: bool, minutes: int, stalled: bool
) -> None:
    surging = rollout(wanted=1, updated=1, total=2, ready=1)
    held = replace(pod(), down_since=NOW - timedelta(minutes=minutes), begun=begun)
    given = facts(claim_problem=ClaimProblem("set maxSurge", False), rollout=surging, pods=[held])
    expected = (True, "ClaimNotShareable") if stalled else (False, "NotStalled")
    assert verdict(given, "Stalled") == expected


def test_a_lone_replica_that_starts_is_not_held_back_by_a_claim() -> None:
    starting = rollout(wanted=1, updated=1, total=1, ready=0)
    given = facts(claim_problem=ClaimProblem("set maxSurge", True), rollout=starting, pods=[pod()])
    assert verdict(given, "Stalled") == (False, "NotStalled")


def deployment(**changes: Any) -> dict[str, Any]:
    status = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), 1) | {"observedGeneration": 3}
    metadata = {"generation": 3, "annotations": {HASH_ANNOTATION: "wanted"}} | changes
    return trim(DEPLOYMENT, {"metadata": metadata, "spec": {"replicas": 1, "template": {}}, "status": status})


def test_what_runs_is_ready_only_if_it_was_made_from_what_is_wanted_now() -> None:
    well = facts(rollout=read_rollout(deployment(), "wanted"))
    assert (verdict(well, "Ready"), verdict(well, "Progressing")) == ((True, "Serving"), (False, "UpToDate"))
    for state in (
        read_rollout(deployment(), "another"),
        read_rollout(deployment(annotations={}), "wanted"),
        read_rollout(deployment(generation=4), "wanted"),
    ):
        assert verdict(facts(rollout=state), "Ready") == (False, "RollingOut")
        assert verdict(facts(rollout=state), "Progressing") == (True, "RollingOut")


def test_refused_children_are_neither_ready_nor_in_force() -> None:
    given = facts(apply_problem=(Reason.APPLY_REFUSED, "exceeded quota"))
    for type_ in ("Accepted", "Ready", "Progressing"):
        assert verdict(given, type_) == (False, "ApplyRefused")
    assert verdict(given, "Stalled") == (True, "ApplyRefused")


def test_what_is_waited_for_is_said() -> None:
    given = facts(waits_for="Deployment chat of an earlier ns/chat is still being deleted")
    said = {str(one.type): one for one in judge(given)}
    assert (said["Ready"].status, said["Progressing"].status) == (False, True)
    assert said["Ready"].message == said["Progressing"].message == given.waits_for


def test_what_a_tick_judged_bears_the_generation_that_the_tick_knew() -> None:
    first = status(facts(report=replace(report(), generation=2)))
    found = {one.type: one.observed_generation for one in first.conditions or ()}
    assert (found["Ready"], found["SLOMet"], found["Tuned"], found["MetricsAvailable"]) == (3, 2, 2, 2)
    unknown = status(facts(report=report()), first)
    assert {one.type: one.observed_generation for one in unknown.conditions or ()} == found
    later = status(facts(report=replace(report(), generation=3)), first)
    assert {one.observed_generation for one in later.conditions or ()} == {3}
    assert tells_something_new(first, later)


def test_while_pods_are_replaced_it_is_said_why_and_what_that_means() -> None:
    cause = "spec.engine.maxModelLen: 8192 -> 16384"
    given = facts(rollout=rollout(updated=0), rollout_reason=cause)
    (said,) = [one.message for one in judge(given) if one.type == "Progressing"]
    assert said.startswith(f"0 of 2 replicas have the present spec: {cause}")
    assert "1 of 2 replicas go on serving" in said


def test_ready_takes_all_replicas_of_a_fixed_number() -> None:
    fixed = spec(scaling={"mode": "Fixed"}, replicas=3)
    state = rollout(wanted=3, updated=3, total=3, ready=2)
    assert verdict(facts(spec=fixed, rollout=state), "Ready") == (False, "ReplicasNotReady")


@pytest.mark.parametrize("met", [True, False, None])
def test_ready_never_depends_on_the_objective(met: bool | None) -> None:
    assert verdict(facts(report=report(Cause.AT_CAPACITY, met)), "Ready") == (True, "Serving")


def test_an_invalid_spec_is_said_everywhere_it_matters() -> None:
    given = facts(invalid="spec.engine.extraArgs: use spec.engine.maxNumSeqs")
    assert verdict(given, "Accepted") == (False, "InvalidSpec")
    assert verdict(given, "Ready") == (False, "InvalidSpec")
    assert verdict(given, "Stalled") == (True, "InvalidSpec")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (report(Cause.HEALTHY, True), (True, "ObjectiveMet")),
        (report(Cause.AT_CAPACITY, False), (False, "AtCapacity")),
        (report(Cause.HEALTHY, False), (False, "ObjectiveMissed")),
        (report(Cause.STALE, None), (None, "NoData")),
        (report(Cause.IDLE, None), (None, "NoTraffic")),
    ],
)
def test_what_is_not_known_is_neither_met_nor_missed(seen: Report, expected: tuple[bool | None, str]) -> None:
    assert verdict(facts(report=seen), "SLOMet") == expected


def test_the_objective_that_is_missed_is_named() -> None:
    seen = report(Cause.AT_CAPACITY, False)
    observed = replace(seen.decision.observed, itl_met=True, queue_met=False)
    late = replace(seen, decision=replace(seen.decision, observed=observed))
    (said,) = [one.message for one in judge(facts(report=late)) if one.type == "SLOMet"]
    assert said.startswith("queueTime is missed: ")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (facts(), (True, "Tuned")),
        (facts(spec=spec(suspend=True)), (False, "Suspended")),
        (facts(spec=spec(tuning={"mode": "Off"})), (False, "Off")),
        (facts(spec=spec(tuning={"mode": "Recommend"})), (False, "Recommending")),
        (facts(report=report(unavailable={"chat-0": "NoTuner"})), (False, "ActuatorUnavailable")),
        (facts(report=report(failed={"chat-0": "UnknownKey: x"})), (False, "RetuneFailed")),
        (facts(report=report(partial=True)), (False, "RetunePartial")),
        (facts(report=report(pods=())), (None, "NoPodsReport")),
        (facts(spec=spec(metrics={"source": "Prometheus"})), (False, "ActuatorUnavailable")),
        (facts(spec=spec(metrics={"source": "Prometheus"}, tuning={"mode": "Off"})), (False, "Off")),
    ],
)
def test_tuned_says_why_not(given: Facts, expected: tuple[bool | None, str]) -> None:
    assert verdict(given, "Tuned") == expected


@pytest.mark.parametrize(
    ("said", "shown", "told"),
    [
        ("Live", "Live", ""),
        ("NotATail", "NotATail", ""),
        ("Fixed", "Fixed", ""),
        ("Off", "Off", ""),
        ("Suspended", "Suspended", ""),
        ("Recommending", "Recommending", ""),
        ("", None, ""),
        ("SpeculativeDecoding", "SpeculativeDecoding", "SpeculativeDecoding"),
        ("AdaptivePrefillThreshold", "AdaptivePrefillThreshold", "AdaptivePrefillThreshold"),
        ("somebody else's text", "Other", "Other"),
    ],
)
def test_why_the_prefill_budget_stays_is_said_where_it_would_be_moved(
    said: str, shown: str | None, told: str
) -> None:
    seen = report()
    seen = replace(seen, decision=replace(seen.decision, prefill_budget=said))
    tuning = status(facts(report=seen)).tuning
    assert tuning is not None
    assert tuning.prefill_budget == shown
    (tuned,) = [one for one in judge(facts(report=seen)) if one.type == "Tuned"]
    words = f"; the prefill budget stays at its start value: {told}" if told else ""
    assert (tuned.status, tuned.message) == (True, f"every engine runs with what was decided{words}")


def test_a_pod_that_answers_without_figures_does_not_report() -> None:
    assert verdict(facts(), "MetricsAvailable") == (True, "AllPodsReport")
    frozen = facts(report=report(silent={"chat-0": "no counter moved"}))
    assert verdict(frozen, "MetricsAvailable") == (False, "NoPodsReport")


def metrics_message(seen: Report) -> str:
    given = facts(spec=spec(metrics={"source": "Prometheus"}), report=seen)
    (said,) = [one.message for one in judge(given) if one.type == "MetricsAvailable"]
    return said


def test_figures_from_prometheus_are_said_to_be_slower() -> None:
    assert metrics_message(report(every_s=15.0)) == (
        "1 of 1 pods report; Prometheus scrapes them every 15 s, and nothing is decided more often"
    )


def test_a_silent_prometheus_is_named_once_for_all_pods() -> None:
    silent = report(pods=(), silent={"chat-0": "it cannot be reached", "chat-1": "it cannot be reached"})
    given = facts(spec=spec(metrics={"source": "Prometheus"}), report=silent)
    assert verdict(given, "MetricsAvailable") == (False, "PrometheusSilent")
    assert metrics_message(silent) == "0 of 2 pods report; each of 2 pods: it cannot be reached"
    partly = report(silent={"chat-1": "62 s old"}, every_s=15.0)
    assert verdict(facts(report=partly), "MetricsAvailable") == (False, "SomePodsSilent")
    assert metrics_message(partly).endswith("; chat-1: 62 s old")


def test_a_stalled_engine_and_a_claim_that_cannot_be_shared_stall() -> None:
    assert verdict(facts(report=report(Cause.STALLED)), "Stalled") == (True, "EngineStalled")
    short = rollout(wanted=3, updated=3, total=3, ready=1)
    one_pod, one_node = ClaimProblem("no", certain=True), ClaimProblem("no", certain=False)
    assert verdict(facts(claim_problem=one_pod, rollout=short), "Stalled") == (True, "ClaimNotShareable")
    assert verdict(facts(claim_problem=one_pod), "Stalled") == (False, "NotStalled")
    # On one node all of them may start, and they may still be about to.
    held = replace(pod(), down_since=NOW - timedelta(minutes=6), begun=False)
    for pods, expected in (
        ([], (False, "NotStalled")),
        ([replace(held, begun=True)], (False, "NotStalled")),
        ([held], (True, "ClaimNotShareable")),
    ):
        given = facts(claim_problem=one_node, rollout=short, pods=pods)
        assert verdict(given, "Stalled") == expected, pods


def test_a_reference_to_nothing_is_told_at_once_and_becomes_a_stall_when_it_lasts() -> None:
    """Who applies a directory may well bring the object a moment later."""
    told = {"invalid": "spec.model.uri: there is no", "invalid_reason": Reason.REFERENCE_NOT_FOUND}
    young, late = (facts(**told, invalid_since=NOW - timedelta(seconds=age)) for age in (0, 331))
    for given in (young, late):
        assert verdict(given, "Accepted") == verdict(given, "Ready") == (False, "ReferenceNotFound")
        assert waits(given)
    (ready,) = [one.message for one in judge(young) if one.type == "Ready"]
    assert "spec.model.uri: there is no" in ready
    assert verdict(young, "Stalled") == (False, "NotStalled")
    assert verdict(late, "Stalled") == (True, "ReferenceNotFound")


def status(given: Facts, before: Status | None = None, **more: Any) -> Status:
    fields: dict[str, Any] = {"decisions": (), "learned": None, "grace_s": 150.0, "now": Moment(100.0, NOW)}
    return compose(Identity("chat", 3), given, before or Status(), **(fields | more))


def test_figures_are_text_with_units_and_two_digits() -> None:
    observed = status(facts()).to_dict()["observed"]
    assert observed["interTokenLatency"] == "41ms"
    assert observed["kvCacheUsage"] == "0.63"
    assert observed["tokensPerSecond"] == "410"
    assert observed["queueTime"] == "0s"


def test_the_number_of_replicas_is_shown_while_nothing_is_moved_and_left_out_while_unknown() -> None:
    assert status(facts()).to_dict()["scaling"] == {"desiredReplicas": 2, "reason": "enough"}
    unknown = replace(report(), decision=replace(report().decision, recommended_replicas=None))
    assert "desiredReplicas" not in status(facts(report=unknown)).to_dict()["scaling"]


def test_what_is_not_known_is_left_out() -> None:
    composed = status(facts(report=report(itl_s=None))).to_dict()
    assert "interTokenLatency" not in composed["observed"]


def test_the_diagnosis_keeps_the_time_since_when_it_holds_over_a_change_of_leader() -> None:
    first = status(facts())
    assert first.diagnosis is not None
    assert first.diagnosis.since == "2026-01-01T11:59:50Z"
    later = status(facts(), first, now=Moment(5.0, NOW.replace(hour=13)))
    assert later.diagnosis is not None
    assert later.diagnosis.since == first.diagnosis.since


def test_before_the_first_tick_what_an_earlier_leader_wrote_is_kept() -> None:
    first = status(facts())
    assert status(facts(report=None), first) == first


def test_noise_in_figures_tells_nothing_new_and_events_do() -> None:
    before = status(facts())
    assert not tells_something_new(before, status(facts(report=report(itl_s=0.043)), before))
    assert tells_something_new(before, status(facts(report=report(cap=16)), before))
    assert tells_something_new(before, status(facts(report=report(Cause.AT_CAPACITY, False)), before))
    assert tells_something_new(before, status(facts(rollout=rollout(ready=0)), before))


def several(name: str = "chat-0", state: str = "InForce", engines: int = 2, **first: Any) -> PodReport:
    """A pod of several engines, whose first one is as said."""
    one = EngineReport(index=0, num_seqs=32, running=30, waiting=4, kv_usage=0.631)
    others = [replace(one, index=index, running=3, waiting=0, kv_usage=0.0) for index in range(1, engines)]
    return PodReport(name, 32, 2048, 64, 33, 4, state, engines=(replace(one, **first), *others))


def told(*pods: PodReport) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = status(facts(report=report(pods=pods))).to_dict()["tuning"]["pods"]
    return listed


def test_the_engines_of_a_pod_that_has_several_are_told_one_by_one() -> None:
    (pod,) = told(several(state="Partial", num_seqs=64))
    assert pod == {
        "name": "chat-0",
        "numSeqs": 32,
        "state": "Partial",
        "engines": [
            {"index": 0, "numSeqs": 64, "running": 30, "waiting": 4, "kvCacheUsage": "0.63"},
            {"index": 1, "numSeqs": 32, "running": 3, "waiting": 0, "kvCacheUsage": "0.00"},
        ],
    }
    (unknown,) = told(several(num_seqs=None))
    assert "numSeqs" not in unknown["engines"][0]
    assert "engines" not in status(facts()).to_dict()["tuning"]["pods"][0]


def test_a_pod_that_ails_by_itself_says_so_whatever_the_fleet_suffers_from() -> None:
    slow = PodReport("chat-1", 12, 2048, 64, 12, 3, "InForce", cause="Straggler")
    well = PodReport("chat-0", 32, 2048, 64, 12, 3, "InForce")
    first, second = told(well, slow)
    assert "cause" not in first
    assert second["cause"] == "Straggler"
    before = status(facts(report=report(pods=(well, replace(slow, cause="")))))
    assert tells_something_new(before, status(facts(report=report(pods=(well, slow))), before))


def test_so_many_engines_are_told_as_a_status_may_hold() -> None:
    wide = told(several(engines=100))
    assert [len(pod["engines"]) for pod in wide] == [32]
    many = [several(f"chat-{number:03}", engines=8) for number in range(100)]
    many[-1] = replace(many[-1], state="Partial")
    listed = told(*many)
    assert sum(len(pod.get("engines", ())) for pod in listed) == 512
    assert len(listed[-1]["engines"]) == 8, "the one that needs to be understood is told"
    assert "engines" not in listed[-2]
    assert [pod["name"] for pod in listed] == [pod.name for pod in many]


def test_an_engines_load_tells_nothing_new_and_its_cap_does() -> None:
    before = status(facts(report=report(pods=(several(),))))
    busier = status(facts(report=report(pods=(several(running=9, waiting=0, kv_usage=0.2),))), before)
    assert busier.tuning is not None
    assert not tells_something_new(before, busier)
    assert tells_something_new(before, status(facts(report=report(pods=(several(num_seqs=64),))), before))


def test_a_transition_is_dated_once() -> None:
    before = status(facts())
    later = status(facts(), before, now=Moment(200.0, NOW.replace(hour=14)))
    assert later.conditions == before.conditions


def test_pods_that_moved_alike_share_an_entry() -> None:
    moves = [Move(f"chat-{number}", InForce(64, 2048), InForce(32, 2048)) for number in range(8)]
    (entry,) = retunes(moves, "too slow", NOW)
    assert (entry.action, entry.from_, entry.to, entry.pod) == ("NumSeqs", "64", "32", None)
    assert entry.reason == "8 pods: too slow"


def test_two_knobs_are_two_entries() -> None:
    entries = retunes([Move("chat-0", InForce(64, 2048), InForce(32, 512))], "why", NOW)
    assert [(entry.action, entry.pod) for entry in entries] == [
        ("NumSeqs", "chat-0"),
        ("NumBatchedTokens", "chat-0"),
    ]


def test_the_first_value_of_a_pod_is_not_put_down_to_its_first_answer() -> None:
    first = Verdict("diagnosis/stale", True, "No replica gives usable figures. Holding.", {"pod": "chat-0"})
    told = why(replace(report().decision, trail=(first,)), {"chat-0"})
    assert told.startswith("the value held for a pod that did not run with it")


def test_a_recommendation_names_the_cap_and_counts_once_a_value() -> None:
    rules = (
        Verdict(
            "Recommend", True, "the recommended cap is 24", {"pod": "chat-0", "cap": 64, "recommended": 24}
        ),
        Verdict(
            "Recommend", False, "the recommended cap is 64", {"pod": "chat-1", "cap": 64, "recommended": 64}
        ),
        Verdict("Slow", True, "p95 is over the target", {"pod": "chat-0", "p95_s": 0.06123}),
    )
    decision = replace(report().decision, trail=rules)
    assert recommended(decision) == {"chat-0": InForce(24, None)}
    assert "p95 is over the target (p95_s 0.06123)" in why(decision, {"chat-0"})
    (entry,) = retunes([Move("chat-0", InForce(64, 2048), InForce(24, 2048))], "slow", NOW, recommended=True)
    assert entry.reason == "recommended: slow"


def test_news_are_told_once_and_being_fine_from_the_start_is_none() -> None:
    fine = status(facts())
    assert [item.reason for item in news(Status(), fine)] == ["Ready"]
    assert list(news(fine, fine)) == []


def test_what_goes_wrong_is_a_warning_with_its_cure() -> None:
    fine = status(facts())
    missed = status(facts(report=report(Cause.AT_CAPACITY, False)), fine)
    told = {item.reason: item for item in news(fine, missed)}
    assert told["SLOMissed"].type is EventType.WARNING
    assert told["AtCapacity"].message.endswith("do this")


def test_a_decision_is_told_with_its_reason() -> None:
    fine = status(facts())
    grown = status(facts(), fine, decisions=[scaled(1, 2, "queue p95 9s", NOW)])
    (item,) = news(fine, grown)
    assert (item.reason, item.message) == ("Scaled", "Replicas 1 -> 2: queue p95 9s")


def test_what_an_objective_lacks_is_said_with_it_whatever_the_diagnosis() -> None:
    told = report(Cause.AT_CAPACITY, met=None, itl_s=None)
    lacks = "slo.interTokenLatency.scope is Request, and no engine tells the time per output token"
    observed = replace(told.decision.observed, itl_lacks=lacks)
    told = replace(told, decision=replace(told.decision, observed=observed))
    found = next(one for one in judge(facts(report=told)) if str(one.type) == "SLOMet")
    assert (found.status, str(found.reason), found.message) == (None, "NoData", lacks)
