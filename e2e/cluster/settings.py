"""Names, places and address ranges of the node, in one immutable value."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).resolve().parent
SYSTEM_PYTHON = Path("/usr/bin/python3")
"""Debian's interpreter. The engine's environment is made with it, so the same path resolves inside images."""


@dataclass(frozen=True)
class Settings:
    """Where one node lives. Every address exists only inside the node's own network namespace."""

    name: str
    """Name of the node and of its control group."""
    cache: Path
    """Binaries, environments and images: outlives the node, safe to delete."""
    state: Path
    """Everything the node itself writes, from etcd's data to containers; deleted by `down`."""
    node_ip: str = "10.66.0.1"
    node_prefix: int = 24
    pod_cidr: str = "10.67.0.0/16"
    service_cidr: str = "10.96.0.0/16"
    api_service_ip: str = "10.96.0.1"
    dns_ip: str = "10.96.0.10"
    api_port: int = 6443

    @classmethod
    def from_environment(cls) -> Settings:
        """Read LLAMASERVER_CACHE, LLAMASERVER_CLUSTER_NAME and LLAMASERVER_CLUSTER_STATE, all optional."""
        name = os.environ.get("LLAMASERVER_CLUSTER_NAME") or "llamaserver"
        user_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache = os.environ.get("LLAMASERVER_CACHE") or user_caches / "llamaserver-operator"
        state = os.environ.get("LLAMASERVER_CLUSTER_STATE") or f"/var/lib/llamaserver-cluster/{name}"
        return cls(name=name, cache=Path(cache).resolve(), state=Path(state).resolve())

    @property
    def pki(self) -> Path:
        """Keys, certificates and kubeconfigs."""
        return self.state / "pki"

    @property
    def conf(self) -> Path:
        """Configuration files of the components."""
        return self.state / "conf"

    @property
    def logs(self) -> Path:
        """One log file a component, and the supervisor's."""
        return self.state / "log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; its server is a loopback address inside the node's network."""
        return self.pki / "admin.conf"

    @property
    def plan(self) -> Path:
        """What the supervisor runs, see `plan.Plan`."""
        return self.state / "plan.json"

    @property
    def control_socket(self) -> Path:
        """Where the supervisor takes requests."""
        return self.state / "supervisor.sock"

    @property
    def api_server(self) -> str:
        """URL of the API server, inside the node's network."""
        return f"https://127.0.0.1:{self.api_port}"
