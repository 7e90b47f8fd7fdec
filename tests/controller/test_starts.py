"""An engine that was not up within spec.startup.timeout: told from what its pod's status holds, and from
nothing else that ends an engine.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from llamaserver.api import effective, parse
from llamaserver.controller import pods
from llamaserver.controller.conditions import judge
from llamaserver.controller.facts import Facts, Rollout

Object = dict[str, Any]
MADE = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT_S = 600.0
GRACE_S = 150.0
"""As of a pod, beside the timeout: drain, and what comes before and after it."""
WEIGHTS = "Loading safetensors checkpoint shards:  40% Completed | 2/5"


def at(seconds: float) -> str:
    return (MADE + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(
    *,
    began: float,
    lasted: float,
    restarts: int = 1,
    unready: float = 0.0,
    now: Object | None = None,
    **end: Any,
) -> Object:
    """A pod that is not ready since `unready`, and whose engine's last life is given in seconds."""
    ended = {"exitCode": 137, "reason": "Error", "message": WEIGHTS}
    ended |= {"startedAt": at(began), "finishedAt": at(began + lasted)} | end
    engine = {"name": "vllm", "restartCount": restarts, "ready": False, "started": False}
    engine |= {"state": {"running": {}}, "lastState": {"terminated": ended}} | (now or {})
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(0)},
        {"type": "Initialized", "status": "True", "lastTransitionTime": at(1)},
        {"type": "Ready", "status": "False", "lastTransitionTime": at(unready)},
    ]
    return {
        "metadata": {"name": "chat-0", "uid": "uid-0", "creationTimestamp": at(0)},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [engine]},
    }


def judged(
    obj: Object, now_s: float, *, late: str = "", env: dict[str, str] | None = None
) -> dict[str, tuple[bool | None, str, str]]:
    variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
    spec = {
        "model": {"uri": "hf://org/model"},
        "engine": {"image": "vllm:v0.32.0", "env": variables},
        "startup": {"timeout": "10m"},
    }
    server = {"apiVersion": "llamaserver.dev/v1alpha1", "kind": "LlamaServer", "spec": spec}
    facts = Facts(
        spec=effective(parse({**server, "metadata": {"name": "chat", "namespace": "ns"}}).spec),
        invalid="",
        apply_problem=None,
        claim_problem=None,
        rollout=Rollout(True, True, wanted=1, updated=1, total=1, ready=0, deadline_exceeded=late),
        rollout_reason="",
        pods=[pods.read(obj)],
        report=None,
        now=MADE + timedelta(seconds=now_s),
        patience_s=GRACE_S + 180,
    )
    return {str(one.type): (one.status, str(one.reason), one.message) for one in judge(facts)}


@pytest.mark.parametrize("code", [130, 137, 143])
@pytest.mark.parametrize("lasted", [TIMEOUT_S - 5, TIMEOUT_S + 1, TIMEOUT_S + GRACE_S])
def test_a_start_that_the_probe_ended_is_told_with_field_cure_and_what_it_was_at(
    code: int, lasted: float
) -> None:
    """Until the engine has ended by itself, or its grace period is over."""
    ready = judged(pod(began=3, lasted=lasted, exitCode=code), 800)["Ready"]
    assert ready[:2] == (False, "StartupTimeoutExceeded")
    assert "was not up within spec.startup.timeout (10m)" in ready[2]
    assert "raise spec.startup.timeout" in ready[2]
    assert WEIGHTS in ready[2]


@pytest.mark.parametrize(
    "obj",
    [
        pod(began=3, lasted=300),
        pod(began=3, lasted=3 * TIMEOUT_S),
        pod(began=3, lasted=TIMEOUT_S, exitCode=1),
        pod(began=3, lasted=TIMEOUT_S, reason="OOMKilled"),
        pod(began=3, lasted=TIMEOUT_S, message="Temporary failure in name resolution"),
        pod(began=3, lasted=TIMEOUT_S, unready=400),
        pod(began=3, lasted=TIMEOUT_S, now={"started": True}),
        pod(began=3, lasted=TIMEOUT_S, finishedAt=None),
    ],
    ids=[
        "too early",
        "too late",
        "by itself",
        "for want of memory",
        "and it said why",
        "after it served",
        "and it is up now",
        "nobody knows when",
    ],
)
def test_another_end_is_not_put_down_to_the_timeout(obj: Object) -> None:
    assert all(reason != "StartupTimeoutExceeded" for _, reason, _ in judged(obj, 700).values())


def test_an_engine_that_served_and_then_does_not_come_up_again_is_told_too() -> None:
    assert (
        judged(pod(began=9000, lasted=TIMEOUT_S, unready=8990), 9700)["Ready"][1] == "StartupTimeoutExceeded"
    )


def test_a_first_try_that_was_too_long_is_said_and_stalls_only_when_the_pod_is_overdue() -> None:
    once = pod(began=3, lasted=TIMEOUT_S)
    assert judged(once, 1100)["Stalled"][:2] == (False, "NotStalled")
    assert judged(once, 1100, late="too late")["Stalled"][:2] == (True, "StartupTimeoutExceeded")
    allowed = 15 * 60 + TIMEOUT_S + GRACE_S + 180
    assert judged(once, allowed + 2)["Stalled"][:2] == (True, "StartupTimeoutExceeded")


@pytest.mark.parametrize(
    "now",
    [{}, {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
    ids=["on its next try", "between two tries"],
)
def test_from_the_second_time_on_it_is_a_stall(now: Object) -> None:
    again = judged(pod(began=700, lasted=TIMEOUT_S, restarts=2, now=now), 1400)
    assert again["Stalled"][:2] == (True, "StartupTimeoutExceeded")
    assert "it has been ended 2 times" in again["Stalled"][2]


def test_a_pod_that_is_ready_or_ending_has_no_start_to_tell_of() -> None:
    obj = pod(began=3, lasted=TIMEOUT_S)
    assert pods.read(obj).cut_short is not None
    assert pods.read({**obj, "metadata": {**obj["metadata"], "deletionTimestamp": at(9)}}).cut_short is None
    obj["status"]["conditions"][-1]["status"] = "True"
    assert pods.read(obj).cut_short is None


@pytest.mark.parametrize(
    ("env", "blamed"),
    [
        ({"VLLM_TRACE_FUNCTION": "1"}, True),
        ({"VLLM_TRACE_FUNCTION": "0"}, False),
        ({"VLLM_LOGGING_LEVEL": "DEBUG"}, False),
    ],
)
def test_a_start_that_logs_every_call_is_told_why_it_takes_so_long(env: dict[str, str], blamed: bool) -> None:
    slow = judged(pod(began=10, lasted=TIMEOUT_S), 700, env=env)["Ready"]
    assert slow[1] == "StartupTimeoutExceeded"
    assert ("without VLLM_TRACE_FUNCTION in spec.engine.env" in slow[2]) is blamed
    assert ("spec.model.cache" in slow[2]) is not blamed
