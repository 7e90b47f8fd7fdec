"""What the end-to-end scenarios are made of, as far as no cluster is needed for it."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.settings import REPOSITORY
from harness import aggregated, figures, prometheus, simulated
from harness.fleet import Fleet
from harness.kube import Kube
from llamaserver.api import parse
from scenarios import test_10_models as models
from scenarios.order import FIRST, in_order
from scenarios.slow import declared
from scenarios.terms import pair_of

FILES = sorted((REPOSITORY / "e2e" / "scenarios").glob("test_*.py"))
EXPOSITION = """\
# TYPE llamaserver_requests_running gauge
llamaserver_requests_running{namespace="a",name="chat"} 7.0
llamaserver_requests_running{namespace="b",name="chat"} 30.0
llamaserver_requests_waiting{namespace="a",name="chat"} 2.0
"""


class Item:
    """What pytest collects of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(Kube(list, {}, "kubectl", "helm"), "chat", "ns", simulated.IMAGE, None, 25)


def test_every_scenario_has_a_place_and_every_place_a_scenario() -> None:
    assert sorted(FIRST) == sorted(file.stem for file in FILES)


def test_they_run_by_their_places_and_new_ones_at_the_end() -> None:
    items = [Item(Path(f"{name}.py")) for name in ("test_new", FIRST[1], FIRST[0], FIRST[1])]
    assert [item.path.stem for item in in_order(items)] == [FIRST[0], FIRST[1], FIRST[1], "test_new"]


def test_the_operator_accepts_what_they_declare(fleet: Fleet) -> None:
    hub: Any = SimpleNamespace(url="http://10.0.0.1:80", commit="0" * 40)
    made = [
        pair_of(fleet, recovery={"replaceStalledAfter": "2m"}),
        simulated.resource(fleet, ["--profile=CPU"], {"maxNumSeqs": 4}, scaling={"mode": "External"}),
        declared(fleet, {"restart": {"minInterval": "1h"}}),
        models.resource(fleet, hub),
    ]
    for resource in made:
        parse(resource)


def test_an_engine_has_what_its_fleet_says_of_its_environment_and_nothing_else(fleet: Fleet) -> None:
    said = [{"name": "A", "value": "0"}]
    told = Fleet(fleet.kube, "chat", "ns", simulated.IMAGE, None, 25, env=said)
    assert told.resource()["spec"]["engine"]["env"] == said
    assert "env" not in fleet.resource()["spec"]["engine"]


def test_metrics_are_added_up_by_their_labels() -> None:
    assert figures.summed(EXPOSITION, "llamaserver_requests_running", name="chat") == 37.0
    assert figures.summed(EXPOSITION, "llamaserver_requests_running", name="chat", namespace="a") == 7.0
    with pytest.raises(KeyError):
        figures.summed(EXPOSITION, "llamaserver_requests", name="chat")


def test_an_external_metric_is_told_as_the_autoscaler_asks_for_it() -> None:
    def read(name: str) -> float:
        return {"demand": 9.5}[name]

    status, said = figures.answer(f"{figures.ROOT}/namespaces/a/demand?labelSelector=", read)
    assert status is HTTPStatus.OK
    assert said["kind"] == "ExternalMetricValueList"
    assert [(item["metricName"], item["value"]) for item in said["items"]] == [("demand", "9500m")]
    assert figures.answer(figures.ROOT, read)[1]["groupVersion"] == "external.metrics.k8s.io/v1beta1"
    for path in (f"{figures.ROOT}/namespaces/a/other", "/apis", "/"):
        assert figures.answer(path, read)[0] is HTTPStatus.NOT_FOUND


def test_an_aggregated_api_leads_to_the_program_that_serves_it() -> None:
    service, slice_, registered = aggregated.objects("x", "ns", ("g.k8s.io", "v1"), "10.0.0.1", 6445)
    assert registered["metadata"]["name"] == aggregated.api_service(("g.k8s.io", "v1")) == "v1.g.k8s.io"
    assert registered["spec"]["service"] == {"name": "x", "namespace": "ns", "port": 443}
    assert service["spec"]["ports"][0]["targetPort"] == slice_["ports"][0]["port"] == 6445
    assert slice_["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]


def test_prometheus_is_told_of_engines_with_the_labels_that_the_operator_goes_by(tmp_path: Path) -> None:
    pod = {"metadata": {"namespace": "ns", "name": "chat-0"}, "status": {"podIP": "10.0.0.7"}}
    prometheus.scrape(tmp_path, [pod])
    (told,) = json.loads((tmp_path / prometheus.TARGETS).read_text())
    assert told == {"targets": ["10.0.0.7:8000"], "labels": {"namespace": "ns", "pod": "chat-0"}}
