"""From one replica to two and back under load, by hand and by the operator: no stream is cut."""

from __future__ import annotations

import time

import pytest

from harness.fleet import ANSWER_S, Fleet
from harness.kube import Object
from harness.manifests import CEILING, slo
from harness.server import READY_S
from harness.wait import stays, until
from scenarios.terms import LEASE_S, LEAST_TARGET_MS, TICK_S

BOOT_S = READY_S
"""For an engine that starts while another one fills both cores."""
SUSTAINED_S, EVERY_S = 30.0, 15.0
"""A queue is answered when it has lasted so long, at the next look of the slow loop."""
ELASTIC = {"mode": "Auto", "minReplicas": 1, "maxReplicas": 2}
SLOW_STREAMS = CEILING - 8
"""Many enough to miss the objective, and few enough that none waits."""
FEW, MORE = 10, 20
"""Streams at the Service, which may all reach one pod, and streams at the other pod alone."""
MOST_TOKENS = 150
"""Of these streams: two engines share two cores, and each stream has to end in the time to drain."""


@pytest.fixture
def fixed(alone: Fleet) -> Fleet:
    """The fleet with a fixed number of replicas, which `kubectl scale` moves."""
    alone.apply(alone.resource(scaling={"mode": "Fixed"}, replicas=1, tuning="Off"))
    alone.wait_ready()
    return alone


def wait_two(fleet: Fleet) -> None:
    """Wait until two replicas serve."""
    fleet.wait_replicas(2, BOOT_S)


def scaling(fleet: Fleet) -> str:
    """What the operator says of the replicas, for failures."""
    return f"{fleet.status().get('scaling')}; {fleet.describe()}"


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def scale(fleet: Fleet, replicas: int) -> None:
    fleet.kube.kubectl("scale", "lls", fleet.name, "-n", fleet.namespace, f"--replicas={replicas}")


def test_scaling_down_takes_the_pod_with_the_fewest_streams_and_cuts_none(fixed: Fleet) -> None:
    lengths = ("--output-max", str(MOST_TOKENS))
    with fixed.load(FEW, *lengths) as load:
        started = time.monotonic()
        old = fixed.engine_pod()
        scale(fixed, 2)
        wait_two(fixed)
        (young,) = (pod for pod in fixed.pods() if uid(pod) != uid(old))
        # Left to itself, Kubernetes ends the younger one.
        with fixed.load(MORE, *lengths, pod=young["status"]["podIP"]) as more:
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


def test_a_queue_that_lasts_adds_a_replica_and_latency_alone_does_not(alone: Fleet) -> None:
    # One that so many streams miss on any machine, however busy it was when the fleet's own was measured.
    alone.apply(alone.resource(scaling=ELASTIC, tuning="Off", objective=slo(LEAST_TARGET_MS)))
    alone.wait_seen()
    # What was set before ends with its lease; until then the engine admits less than what it started with.
    alone.wait_cap(alone.engine_pod()["status"]["podIP"], tuned=False, timeout=LEASE_S + ANSWER_S)
    with alone.load(concurrency=SLOW_STREAMS) as load:
        alone.wait_condition("SLOMet", "False", 60)
        stays("one replica", lambda: alone.asked_for() == 1, SUSTAINED_S + 2 * EVERY_S)
        alone.wait_condition("SLOMet", "False", 10)
        load.check_running()

    alone.apply(alone.resource(scaling=ELASTIC))
    with alone.load(concurrency=40) as load:
        until(
            "a second replica to be asked for",
            lambda: alone.asked_for() == 2,
            180,
            seen=lambda: scaling(alone),
        )
        load.check_running()
    wait_two(alone)
    assert alone.asked_for() == 2, "more than the one step that was needed, or one taken back at once"
