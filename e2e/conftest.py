"""Fixtures of the scenarios: the cluster, the operator installed with its chart, and a shared engine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from demo import release
from demo.settings import RELEASE, Settings
from demo.settings import parse as demo_settings
from harness.evidence import gather
from harness.fleet import Fleet
from harness.kube import Kube, KubeError
from harness.manifests import ONE_CORE_PROCESS, namespace
from harness.server import NAME_LABEL
from harness.wait import until
from scenarios.order import in_order
from scenarios.slow import Slow
from scenarios.terms import (
    FEW_STREAMS,
    LEAST_TARGET_MS,
    MEASURED_S,
    MOST_SEQS,
    NAMESPACE,
    OPERATOR_VALUES,
    ROOM,
    pair_of,
)

DEMO = demo_settings([]).namespace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that share an engine come one after the other; what takes long by itself begins first."""
    items[:] = in_order(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure is reported with the state of the cluster and the operator's log."""
    report = yield
    if report.failed:
        report.sections.append(("the cluster", gather(NAMESPACE, demo_settings([]).operator_namespace)))
    return report


@pytest.fixture(scope="session")
def kube() -> Kube:
    """The project's own node, which has to be up."""
    try:
        return Kube.own()
    except KubeError as error:
        pytest.exit(f"{error}; then run the scenarios again", returncode=2)


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Images and namespaces."""
    output: Path = tmp_path_factory.mktemp("scenarios")
    return dataclasses.replace(demo_settings(["--output", str(output)]), namespace=NAMESPACE)


def _end_demo(kube: Kube) -> None:
    """Have what `make demo` left running end by and by."""
    if kube.kubectl("get", "crd,namespace", "-o", "name").count(DEMO):
        kube.kubectl("delete", "llamaservers,jobs", "--all", "-n", DEMO, "--timeout=60s", timeout=70)


def _wait_for_room(kube: Kube) -> None:
    """Wait until the demo's engines have ended: two cores have room for the scenarios' own alone, and no
    scenario is measured beside engines that drain.
    """
    until("the demo's engines to end", lambda: not kube.list("pod", DEMO, NAME_LABEL), 120, every=1.0)


@pytest.fixture(scope="session")
def operator(kube: Kube, settings: Settings) -> Iterator[None]:
    """The operator, installed with the chart and a short lease while the demo's engines end; uninstalled at
    the end.
    """
    _end_demo(kube)
    flags = [word for name, value in OPERATOR_VALUES.items() for word in ("--set", f"{name}={value}")]
    release.install(kube, settings, *flags)
    _wait_for_room(kube)
    yield
    kube.helm("uninstall", RELEASE, "-n", settings.operator_namespace, "--ignore-not-found", "--wait")


@pytest.fixture(scope="session")
def fleet(kube: Kube, settings: Settings, operator: None) -> Iterator[Fleet]:  # noqa: ARG001
    """A LlamaServer `chat`, Ready, shared by the scenarios. Who changes it begins with `alone` or `pair`."""
    kube.apply(namespace(NAMESPACE))
    shared = Fleet(
        *(kube, "chat", NAMESPACE, settings.engine_image, settings.runtime_class, LEAST_TARGET_MS),
        env=[ONE_CORE_PROCESS],
        most=MOST_SEQS,
    )
    shared.apply(shared.resource(tuning="Off"))
    shared.wait_ready()
    few_ms = shared.latency_ms(FEW_STREAMS, MEASURED_S)
    shared.target_ms = max(LEAST_TARGET_MS, math.ceil(ROOM * few_ms))
    shared.apply(shared.resource())
    shared.wait_ready()
    yield shared
    kube.delete("llamaserver", shared.name, NAMESPACE)


@pytest.fixture
def alone(fleet: Fleet) -> Fleet:
    """The fleet as it was declared at first, with one engine, whatever the scenario before has left."""
    fleet.apply(fleet.resource())
    fleet.wait_seen()
    fleet.wait_replicas(1)
    fleet.wait_ready()
    return fleet


@pytest.fixture
def pair(fleet: Fleet) -> Fleet:
    """The fleet with two engines that nobody tunes; those that the scenario before has left are kept."""
    fleet.apply(pair_of(fleet))
    fleet.wait_seen()
    fleet.wait_replicas(2)
    fleet.wait_ready()
    return fleet


@pytest.fixture
def engine_address(alone: Fleet) -> str:
    """Address of the one engine, which runs and is tuned at will."""
    return str(alone.engine_pod()["status"]["podIP"])


@pytest.fixture(scope="session")
def slow(kube: Kube, operator: None) -> Iterator[Slow]:  # noqa: ARG001
    """Two fleets that have begun to miss their objectives; ended once they were looked at."""
    made = Slow(kube)
    try:
        made.begin()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="session", autouse=True)
def begun(request: pytest.FixtureRequest) -> None:
    """Who has to miss an objective for ten minutes does so while other scenarios run. What goes wrong with it
    is told to the scenario that asks for it, and to no other.
    """
    if any("slow" in getattr(item, "fixturenames", ()) for item in request.session.items):
        # Whatever it is: of this fixture it would be an error of every scenario. pytest keeps it with `slow`
        # and raises it again for who asks for that.
        with suppress(Exception):
            request.getfixturevalue("slow")
