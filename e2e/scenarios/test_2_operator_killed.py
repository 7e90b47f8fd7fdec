"""The operator dies under load: the engine takes its start value back, and a new operator goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from demo.release import INSTANCE
from demo.settings import Settings
from harness.fleet import Fleet
from harness.kube import Object
from harness.wait import until
from scenarios.terms import LEASE_S, assert_near, learned_cap

GOES_ON_S = 10.0
"""A new operator has a cap in force again this long after its start."""
ANSWER_S = 10.0
"""An engine that is this busy answers late; what counts is that the cap does not stay."""
NOTICE_S = 3.0
"""Kubernetes gives a container's start in whole seconds, and the engine is asked a few times a second."""


def operator_pod(fleet: Fleet, settings: Settings) -> Object:
    """The one pod of the operator."""
    (pod,) = fleet.kube.list("pod", settings.operator_namespace, INSTANCE)
    return pod


def restarts(pod: Object) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


@contextmanager
def kubelet_stopped(fleet: Fleet) -> Iterator[None]:
    """Nobody restarts a container meanwhile."""
    fleet.node.stop("kubelet", "KILL")
    try:
        yield
    finally:
        fleet.node.start("kubelet")


def test_the_lease_ends_by_itself_and_a_new_operator_goes_on(
    fleet: Fleet, settings: Settings, engine_address: str
) -> None:
    with fleet.load(concurrency=40) as load:
        fleet.wait_cap(engine_address, tuned=True, timeout=60)
        until("a cap that was learned", lambda: learned_cap(fleet) >= 1, 90)
        pod = operator_pod(fleet, settings)
        before = restarts(pod)
        engine = fleet.ask(engine_address)
        expired = engine["retunes"]["expired"]

        with kubelet_stopped(fleet):
            fleet.kill_container(pod, "operator")
            killed = time.monotonic()
            reverted = fleet.wait_cap(engine_address, tuned=False, timeout=LEASE_S + 30)
        assert reverted - killed <= LEASE_S + ANSWER_S, "the cap outlived the lease"
        engine = fleet.ask(engine_address)
        assert engine["retunes"]["expired"] == expired + 1
        learned = learned_cap(fleet)

        fleet.wait_cap(engine_address, tuned=True, timeout=60)
        seen = datetime.now(UTC)
        resumed = fleet.ask(engine_address)
        assert_near(resumed["max_num_active_seqs"], learned)
        load.check_running()
    pod = operator_pod(fleet, settings)
    assert restarts(pod) == before + 1
    started = datetime.fromisoformat(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
    took = (seen - started).total_seconds()
    assert took <= GOES_ON_S + NOTICE_S, f"the new operator took {took:.0f} s to go on"
