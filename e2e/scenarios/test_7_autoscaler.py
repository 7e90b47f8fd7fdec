"""KEDA with the HorizontalPodAutoscaler that it makes, or one that a user wrote, owns the replicas; the
operator owns the cap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.release import INSTANCE
from demo.settings import Settings
from harness import figures, keda, simulated
from harness.fleet import Fleet
from harness.kube import Kube
from harness.server import READY_S
from harness.wait import until
from scenarios.terms import NAMESPACE

PER_REPLICA, MOST = 12, 2
FEW, MANY = 4, 40
"""Streams that need one replica and outlast the way down, and streams that need more than there may be."""
ARGUMENTS, TARGET_MS = ["--profile=CPU", "--speed=0.5"], 25
"""Few streams hold the objective, and the ceiling's miss it by far: there is always a reason to cut."""
LONGEST_S = 900.0
"""The load is ended when it has served its purpose; this is longer than every wait together."""
DECIDED_S = 120.0
"""KEDA and the autoscaler look every 5 s, and the autoscaler's window is 15 s."""
DEMAND = "llamaserver_requests"
"""The external metric by which the user's own autoscaler decides: what runs and what waits."""


class Owned:
    """A fleet with one replica, and what an autoscaler needs to know of it."""

    def __init__(self, kube: Kube, settings: Settings, folder: Path, name: str) -> None:
        self.kube, self.folder, self.name = kube, folder, name
        self.fleet = simulated.fleet(kube, name, NAMESPACE, TARGET_MS)
        (service,) = kube.list("service", settings.operator_namespace, INSTANCE)
        self.url = f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}/metrics"

    def demand(self, metric: str) -> float:
        """What the operator says runs and waits. Raises KeyError for another metric, or for none."""
        if metric != DEMAND:
            raise KeyError(metric)
        said = self.kube.run("curl", "-sf", "-m", "5", self.url, timeout=10)
        labels = {"namespace": NAMESPACE, "name": self.name}
        return sum(figures.summed(said, f"{DEMAND}_{each}", **labels) for each in ("running", "waiting"))


@contextmanager
def by_keda(owned: Owned) -> Iterator[None]:
    """A ScaledObject, which may make two by what the operator says of the whole fleet."""
    labels = f'{{namespace="{NAMESPACE}", name="{owned.name}"}}'
    metrics = {each: f"llamaserver_requests_{each}{labels}" for each in ("running", "waiting")}
    scaled = keda.scaled_object(
        owned.name, NAMESPACE, most=MOST, url=owned.url, metrics=metrics, target=PER_REPLICA
    )
    with keda.running(owned.kube, owned.folder):
        owned.kube.apply(scaled)
        try:
            yield
        finally:
            owned.kube.delete("scaledobject", owned.name, NAMESPACE, timeout=120)


@contextmanager
def by_hand(owned: Owned) -> Iterator[None]:
    """A HorizontalPodAutoscaler of a user's own on the LlamaServer's scale subresource."""
    hpa = figures.autoscaler(owned.name, NAMESPACE, most=MOST, metric=DEMAND, target=PER_REPLICA)
    with figures.running(owned.kube, owned.folder, owned.demand):
        owned.kube.apply(hpa)
        try:
            yield
        finally:
            owned.kube.delete("hpa", owned.name, NAMESPACE)


@pytest.fixture(params=[by_keda, by_hand])
def owned(
    request: pytest.FixtureRequest,
    kube: Kube,
    settings: Settings,
    operator: None,  # noqa: ARG001
    tmp_path: Path,
) -> Iterator[Owned]:
    """A fleet whose replicas are somebody else's; both go with the scenario."""
    owner = request.param
    made = Owned(kube, settings, tmp_path, owner.__name__.replace("_", "-"))
    fleet = made.fleet
    fleet.apply(simulated.resource(fleet, ARGUMENTS, scaling={"mode": "External"}, replicas=1))
    fleet.wait_ready()
    with owner(made):
        yield made
    kube.delete("llamaserver", made.name, NAMESPACE)


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


def test_an_autoscaler_owns_the_replicas_and_the_operator_the_cap(owned: Owned) -> None:
    fleet = owned.fleet
    address = fleet.engine_pod()["status"]["podIP"]
    with fleet.load(concurrency=FEW, seconds=LONGEST_S) as few:
        with fleet.load(concurrency=MANY, seconds=LONGEST_S):
            fleet.wait_cap(address, tuned=True, timeout=60)
            wait_replicas(fleet, 2)
            assert writers_of_replicas(fleet) == {"kube-controller-manager"}
        wait_replicas(fleet, 1)
        few.check_running()
        summary = few.finish()
    assert summary["streams"] >= FEW
    assert summary["cut"] == 0, f"{summary['cut']} of {summary['streams']} streams: {summary['causes']}"
