"""One LlamaServer as kubectl sees it: apply, read, wait, and tell its state in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.kube import Kube, Object
from harness.wait import until

NAME_LABEL = "llamaserver.dev/name"
READY_S = 330.0
"""Longer than spec.startup.timeout: an engine that starts at all is Ready by then."""


def condition(server: Object, type: str) -> dict[str, Any] | None:
    """A condition that speaks of the present generation of a LlamaServer; None when there is none yet."""
    generation = server["metadata"]["generation"]
    for found in server.get("status", {}).get("conditions", []):
        if found["type"] == type and found.get("observedGeneration", generation) == generation:
            return dict(found)
    return None


def describe(server: Object | None) -> str:
    """The conditions in one line, for failures."""
    if server is None:
        return "the LlamaServer does not exist"
    said = server.get("status", {}).get("conditions", [])
    return ", ".join(f"{c['type']}={c['status']} ({c['reason']})" for c in said) or "no condition yet"


class Server:
    """A LlamaServer by name. What it looks like is the caller's business: `apply` takes all of it."""

    def __init__(self, kube: Kube, name: str, namespace: str) -> None:
        self.kube, self.name, self.namespace = kube, name, namespace
        self.selector = f"{NAME_LABEL}={name}"

    def apply(self, resource: Object) -> None:
        """`kubectl apply`."""
        self.kube.apply(resource)

    def find(self) -> Object | None:
        """The resource, or None when it is gone."""
        return self.kube.get("llamaserver", self.name, self.namespace)

    def get(self) -> Object:
        """The resource as it is now. Raises KeyError when it is gone."""
        found = self.find()
        if found is None:
            raise KeyError(f"the LlamaServer {self.name} is gone")
        return found

    def status(self) -> dict[str, Any]:
        """Its status; empty before the operator has said anything."""
        return dict(self.get().get("status", {}))

    def describe(self) -> str:
        """Its conditions in one line."""
        return describe(self.find())

    def wait_condition(
        self, type: str, status: str, timeout: float, reason: str = "", every: float = 0.5
    ) -> dict[str, Any]:
        """Wait for a condition of the present generation; return it."""

        def holds() -> dict[str, Any] | None:
            found = condition(self.get(), type)
            if found is None or found["status"] != status or (reason and found["reason"] != reason):
                return None
            return found

        wanted = f"{type}={status}" + (f" ({reason})" if reason else "")
        return until(f"{wanted} on {self.name}", holds, timeout, every=every, seen=self.describe)

    def wait_ready(self, told: Callable[[str], None] | None = None, timeout: float = READY_S) -> None:
        """Wait until it serves; `told` hears its Ready message whenever it was asked."""

        def ready() -> bool:
            found = condition(self.get(), "Ready")
            if told is not None:
                told((found or {}).get("message", "no condition yet"))
            return found is not None and found["status"] == "True"

        until(f"the LlamaServer {self.name} to be Ready", ready, timeout, every=1.0, seen=self.describe)

    def wait_seen(self, timeout: float = 30) -> None:
        """Wait until the operator has taken notice of the latest spec."""

        def seen() -> bool:
            server = self.get()
            generation: int = server["metadata"]["generation"]
            return int(server.get("status", {}).get("observedGeneration", 0)) >= generation

        until("the operator to see the new spec", seen, timeout, every=0.3, seen=self.describe)

    def address(self, timeout: float = 30) -> str:
        """URL of its Service, by address so that no name has to be looked up."""

        def cluster_ip() -> str | None:
            service = self.kube.get("service", self.name, self.namespace)
            return None if service is None else str(service["spec"].get("clusterIP", "")) or None

        host = until(f"the Service {self.name}", cluster_ip, timeout, seen=self.describe)
        return f"http://[{host}]:80" if ":" in host else f"http://{host}:80"

    def pods(self) -> list[Object]:
        """Its pods, also those that are ending."""
        return self.kube.list("pod", self.namespace, self.selector)

    def engines(self) -> set[tuple[str, int]]:
        """(Pod uid, restarts) of every pod: what stays the same as long as nothing is restarted."""
        found = set()
        for pod in self.pods():
            statuses = pod.get("status", {}).get("containerStatuses", [])
            found.add((pod["metadata"]["uid"], sum(int(c["restartCount"]) for c in statuses)))
        return found
