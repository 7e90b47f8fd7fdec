"""KEDA, and the HorizontalPodAutoscaler that it makes, own the replicas; the operator owns the cap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.release import INSTANCE
from demo.settings import Settings
from harness import keda
from harness.fleet import Fleet
from harness.kube import Kube
from harness.server import READY_S
from harness.wait import until
from scenarios.terms import NAMESPACE

PER_REPLICA, MOST = 12, 2
FEW, MANY = 4, 40
"""Streams that need one replica and outlast the way down, and streams that need more than there may be."""
LONGEST_S = 900.0
"""The load is ended when it has served its purpose; this is longer than every wait together."""
DECIDED_S = 120.0
"""KEDA looks every 5 s, the autoscaler every 15 s, and its window is as long."""


@pytest.fixture(scope="module")
def autoscaled(
    kube: Kube, settings: Settings, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """The fleet with one replica, which a ScaledObject may make two by what the operator says of the whole
    fleet; afterwards as before.
    """
    with keda.running(kube, tmp_path_factory.mktemp("keda")):
        fleet.apply(fleet.resource(scaling={"mode": "External"}, replicas=1))
        fleet.wait_ready()
        (service,) = kube.list("service", settings.operator_namespace, INSTANCE)
        url = f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}/metrics"
        labels = f'{{namespace="{NAMESPACE}", name="{fleet.name}"}}'
        metrics = {each: f"llamaserver_requests_{each}{labels}" for each in ("running", "waiting")}
        kube.apply(
            keda.scaled_object(fleet.name, NAMESPACE, most=MOST, url=url, metrics=metrics, target=PER_REPLICA)
        )
        try:
            yield fleet
        finally:
            kube.delete("scaledobject", fleet.name, NAMESPACE, timeout=120)
            fleet.apply(fleet.resource())
            until("one pod", lambda: len(fleet.pods()) == 1, 120, every=1.0, seen=fleet.describe)
            fleet.wait_ready()


def wait_replicas(fleet: Fleet, replicas: int) -> None:
    """Wait until the autoscaler has written so many, and as many serve."""

    def told() -> str:
        hpa = fleet.kube.kubectl("get", "hpa", "-n", NAMESPACE, "-o", "jsonpath={.items[*].status}")
        return f"spec.replicas {fleet.get()['spec'].get('replicas')}; {fleet.describe()}; {hpa}"

    until(
        f"spec.replicas of {replicas}",
        lambda: fleet.get()["spec"]["replicas"] == replicas,
        DECIDED_S,
        seen=told,
    )
    until(
        f"{replicas} ready replicas",
        lambda: fleet.status().get("readyReplicas") == replicas and len(fleet.pods()) == replicas,
        READY_S,
        every=1.0,
        seen=told,
    )


def writers_of_replicas(fleet: Fleet) -> set[str]:
    """Who wrote spec.replicas through the scale subresource."""
    entries = fleet.kube.managed_fields("llamaserver", fleet.name, NAMESPACE)
    return {entry["manager"] for entry in entries if entry.get("subresource") == "scale"}


def test_an_autoscaler_owns_the_replicas_and_the_operator_the_cap(autoscaled: Fleet) -> None:
    address = autoscaled.engine_pod()["status"]["podIP"]
    with autoscaled.load(concurrency=FEW, seconds=LONGEST_S) as few:
        with autoscaled.load(concurrency=MANY, seconds=LONGEST_S):
            autoscaled.wait_cap(address, tuned=True, timeout=60)
            wait_replicas(autoscaled, 2)
            assert writers_of_replicas(autoscaled) == {"kube-controller-manager"}
        wait_replicas(autoscaled, 1)
        few.check_running()
        summary = few.finish()
    assert summary["streams"] >= FEW
    assert summary["cut"] == 0, f"{summary['cut']} of {summary['streams']} streams: {summary['causes']}"
