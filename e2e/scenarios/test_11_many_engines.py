"""Six engines under one LlamaServer, simulated ones: told one by one, and the idle ones go first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from harness import simulated
from harness.fleet import Fleet, Load
from harness.kube import Kube, Object
from harness.manifests import namespace
from harness.wait import until
from scenarios.terms import NAMESPACE, TICK_S

NAME = "many"
MANY = 6
STREAMS = (7, 4, 2)
"""At three of the engines, each more than at the next; all run at once, also with the cap of a slow start."""
SPEED = 0.5
"""Of the simulated machine: streams take 1.5 to 9 s, longer than it takes to choose who goes."""
NO_MATTER_MS = 1000
UP_S, DOWN_S = 90.0, 60.0


@pytest.fixture
def many(kube: Kube, operator: None) -> Iterator[Fleet]:  # noqa: ARG001
    """A LlamaServer of as many simulated engines as `kubectl scale` says, at first one."""
    simulated.load_image()
    kube.apply(namespace(NAMESPACE))
    fleet = Fleet(kube, NAME, NAMESPACE, simulated.IMAGE, None, NO_MATTER_MS)
    resource = fleet.resource(scaling={"mode": "Fixed"}, replicas=1)
    engine = resource["spec"]["engine"]
    engine["extraArgs"] = ["--profile=CPU", f"--speed={SPEED}"]
    engine["resources"] = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    fleet.apply(resource)
    fleet.wait_ready()
    yield fleet
    kube.delete("llamaserver", NAME, NAMESPACE)


def names(pods: list[Object]) -> set[str]:
    return {str(pod["metadata"]["name"]) for pod in pods}


def scale(fleet: Fleet, replicas: int, timeout: float) -> list[Object]:
    """Have so many serve and no others exist; return their pods, the oldest first."""
    fleet.kube.kubectl("scale", "lls", NAME, "-n", NAMESPACE, f"--replicas={replicas}")

    def done() -> bool:
        return fleet.status().get("readyReplicas") == replicas == len(fleet.pods())

    until(f"{replicas} engines", done, timeout, every=1.0, seen=fleet.describe)
    return sorted(fleet.pods(), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def wait_told(fleet: Fleet, pods: list[Object]) -> None:
    """Wait until the status tells of exactly these engines, of each the cap that it says it runs with."""

    def told() -> list[tuple[str, str, int]]:
        listed = fleet.status().get("tuning", {}).get("pods", [])
        return sorted((one["name"], one["state"], one["numSeqs"]) for one in listed)

    def asked() -> list[tuple[str, str, int]]:
        engines = ((pod["metadata"]["name"], fleet.ask(pod["status"]["podIP"])) for pod in pods)
        return sorted((name, "InForce", engine["max_num_active_seqs"]) for name, engine in engines)

    until("the status to tell of every engine", lambda: told() == asked(), 30, seen=told)


def wait_running(fleet: Fleet, pod: Object, streams: int) -> None:
    """Wait until so many streams run at an engine."""
    address = pod["status"]["podIP"]
    until(f"{streams} streams", lambda: fleet.ask(address)["running"] == streams, 30, every=0.2)


def test_the_idle_ones_go_first_and_no_stream_is_cut(many: Fleet) -> None:
    pods = scale(many, MANY, UP_S)
    wait_told(many, pods)

    # Left to itself, Kubernetes ends the youngest ones.
    busy = pods[-len(STREAMS) :]
    with ExitStack() as running:
        loads: list[Load] = []
        for pod, streams in zip(busy, STREAMS, strict=True):
            loads.append(running.enter_context(many.load(streams, pod=pod["status"]["podIP"])))
            wait_running(many, pod, streams)
        seen = sum(STREAMS)
        until(
            "the status to tell of all streams",
            lambda: many.status().get("observed", {}).get("running", 0) >= seen - 1,
            10 * TICK_S,
            seen=lambda: many.status().get("observed"),
        )
        assert names(scale(many, len(STREAMS), DOWN_S)) == names(busy), "engines with streams had to go"

        for load in loads[1:]:
            load.end()
        left = scale(many, 1, DOWN_S)
        assert names(left) == names(busy[:1]), "the engine with the most streams had to go"
        wait_told(many, left)
        loads[0].check_running()
        summaries = [load.finish() for load in loads]
    for summary, streams in zip(summaries, STREAMS, strict=True):
        assert summary["streams"] >= streams, "hardly any stream ran"
        assert summary["cut"] == 0, f"{summary['cut']} of {summary['streams']}: {summary['causes']}"
