"""Engines that only Prometheus reaches: it is told how often, replicas follow the demand, and nothing is
moved in running engines. When Prometheus falls silent the age of its figures is told, and the number stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.errors import ClusterError
from demo.release import INSTANCE
from demo.settings import Settings
from harness import prometheus, simulated
from harness.fleet import ENGINE_PORT, HEALTH, Fleet
from harness.kube import Kube, Object
from harness.wait import stays, until
from scenarios.terms import NAMESPACE

NAME = "scraped"
CAP, STREAMS, MOST = 4, 12, 2
"""Sequences that an engine takes, clients that want more, and replicas that there may be."""
NO_MATTER_MS = 1000
SCRAPED_S, RISEN_S, TOLD_S = 60.0, 120.0, 60.0
HELD_S = 20.0
AGAIN_S = 90.0
"""After failures Prometheus is asked more and more seldom, at last once a minute."""
LONGEST_S = 600.0


@pytest.fixture
def scraped(kube: Kube, operator: None) -> Iterator[Fleet]:  # noqa: ARG001
    """A LlamaServer whose figures come from Prometheus, which does not run yet."""
    fleet = simulated.fleet(kube, NAME, NAMESPACE, NO_MATTER_MS)
    made = simulated.resource(
        fleet,
        ["--profile=CPU", "--speed=0.5"],
        {"maxNumSeqs": CAP},
        scaling={"mode": "Auto", "minReplicas": 1, "maxReplicas": MOST},
    )
    made["spec"]["metrics"] = {"source": "Prometheus"}
    fleet.apply(made)
    fleet.wait_ready()
    yield fleet
    kube.delete("llamaserver", NAME, NAMESPACE)


@contextmanager
def unreachable(fleet: Fleet, engine: Object, operator: Object) -> Iterator[None]:
    """The operator's pod has no way to an engine meanwhile."""
    address = str(engine["status"]["podIP"])

    def ip(verb: str) -> None:
        fleet.in_network_of(operator, "operator", "ip", "route", verb, "blackhole", f"{address}/32")

    ip("add")
    try:
        with pytest.raises(ClusterError):
            health = f"http://{address}:{ENGINE_PORT}{HEALTH}"
            fleet.in_network_of(operator, "operator", "curl", "-sf", "-m", "2", health)
        yield
    finally:
        ip("del")


def setpoints(fleet: Fleet) -> dict[str, tuple[int, int]]:
    """What is in force in every engine: its cap, and how often it was changed."""
    engines = {pod["metadata"]["name"]: fleet.ask(pod["status"]["podIP"]) for pod in fleet.pods()}
    return {name: (one["max_num_active_seqs"], one["generation"]) for name, one in engines.items()}


def reason(fleet: Fleet) -> str:
    """Why there are as many replicas as there are, as the status tells."""
    return str(fleet.status().get("scaling", {}).get("reason"))


def test_replicas_follow_what_prometheus_tells_and_stay_when_it_falls_silent(
    scraped: Fleet, settings: Settings, tmp_path: Path
) -> None:
    (operator,) = scraped.kube.list("pod", settings.operator_namespace, INSTANCE)
    prometheus.scrape(tmp_path, scraped.pods())
    first = setpoints(scraped)
    with (
        unreachable(scraped, scraped.engine_pod(), operator),
        scraped.load(STREAMS, seconds=LONGEST_S) as load,
    ):
        with prometheus.running(scraped.kube, tmp_path):
            available = scraped.wait_condition("MetricsAvailable", "True", SCRAPED_S, reason="AllPodsReport")
            every = f"Prometheus scrapes them every {prometheus.SCRAPED_EVERY_S} s"
            assert f"{every}, and nothing is decided more often" in available["message"]
            tuned = scraped.wait_condition("Tuned", "False", TOLD_S, reason="ActuatorUnavailable")
            assert "no cap and no budget is moved" in tuned["message"]
            assert scraped.status()["effective"]["metricsSource"] == "Prometheus"
            until("its streams to be told", lambda: scraped.running() >= CAP - 1, TOLD_S, seen=scraped.status)
            until("another replica", lambda: scraped.asked_for() == MOST, RISEN_S, seen=scraped.status)
            scraped.wait_replicas(MOST)
            prometheus.scrape(tmp_path, scraped.pods())
            scraped.wait_condition("MetricsAvailable", "True", SCRAPED_S)
        assert setpoints(scraped).items() >= first.items(), "a running engine was changed"

        engines, in_force = scraped.engines(), setpoints(scraped)
        silent = scraped.wait_condition("MetricsAvailable", "False", TOLD_S, reason="PrometheusSilent")
        assert f"Prometheus {prometheus.URL} cannot be reached" in silent["message"]
        assert re.search(r"the newest figures are \d+ s old", silent["message"])

        def held() -> bool:
            return (scraped.asked_for(), scraped.engines()) == (MOST, engines)

        stays("what serves", held, HELD_S)
        assert setpoints(scraped) == in_force
        until("what holds the number to be told", lambda: reason(scraped).startswith("hold: "), TOLD_S)
        scraped.wait_condition("Ready", "True", TOLD_S)

        with prometheus.running(scraped.kube, tmp_path):
            scraped.wait_condition("MetricsAvailable", "True", AGAIN_S, reason="AllPodsReport")
        load.check_running()
        summary = load.finish()
    assert summary["streams"] >= STREAMS
    assert summary["cut"] == 0, summary["causes"]
