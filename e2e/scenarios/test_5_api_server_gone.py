"""Without an API server for several leases the engines stay tuned, and the status catches up afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from demo.release import INSTANCE
from demo.settings import Settings
from harness.fleet import Fleet
from harness.kube import KubeError
from harness.manifests import CEILING
from harness.wait import until
from scenarios.terms import LEASE_S

OUTAGE_S = 4.0 * LEASE_S
"""Whatever is still in force at the end was renewed meanwhile."""


@contextmanager
def no_api_server(fleet: Fleet) -> Iterator[None]:
    """Nobody reaches the API server meanwhile. Afterwards Kubernetes' own controllers start afresh with it,
    so that nothing here waits for them to come out of their back-off.
    """
    fleet.node.stop("kube-apiserver", "KILL")
    try:
        yield
    finally:
        fleet.node.start("kube-apiserver")
        until("the API server to be back", lambda: answers(fleet), 180, every=1.0)
        for component in ("kube-controller-manager", "kube-scheduler"):
            fleet.node.restart(component, "KILL")


def answers(fleet: Fleet) -> bool:
    try:
        return bool(fleet.kube.kubectl("get", "--raw", "/readyz", timeout=5))
    except KubeError:
        return False


def operator_restarts(fleet: Fleet, settings: Settings) -> dict[str, int]:
    """Restarts by pod uid."""
    return {
        pod["metadata"]["uid"]: sum(c["restartCount"] for c in pod["status"]["containerStatuses"])
        for pod in fleet.kube.list("pod", settings.operator_namespace, INSTANCE)
    }


def test_tuning_goes_on_without_the_api_server(fleet: Fleet, settings: Settings, engine_address: str) -> None:
    before, engines = operator_restarts(fleet, settings), fleet.engines()
    with fleet.load(concurrency=40) as load:
        fleet.wait_cap(engine_address, tuned=True, timeout=60)
        with no_api_server(fleet):
            began = time.monotonic()
            first = fleet.ask(engine_address)
            while (gone := time.monotonic() - began) < OUTAGE_S:
                engine = fleet.ask(engine_address)
                capped = engine["max_num_active_seqs"] < CEILING
                assert capped, f"the cap was let go {gone:.0f} s into the outage"
                time.sleep(2)
            last = fleet.ask(engine_address)
            assert last["generation"] > first["generation"], "nothing was renewed"
            assert last["retunes"]["expired"] == first["retunes"]["expired"]
            assert last["lease_expires_in_s"] > 0
        load.check_running()

    def caught_up() -> bool:
        status = fleet.status()
        idle: bool = status.get("diagnosis", {}).get("cause") == "Idle"
        return idle and status.get("observed", {}).get("running", 0) == 0

    until("the status to tell that the load is over", caught_up, 90, every=1.0, seen=fleet.describe)
    assert operator_restarts(fleet, settings) == before, "the operator was restarted"
    assert fleet.engines() == engines, "an engine was restarted"
    # The kubelet's watches come out of their back-off a minute later, which the next scenario would wait for.
    fleet.node.restart("kubelet", "KILL")
    fleet.wait_ready()
