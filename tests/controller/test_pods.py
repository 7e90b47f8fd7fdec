"""What a pod tells: whether to ask its engine, whether it counts, and what ails it."""

from __future__ import annotations

from typing import Any

import pytest

from llamaserver.api.conditions import Reason
from llamaserver.controller import pods

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


def test_cold_start_is_the_median_from_scheduled_to_ready_of_first_starts() -> None:
    first, restarted = pods.read(pod(ready=True)), pods.read(pod(ready=True, engine={"restartCount": 1}))
    assert pods.cold_start([first, first, restarted]) == 150.0
    assert pods.cold_start([restarted]) is None


def waiting(why: str, says: str = "", **last: Any) -> Object:
    state = {"waiting": {"reason": why, "message": says}}
    return {"state": state, "lastState": {"terminated": last} if last else {}, "restartCount": 4}


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


def test_a_pod_that_is_merely_starting_is_in_no_trouble() -> None:
    assert pods.read(pod(engine={"state": {"waiting": {"reason": "ContainerCreating"}}})).trouble is None
