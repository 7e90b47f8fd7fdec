"""Rollouts of simulated engines under load: what is tuned live replaces no pod, a surge leaves no gap, why a
pod goes is told before it does, a version that does not start costs no service and is taken back by one
command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest

from harness import simulated
from harness.fleet import Fleet
from harness.kube import Kube, Object
from harness.manifests import MAX_MODEL_LEN, namespace
from harness.server import condition
from harness.wait import stays, until
from scenarios.terms import NAMESPACE

NAME = "rolls"
ARGUMENTS = ["--profile=CPU"]
NO_MATTER_MS = 1000
STREAMS = 6
UP_S, STUCK_S, GONE_S, TOLD_S = 90.0, 90.0, 90.0, 30.0
LOOKED_AGAIN_S = 30.0
"""Longer than any scale-down waits for figures of its pods; the operator looks many times meanwhile."""
LONGEST_SILENCE_S = 3.0
"""Shorter than a start takes; a busy machine may keep all streams waiting for a while."""
BACKS_OFF = {"ImagePullBackOff", "CrashLoopBackOff"}
NOWHERE = "localhost/llamaserver/nowhere:dev"
SHORTER = MAX_MODEL_LEN // 2
WHY = f"spec.engine.maxModelLen: {MAX_MODEL_LEN} -> {SHORTER}"

LIVE: tuple[Object, ...] = (
    {"slo": {"interTokenLatency": {"target": "500ms", "statistic": "mean"}}},
    {"tuning": {"numSeqs": {"min": 4, "max": 16}}},
    {"tuning": {"mode": "Recommend", "prefillBudget": "Fixed"}},
    {"rollout": {"maxSurge": 1}, "recovery": {"replaceStalledAfter": "2m"}},
    {"suspend": True},
)
"""Changes of what takes effect in running engines."""


class Look(NamedTuple):
    """A pod as the API server showed it at one moment."""

    uid: str
    ready: bool
    ending: bool


@pytest.fixture(scope="module")
def rolls(kube: Kube, operator: None) -> Iterator[Fleet]:  # noqa: ARG001
    """A LlamaServer of simulated engines, which each scenario declares for itself."""
    simulated.load_image()
    kube.apply(namespace(NAMESPACE))
    fleet = Fleet(kube, NAME, NAMESPACE, simulated.IMAGE, None, NO_MATTER_MS)
    yield fleet
    kube.delete("llamaserver", NAME, NAMESPACE)


@pytest.fixture
def one(rolls: Fleet) -> Fleet:
    """The fleet with one replica."""
    return serving(rolls, 1)


@pytest.fixture
def two(rolls: Fleet) -> Fleet:
    """The fleet with two replicas."""
    return serving(rolls, 2)


def serving(fleet: Fleet, replicas: int) -> Fleet:
    """The fleet with so many replicas that serve; others may be ending, and serve nobody."""
    fleet.apply(declared(fleet, replicas))
    kubectl_wait_ready(fleet)
    until(f"{replicas} pods", lambda: len(alive(fleet)) == replicas, GONE_S, seen=fleet.describe)
    return fleet


def declared(fleet: Fleet, replicas: int, surge: int = 0, **engine: Any) -> Object:
    """The resource, with changes to spec.engine."""
    resource = fleet.resource(scaling={"mode": "Fixed"}, replicas=replicas)
    resource["spec"]["engine"] |= {
        "extraArgs": ARGUMENTS,
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
        **engine,
    }
    if surge:
        resource["spec"]["rollout"] = {"maxSurge": surge}
    return resource


def kubectl_wait_ready(fleet: Fleet) -> None:
    """What a script does after a change. To kubectl a Ready of the spec before does not count."""
    fleet.kube.kubectl(
        *("wait", "--for=condition=Ready", f"lls/{fleet.name}", "-n", fleet.namespace),
        f"--timeout={UP_S:.0f}s",
        timeout=UP_S + 10,
    )


def uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def alive(fleet: Fleet) -> list[Object]:
    """The pods that are not ending."""
    return [pod for pod in fleet.pods() if "deletionTimestamp" not in pod["metadata"]]


def is_ready(pod: Object) -> bool:
    told = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in told)


def backs_off(pod: Object) -> bool:
    """Whether a container of the pod has failed, and waits before it is tried again."""
    statuses = pod["status"].get("containerStatuses", [])
    return any(one["state"].get("waiting", {}).get("reason") in BACKS_OFF for one in statuses)


def wait_progress(fleet: Fleet, says: str) -> None:
    """Wait until Progressing says so of the present spec, in a rollout."""

    def message() -> str:
        found = condition(fleet.get(), "Progressing") or {}
        return str(found.get("message")) if found.get("reason") == "RollingOut" else str(found)

    until(f"Progressing to say `{says}`", lambda: says in message(), TOLD_S, seen=message)


def events(fleet: Fleet, reason: str, begins: str = "") -> list[Object] | None:
    """The Events about the fleet with this reason; None for none."""
    server = uid(fleet.get())
    told = [
        event
        for event in fleet.kube.list("event", fleet.namespace)
        if (event["involvedObject"].get("uid"), event["reason"]) == (server, reason)
    ]
    return [event for event in told if event["message"].startswith(begins)] or None


def wait_gone(fleet: Fleet, gone: str) -> None:
    """Wait until a pod has drained and ended."""
    until("the old pod to end", lambda: gone not in map(uid, fleet.pods()), GONE_S, seen=fleet.describe)


def take_back(fleet: Fleet, pod: Object) -> None:
    """The one command that the documentation names: the spec that the ReplicaSet of `pod` was made from."""
    (owner,) = (ref["name"] for ref in pod["metadata"]["ownerReferences"] if ref["kind"] == "ReplicaSet")
    path = r"{.metadata.annotations.llamaserver\.dev/last-accepted-spec}"
    spec = fleet.kube.kubectl("get", f"replicaset/{owner}", "-n", fleet.namespace, "-o", f"jsonpath={path}")
    patch = f'[{{"op": "replace", "path": "/spec", "value": {spec}}}]'
    fleet.kube.kubectl("patch", f"lls/{fleet.name}", "-n", fleet.namespace, "--type", "json", "-p", patch)


def assert_served(summary: dict[str, Any]) -> None:
    """Nothing was cut or refused, and at no time nothing was served."""
    assert summary["streams"] >= 2 * STREAMS, "hardly any stream ran"
    assert summary["cut"] == 0, (
        f"{summary['cut']} of {summary['streams']}: {summary['causes']}, at {summary['cut_at_s']} s"
    )
    assert summary["silent_s"] < LONGEST_SILENCE_S, f"nothing was served for {summary['silent_s']} s"


@contextmanager
def watched(fleet: Fleet) -> Iterator[Callable[[], list[Look]]]:
    """Every state of the fleet's pods that the API server tells of; calling the result ends it."""
    ready = '{.status.conditions[?(@.type=="Ready")].status}'
    line = f'{{.metadata.uid}}|{ready}|{{.metadata.deletionTimestamp}}{{"\\n"}}'
    process = fleet.kube.start_kubectl(
        *("get", "pods", "-n", fleet.namespace, "-l", fleet.selector, "--watch", "-o", f"jsonpath={line}")
    )

    def looks() -> list[Look]:
        process.terminate()
        said, _ = process.communicate(timeout=10)
        parts = (told.split("|") for told in said.splitlines())
        return [Look(uid, ready == "True", bool(ending)) for uid, ready, ending in parts]

    try:
        yield looks
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_what_is_tuned_live_replaces_no_pod(one: Fleet) -> None:
    before, template = set(map(uid, alive(one))), pod_template(one)
    for change in LIVE:
        resource = declared(one, 1)
        resource["spec"] |= change
        one.apply(resource)
        one.wait_condition("Accepted", "True", TOLD_S)
        assert pod_template(one) == template, change
    assert set(map(uid, alive(one))) == before


def deployed(fleet: Fleet) -> Object:
    """The spec of the Deployment."""
    deployment = fleet.kube.get("deployment", fleet.name, fleet.namespace)
    assert deployment is not None, "the Deployment is gone"
    spec: Object = deployment["spec"]
    return spec


def pod_template(fleet: Fleet) -> Object:
    """What the Deployment starts pods from."""
    template: Object = deployed(fleet)["template"]
    return template


def asked_for(fleet: Fleet) -> int:
    """How many pods the Deployment is to have."""
    return int(deployed(fleet)["replicas"])


def test_with_a_surge_the_successor_serves_before_the_old_one_goes(one: Fleet) -> None:
    old = uid(one.engine_pod())
    one.apply(declared(one, 1, surge=1))
    with watched(one) as looks, one.load(STREAMS) as load:
        one.apply(declared(one, 1, surge=1, maxModelLen=SHORTER))
        wait_progress(one, f"{WHY}; no pod ends before its successor serves")
        kubectl_wait_ready(one)
        wait_gone(one, old)
        load.check_running()
        summary = load.finish()
        seen = looks()
    serves = next(at for at, look in enumerate(seen) if look.ready and look.uid != old)
    ends = next(at for at, look in enumerate(seen) if look.ending and look.uid == old)
    assert serves < ends, "the old pod was ended before its successor served"
    assert_served(summary)


def test_why_a_pod_goes_is_told_before_it_does_and_what_that_means(one: Fleet) -> None:
    old = one.engine_pod()
    one.apply(declared(one, 1, maxModelLen=SHORTER))
    means = "nothing is served from when its pod has ended"
    wait_progress(one, f"{WHY}; {means}")
    found = until("the Event", lambda: events(one, "Rollout", f"{WHY}: {means}"), TOLD_S)
    told = min(found, key=lambda event: str(event["firstTimestamp"]))
    assert told["type"] == "Warning"
    ended = until("the old pod to be ended", lambda: asked_to_end(one, uid(old)), TOLD_S)
    assert datetime.fromisoformat(told["firstTimestamp"]) <= ended, "the pod went before it was said why"
    kubectl_wait_ready(one)


def asked_to_end(fleet: Fleet, pod: str) -> datetime | None:
    """When a pod was asked to end: its deletionTimestamp is the end of its grace period."""
    for found in fleet.pods():
        metadata = found["metadata"]
        if uid(found) == pod and "deletionTimestamp" in metadata:
            grace = timedelta(seconds=metadata["deletionGracePeriodSeconds"])
            return datetime.fromisoformat(metadata["deletionTimestamp"]) - grace
    return None


@pytest.mark.parametrize(
    ("change", "reason", "why"),
    [
        pytest.param(
            {"image": NOWHERE},
            "ImageUnavailable",
            f"spec.engine.image: {simulated.IMAGE} -> {NOWHERE}",
            id="image",
        ),
        pytest.param(
            {"extraArgs": [*ARGUMENTS, "--seed=none"]},
            "ArgumentRefused",
            "spec.engine.extraArgs: (absent) -> --seed=none",
            id="argument",
        ),
    ],
)
def test_a_version_that_does_not_start_costs_no_service_and_is_taken_back(
    two: Fleet, change: Object, reason: str, why: str
) -> None:
    before = set(map(uid, alive(two)))
    with two.load(STREAMS) as load:
        two.apply(declared(two, 2, **change))
        two.wait_condition("Ready", "False", STUCK_S, reason=reason)
        until("the new pod to fail for good", lambda: any(map(backs_off, alive(two))), STUCK_S)
        (kept,) = (pod for pod in alive(two) if uid(pod) in before)
        assert is_ready(kept)
        wait_progress(two, f"1 of 2 replicas have the present spec: {why}; container vllm of pod")
        (gone,) = before - {uid(kept)}
        wait_gone(two, gone)
        # An Event that is known already says nothing, and is not told again for a while.
        known = events(two, "ScaleDownWaits")
        two.kube.kubectl("scale", f"lls/{NAME}", "-n", NAMESPACE, "--replicas=1")
        two.wait_seen()
        stays("the Deployment of two pods", lambda: asked_for(two) == 2, LOOKED_AGAIN_S)
        if known is None:
            until("a scale-down to wait", lambda: events(two, "ScaleDownWaits"), TOLD_S)
        assert [uid(pod) for pod in alive(two) if is_ready(pod)] == [uid(kept)]

        take_back(two, kept)
        kubectl_wait_ready(two)
        load.check_running()
        summary = load.finish()
    left = alive(two)
    assert uid(kept) in map(uid, left), "the pod that had served all along was replaced by its own version"
    assert all(map(is_ready, left))
    assert_served(summary)
