"""An engine dies and comes back with its start value: three ticks after Ready its cap is in force again."""

from __future__ import annotations

from datetime import UTC, datetime

from harness.fleet import Fleet
from harness.kube import Object
from harness.wait import until
from scenarios.terms import TICK_S, assert_near, learned_cap

NOTICE_S = 3.0
"""Kubernetes gives the moment of Ready in whole seconds, and the engine is asked a few times a second."""


def ready_since(pod: Object) -> datetime | None:
    """When the pod became Ready; None while it is not."""
    for condition in pod["status"].get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] == "True":
            return datetime.fromisoformat(condition["lastTransitionTime"])
    return None


def test_a_restarted_engine_gets_its_cap_back(fleet: Fleet, engine_address: str) -> None:
    # Refused connections are part of this scenario; the clients come back until the engine does.
    with fleet.load(concurrency=40) as load:
        fleet.wait_cap(engine_address, tuned=True, timeout=60)
        until("a cap that was learned", lambda: learned_cap(fleet) >= 1, 90)
        pod = fleet.engine_pod()
        boot = (fleet.snapshot(engine_address) or {})["boot_id"]
        fleet.kill_container(pod, "vllm")
        until("the engine to be gone", lambda: fleet.snapshot(engine_address) is None, 10, every=0.1)

        def ready_again() -> datetime | None:
            snapshot = fleet.snapshot(engine_address)
            return ready_since(fleet.engine_pod()) if snapshot and snapshot["boot_id"] != boot else None

        ready = until("the new engine to be Ready", ready_again, 180, every=0.25, seen=fleet.describe)
        fleet.wait_cap(engine_address, tuned=True, timeout=60)
        took = (datetime.now(UTC) - ready).total_seconds()
        resumed = fleet.ask(engine_address)
        assert_near(resumed["max_num_active_seqs"], learned_cap(fleet))
        load.check_running()
    assert took <= 3 * TICK_S + NOTICE_S, f"the cap was in force {took:.0f} s after Ready"
    assert fleet.engine_pod()["metadata"]["uid"] == pod["metadata"]["uid"]
