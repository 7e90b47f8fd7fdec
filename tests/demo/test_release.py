"""How the operator is installed, and what is read of its own metrics."""

from __future__ import annotations

from typing import Any

from demo.release import install, retune_times
from demo.settings import parse
from harness.kube import KubeError

METRICS = """\
llamaserver_retune_seconds_bucket{kind="change",le="0.02"} 8.0
llamaserver_retune_seconds_bucket{kind="change",le="0.04"} 10.0
llamaserver_retune_seconds_bucket{kind="change",le="+Inf"} 10.0
llamaserver_retune_seconds_bucket{kind="renewal",le="0.02"} 0.0
llamaserver_retune_seconds_bucket{kind="renewal",le="+Inf"} 500.0
"""


class Kube:
    """A cluster that writes down what it is told."""

    def __init__(self, *, installed: bool = False, metrics: str | None = METRICS) -> None:
        self.installed, self.metrics = installed, metrics
        self.said: list[str] = []

    def helm(self, *args: str) -> str:
        self.said.append(" ".join(("helm", *args)))
        return "llamaserver\n" if self.installed and args[0] == "list" else ""

    def kubectl(self, *args: str, timeout: float = 60) -> str:
        self.said.append(" ".join(("kubectl", *args)))
        if args[:2] == ("get", "--raw"):
            if self.metrics is None:
                raise KubeError("the operator is gone")
            return self.metrics
        return ""

    def list(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        return [{"metadata": {"name": name}} for name in ("operator-a", "operator-b")]


def test_the_release_is_installed_with_the_images_it_was_told() -> None:
    kube = Kube()
    install(kube, parse(["--operator-image", "registry.example:5000/operator:7"]), "--set", "tickSeconds=1")  # type: ignore[arg-type]
    command = kube.said[-1]
    assert "upgrade --install llamaserver" in command
    assert "--set image.repository=registry.example:5000/operator --set image.tag=7" in command
    assert "--set tickSeconds=1" in command
    assert "--wait" in command


def test_an_operator_that_runs_already_is_replaced() -> None:
    fresh, again = Kube(), Kube(installed=True)
    for kube in (fresh, again):
        install(kube, parse([]))  # type: ignore[arg-type]
    assert not any("rollout restart" in said for said in fresh.said)
    assert any("rollout restart" in said for said in again.said)


def test_only_applied_changes_are_timed_and_all_replicas_count() -> None:
    found = retune_times(Kube(), parse([]))  # type: ignore[arg-type]
    assert found is not None
    assert found.count == 20
    assert found.p50 == 12.5
    assert found.p99 == 39.0


def test_an_operator_that_cannot_be_asked_or_changed_nothing_has_no_times() -> None:
    assert retune_times(Kube(metrics=None), parse([])) is None  # type: ignore[arg-type]
    assert retune_times(Kube(metrics=""), parse([])) is None  # type: ignore[arg-type]
