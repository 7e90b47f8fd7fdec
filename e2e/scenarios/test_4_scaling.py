"""From one replica to two and back under load: no stream is cut."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from harness.fleet import Fleet
from harness.wait import until

BOOT_S = 240.0
"""For an engine that starts while another one fills both cores."""


@pytest.fixture
def fixed(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet with a fixed number of replicas, which `kubectl scale` moves; afterwards as before."""
    fleet.wait_ready()
    fleet.apply(fleet.resource(scaling={"mode": "Fixed"}, replicas=1, tuning="Off"))
    fleet.wait_ready()
    yield fleet
    fleet.apply(fleet.resource())
    until("one pod", lambda: len(fleet.pods()) == 1, 120, every=1.0, seen=fleet.describe)
    fleet.wait_ready()


def scale(fleet: Fleet, replicas: int) -> None:
    fleet.kube.kubectl("scale", "lls", fleet.name, "-n", fleet.namespace, f"--replicas={replicas}")


def test_scaling_up_and_down_cuts_no_stream(fixed: Fleet) -> None:
    with fixed.load(concurrency=4) as load:
        scale(fixed, 2)
        until(
            "two ready replicas",
            lambda: fixed.status().get("readyReplicas") == 2,
            BOOT_S,
            every=1.0,
            seen=fixed.describe,
        )
        time.sleep(5)  # streams on both
        scale(fixed, 1)
        until("one pod", lambda: len(fixed.pods()) == 1, 90, every=1.0, seen=fixed.describe)
        assert load.running(), "the load was to outlast both changes"
        summary = load.finish()
    assert summary["streams"] > 20, "hardly any stream ran"
    assert summary["cut"] == 0, (
        f"{summary['cut']} of {summary['streams']} streams were cut: {summary['causes']}"
    )
