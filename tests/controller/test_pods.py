"""What a pod tells: whether to ask its engine, whether it counts, and what ails it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from llamaserver.api.conditions import Reason
from llamaserver.api.names import child_labels
from llamaserver.cluster.kinds import POD
from llamaserver.controller import pods
from llamaserver.controller.cache import trim

Object = dict[str, Any]


def pod(
    *, engine: Object | None = None, ready: bool = False, init: list[Object] | None = None, **more: Object
) -> Object:
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:02:30Z"},
    ]
    status = {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "conditions": conditions,
        "containerStatuses": [{"name": "vllm", "restartCount": 0, **(engine or {})}],
        "initContainerStatuses": init or [],
    }
    metadata = {"name": "chat-0", "namespace": "ns", "uid": "uid-0"} | more.get("metadata", {})
    return {"metadata": metadata, "status": status | more.get("status", {})}


def test_a_ready_pod_is_asked_by_its_incarnation() -> None:
    seen = pods.read(pod(ready=True, engine={"restartCount": 3}))
    assert seen.ready
    assert seen.target is not None
    assert (seen.target.host, seen.target.port, seen.target.incarnation) == ("10.0.0.7", 8000, "uid-0/3")


@pytest.mark.parametrize(
    ("ports", "tls"),
    [
        ([{"name": "http", "containerPort": 8000}], False),
        ([{"name": "https", "containerPort": 8000}], True),
        ([{"name": "http", "containerPort": 8000}, {"name": "https", "containerPort": 9000}], False),
        ([], False),
    ],
)
def test_the_name_of_its_port_tells_how_a_pod_is_asked(ports: list[Object], tls: bool) -> None:
    """Of the pod's own, for a rollout to TLS or from it has pods of both kinds."""
    sidecar = {"name": "proxy", "ports": [{"name": "https", "containerPort": 8000}]}
    obj = pod(ready=True) | {"spec": {"containers": [{"name": "vllm", "ports": ports}, sidecar]}}
    labels = {"namespace": "ns", "labels": child_labels("chat")}
    kept = trim(POD, {**obj, "metadata": obj["metadata"] | labels})
    for seen in (pods.read(obj), pods.read(kept)):
        assert seen.target is not None
        assert seen.target.tls is tls


def test_a_pod_whose_engine_has_started_is_asked_before_it_is_ready() -> None:
    seen = pods.read(pod(engine={"started": True}))
    assert seen.target is not None
    assert not seen.ready


@pytest.mark.parametrize(
    "obj",
    [
        pod(),
        pod(ready=True, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        pod(engine={"started": True}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        pod(ready=True, status={"phase": "Failed"}),
        pod(ready=True, status={"podIP": ""}),
    ],
)
def test_a_pod_that_is_starting_ending_or_nowhere_is_not_asked(obj: Object) -> None:
    assert pods.read(obj).target is None


def test_an_ending_pod_is_not_ready_whatever_it_says() -> None:
    seen = pods.read(pod(ready=True, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    assert (seen.ready, seen.ending) == (False, True)


def test_a_cold_start_is_from_scheduled_to_ready_of_a_first_start() -> None:
    first, restarted = pods.read(pod(ready=True)), pods.read(pod(ready=True, engine={"restartCount": 1}))
    assert pods.cold_starts({}, [first], 600.0) == {first.uid: 150.0}
    assert pods.cold_starts({}, [restarted], 600.0) == {restarted.uid: None}
    assert pods.cold_starts({}, [pods.read(pod(ready=False))], 600.0) == {}


def test_a_pod_that_was_unready_for_a_while_has_started_once() -> None:
    first = pods.read(pod(ready=True))
    later = replace(first, cold_start_s=21_600.0)
    assert pods.cold_starts({first.uid: 150.0}, [later], 600.0) == {first.uid: 150.0}
    assert pods.cold_starts({}, [later], 600.0) == {first.uid: None}, "so long takes no start"
    assert pods.cold_starts({first.uid: 150.0}, [], 600.0) == {}


def test_a_pod_is_down_since_it_was_last_ready_or_was_made() -> None:
    made = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    seen = pods.read(pod(metadata=made))
    assert seen.down_since is not None
    assert seen.down_since.minute == 2
    unseen = pods.read(pod(metadata=made, status={"conditions": []}))
    assert unseen.down_since is not None
    assert unseen.down_since.minute == 0
    assert pods.read(pod(ready=True, metadata=made)).down_since is None


def waiting(why: str, says: str = "", **last: Any) -> Object:
    state = {"waiting": {"reason": why, "message": says}}
    return {"state": state, "lastState": {"terminated": last} if last else {}, "restartCount": 4}


def unplaced(says: str) -> Object:
    """A pod that the scheduler has found no node for."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says}
    return pod(status={"conditions": [scheduled]})


@pytest.mark.parametrize(
    ("says", "cure"),
    [
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "add a node that has so much free"),
        ('0/1 nodes are available: persistentvolumeclaim "x" not found.', "create the claim"),
        ('persistentvolumeclaim "x" is being deleted', "name another claim"),
        ("0/1 nodes: pod has unbound immediate PersistentVolumeClaims.", "kubectl describe pvc"),
        ("0/2 nodes: 2 node(s) didn't match Pod's node affinity/selector.", "spec.scheduling.nodeSelector"),
        ("0/2 nodes: 2 node(s) had untolerated taint(s).", "spec.scheduling.tolerations"),
        ("0/2 nodes: 2 node(s) had untolerated taint {gpu: true}", "spec.scheduling.tolerations"),
    ],
)
def test_what_no_node_fits_is_told_in_the_schedulers_words_with_the_cure(says: str, cure: str) -> None:
    trouble = pods.read(unplaced(says)).trouble
    assert trouble is not None
    assert trouble.reason is Reason.UNSCHEDULABLE
    assert says in trouble.message
    assert cure in trouble.message


def test_several_reasons_why_no_node_fits_have_their_cures() -> None:
    trouble = pods.read(unplaced("1 Insufficient cpu, 2 node(s) had untolerated taint(s)")).trouble
    assert trouble is not None
    assert "spec.engine.resources or spec.accelerator, or tolerate a node's taint" in trouble.message


@pytest.mark.parametrize(
    ("says", "cure"),
    [
        ("couldn't find key HF_TOKEN in Secret models/hf", "add the key to that Secret, and the pod starts"),
        ("couldn't find key k in ConfigMap models/c", "add the key to that ConfigMap"),
        ('secret "hf" not found', "create that Secret, and the pod starts"),
        ('secret "chat-tls" not found', "spec.engine.tls"),
        ('configmap "c" not found', "create that ConfigMap"),
    ],
)
def test_what_a_container_needs_and_is_not_there_is_told_with_the_cure(says: str, cure: str) -> None:
    trouble = pods.read(pod(engine=waiting("CreateContainerConfigError", says))).trouble
    assert trouble is not None
    assert trouble.reason is Reason.STARTUP_FAILED
    assert says in trouble.message
    assert cure in trouble.message
    assert "correct the field that names it" in trouble.message


@pytest.mark.parametrize(
    ("obj", "reason", "says"),
    [
        (pod(engine=waiting("ImagePullBackOff", "not found")), Reason.IMAGE_UNAVAILABLE, "not found"),
        (
            pod(engine=waiting("CreateContainerConfigError", "secret x not found")),
            Reason.STARTUP_FAILED,
            "secret x",
        ),
        (pod(engine=waiting("CrashLoopBackOff", exitCode=1)), Reason.CRASH_LOOPING, "4 times"),
        (
            pod(
                engine=waiting(
                    "CrashLoopBackOff", exitCode=1, message="torch.OutOfMemoryError: CUDA out of memory"
                )
            ),
            Reason.OUT_OF_MEMORY_AT_START,
            "lower spec.engine.maxNumSeqs",
        ),
        (
            pod(engine=waiting("CrashLoopBackOff", exitCode=137, reason="OOMKilled")),
            Reason.OUT_OF_MEMORY_AT_START,
            "spec.engine.resources.limits.memory",
        ),
        (
            pod(
                engine=waiting(
                    "CrashLoopBackOff",
                    exitCode=1,
                    message="ValueError: which is larger than the available KV cache memory (6.94 GiB). "
                    "Based on "
                    "the available memory, the estimated maximum model length is 50512.\nRuntimeError: "
                    "Engine core "
                    "initialization failed.",
                )
            ),
            Reason.KV_CACHE_TOO_SMALL,
            "lower spec.engine.maxModelLen (at most 50512 would fit)",
        ),
        (
            pod(
                engine=waiting("RunContainerError", "nvidia-container-cli: unsatisfied condition: cuda>=12.9")
            ),
            Reason.DRIVER_TOO_OLD,
            "update the node's driver",
        ),
        (pod(engine=waiting("CrashLoopBackOff", exitCode=135)), Reason.CRASH_LOOPING, "a full /dev/shm"),
        (
            pod(init=[{"name": "tuner", **waiting("ErrImagePull")}]),
            Reason.IMAGE_UNAVAILABLE,
            "container tuner",
        ),
        (
            pod(
                status={
                    "conditions": [
                        {
                            "type": "PodScheduled",
                            "status": "False",
                            "reason": "Unschedulable",
                            "message": "0/3 nodes: 3 Insufficient nvidia.com/gpu",
                        }
                    ]
                }
            ),
            Reason.UNSCHEDULABLE,
            "Insufficient nvidia.com/gpu",
        ),
    ],
)
def test_what_ails_a_pod_is_named_with_its_cure(obj: Object, reason: Reason, says: str) -> None:
    trouble = pods.read(obj).trouble
    assert trouble is not None
    assert trouble.reason is reason
    assert says in trouble.message


def test_a_sidecar_that_serves_again_is_not_what_the_pod_waits_for() -> None:
    once = {"terminated": {"exitCode": 1, "message": "CUDA out of memory"}}
    sidecar = {"name": "proxy", "ready": True, "restartCount": 1, "lastState": once, "state": {"running": {}}}
    seen = pods.read(pod(init=[sidecar], engine={"state": {"running": {}}}))
    assert seen.trouble is None


NO_NAME = "socket.gaierror: [Errno -3] Temporary failure in name resolution"


def retried(state: Object, restarts: int = 1, **last: Any) -> pods.Pod:
    """A pod that is not ready since 00:02:30, and whose engine ended at 00:04 for want of DNS."""
    died = {"exitCode": 1, "message": NO_NAME, "startedAt": "2026-01-01T00:03:00Z"}
    died |= {"finishedAt": "2026-01-01T00:04:00Z"} | last
    return pods.read(
        pod(
            engine={
                "restartCount": restarts,
                "state": state,
                "lastState": {"terminated": died} if restarts else {},
            }
        )
    )


RUNS = {"running": {"startedAt": "2026-01-01T00:04:10Z"}}


def test_a_second_start_has_its_own_time_whatever_the_first_one_died_of() -> None:
    assert retried(RUNS).trouble is None
    again = retried(RUNS, restarts=2).trouble
    assert again is not None, "twice is a loop"
    assert again.reason is Reason.HUB_UNREACHABLE


def test_a_first_death_is_as_young_as_itself_and_a_loop_as_old_as_the_wait() -> None:
    died = {"exitCode": 1, "message": NO_NAME, "finishedAt": "2026-01-01T00:04:00Z"}
    first, loop = retried({"terminated": died}, 0).trouble, retried({"terminated": died}, 3).trouble
    assert first is not None
    assert loop is not None
    assert first.since == datetime(2026, 1, 1, 0, 4, tzinfo=UTC)
    assert loop.since == datetime(2026, 1, 1, 0, 2, 30, tzinfo=UTC)


def test_an_engine_that_served_for_days_and_died_starts_again_without_a_stall() -> None:
    served = {"startedAt": "2025-12-29T00:00:00Z", "finishedAt": "2026-01-01T00:02:30Z"}
    assert retried(RUNS, restarts=5, **served).trouble is None


def with_conditions(*more: Object, **fields: Any) -> Object:
    obj = pod(**fields)
    obj["status"]["conditions"] += more
    return obj


def test_the_time_of_a_start_begins_when_what_comes_before_the_engine_is_done() -> None:
    """Init containers may take as long as they take, and so may the pull of the engine's image."""
    warming = {"name": "warm", "state": {"running": {"startedAt": "2026-01-01T00:00:10Z"}}}
    early = {"type": "Initialized", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    assert pods.read(with_conditions(early, init=[warming])).coming_up_since is None
    warm = {"name": "warm", "ready": True, "state": {"terminated": {"exitCode": 0}}}
    done = {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T00:40:00Z"}
    pulling = pods.read(with_conditions(done, init=[warm]))
    loading = with_conditions(
        done, init=[warm], engine={"state": {"running": {"startedAt": "2026-01-01T00:55:00Z"}}}
    )
    moments = [seen.coming_up_since for seen in (pulling, pods.read(loading))]
    assert [moment and moment.minute for moment in moments] == [40, 55]


def test_a_pod_whose_volumes_are_not_there_has_not_begun() -> None:
    held = pod(engine={"state": {"waiting": {"reason": "ContainerCreating"}}})
    assert not pods.read(held).begun
    assert pods.read(pod(engine={"state": RUNS})).begun


def test_a_pod_that_is_merely_starting_is_in_no_trouble() -> None:
    assert pods.read(pod(engine={"state": {"waiting": {"reason": "ContainerCreating"}}})).trouble is None


def ended(minutes: int) -> Object:
    """How a life of so many minutes ended."""
    return {
        "exitCode": 1,
        "message": "no such file",
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": f"2026-01-01T00:{minutes:02}:30Z",
    }


def life(restarts: int, minutes: int, **state: Object) -> Object:
    """An engine's container that restarted so often, last after so many minutes."""
    return pod(
        engine={
            "restartCount": restarts,
            "ready": False,
            "state": state,
            "lastState": {"terminated": ended(minutes)},
        }
    )


def test_a_crash_loop_is_said_of_the_tries_between_two_back_offs_as_well() -> None:
    states: list[Object] = [
        {"waiting": {"reason": "CrashLoopBackOff"}},
        {"running": {"startedAt": "2026-01-01T00:05:00Z"}},
        {"terminated": ended(1)},
    ]
    told = {pods.read(life(3, 1, **state)).trouble for state in states}
    assert len(told) == 1, "what is said must not change with each try"
    assert {one.reason for one in told if one is not None} == {Reason.CRASH_LOOPING}


@pytest.mark.parametrize(("restarts", "minutes"), [(1, 1), (5, 40)])
def test_an_engine_that_restarts_once_is_in_no_loop(restarts: int, minutes: int) -> None:
    running = {"running": {"startedAt": "2026-01-01T01:00:00Z"}}
    assert pods.read(life(restarts, minutes, **running)).trouble is None
