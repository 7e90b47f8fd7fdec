"""From one replica to two and back under load, by hand and by the operator: no stream is cut."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from harness.fleet import ANSWER_S, Fleet
from harness.kube import Object
from harness.manifests import CEILING
from harness.server import READY_S
from harness.wait import stays, until
from scenarios.terms import LEASE_S, TICK_S

BOOT_S = READY_S
"""For an engine that starts while another one fills both cores."""
SUSTAINED_S, EVERY_S = 30.0, 15.0
"""A queue is answered when it has lasted so long, at the next look of the slow loop."""
ELASTIC = {"mode": "Auto", "minReplicas": 1, "maxReplicas": 2}
SLOW_STREAMS = CEILING - 8
"""Many enough to miss the objective, and few enough that none waits."""
FEW, MORE = 4, 8
"""Streams at the Service, which may all reach one pod, and streams at the other pod alone."""


@pytest.fixture
def restored(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet, with one replica; afterwards as before."""
    fleet.wait_ready()
    yield fleet
    fleet.apply(fleet.resource())
    until("one pod", lambda: len(fleet.pods()) == 1, 120, every=1.0, seen=fleet.describe)
    fleet.wait_ready()


@pytest.fixture
def fixed(restored: Fleet) -> Fleet:
    """The fleet with a fixed number of replicas, which `kubectl scale` moves."""
    restored.apply(restored.resource(scaling={"mode": "Fixed"}, replicas=1, tuning="Off"))
    restored.wait_ready()
    return restored


def wait_two(fleet: Fleet) -> None:
    """Wait until two replicas serve."""
    two = "two ready replicas"
    until(two, lambda: fleet.status().get("readyReplicas") == 2, BOOT_S, every=1.0, seen=fleet.describe)


def asked_for(fleet: Fleet) -> int:
    """The replicas that the Deployment is to have."""
    deployment = fleet.kube.get("deployment", fleet.name, fleet.namespace)
    assert deployment is not None, "the Deployment is gone"
    return int(deployment["spec"]["replicas"])


def scaling(fleet: Fleet) -> str:
    """What the operator says of the replicas, for failures."""
    return f"{fleet.status().get('scaling')}; {fleet.describe()}"


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def scale(fleet: Fleet, replicas: int) -> None:
    fleet.kube.kubectl("scale", "lls", fleet.name, "-n", fleet.namespace, f"--replicas={replicas}")


def test_scaling_down_takes_the_pod_with_the_fewest_streams_and_cuts_none(fixed: Fleet) -> None:
    with fixed.load(concurrency=FEW) as load:
        started = time.monotonic()
        old = fixed.engine_pod()
        scale(fixed, 2)
        wait_two(fixed)
        (young,) = (pod for pod in fixed.pods() if uid(pod) != uid(old))
        # Left to itself, Kubernetes ends the younger one.
        with fixed.load(concurrency=MORE, pod=young["status"]["podIP"]) as more:
            until(
                "the streams to run on the younger pod",
                lambda: fixed.ask(young["status"]["podIP"])["running"] >= MORE,
                60,
            )
            time.sleep(3 * TICK_S)  # the operator has seen them
            scale(fixed, 1)
            down_s = time.monotonic() - started
            until("one pod", lambda: len(fixed.pods()) == 1, 90, every=1.0, seen=fixed.describe)
            left = fixed.engine_pod()
            for each in (load, more):
                each.check_running()
            summaries = load.finish(), more.finish()
    assert uid(left) == uid(young), f"of {FEW} streams and at least {MORE}, the many had to go"
    for summary, least in zip(summaries, (20, MORE), strict=True):
        assert summary["streams"] >= least, "hardly any stream ran"
        assert summary["cut"] == 0, (
            f"{summary['cut']} of {summary['streams']} streams were cut: {summary['causes']}, "
            f"{summary['cut_at_s']} s after their start; the step down came after {down_s:.0f} s"
        )


def test_a_queue_that_lasts_adds_a_replica_and_latency_alone_does_not(restored: Fleet) -> None:
    restored.apply(restored.resource(scaling=ELASTIC, tuning="Off"))
    restored.wait_seen()
    # What was set before ends with its lease; until then the engine admits less than what it started with.
    restored.wait_cap(restored.engine_pod()["status"]["podIP"], tuned=False, timeout=LEASE_S + ANSWER_S)
    with restored.load(concurrency=SLOW_STREAMS) as load:
        restored.wait_condition("SLOMet", "False", 60)
        stays("one replica", lambda: asked_for(restored) == 1, SUSTAINED_S + 2 * EVERY_S)
        restored.wait_condition("SLOMet", "False", 10)
        load.check_running()

    restored.apply(restored.resource(scaling=ELASTIC))
    with restored.load(concurrency=40) as load:
        until(
            "a second replica to be asked for",
            lambda: asked_for(restored) == 2,
            180,
            seen=lambda: scaling(restored),
        )
        load.check_running()
    wait_two(restored)
    assert asked_for(restored) == 2, "more than the one step that was needed, or one taken back at once"
