"""The Debian packages the node is made of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cluster.errors import ClusterError
from cluster.progress import Progress
from cluster.shell import run

RUNTIME = (
    "containerd",
    "runc",
    "containernetworking-plugins",  # bridge, host-local, portmap
    "iptables",  # kube-proxy writes its rules with it
    "iproute2",
    "procps",
    "openssl",
)
"""What a running node needs."""

IMAGES = (
    "buildah",
    "busybox-static",  # the whole file system of the smallest images
    "debootstrap",
)
"""What building images needs."""

ENGINE = (
    "python3-venv",  # for pip, which fetches uv, which makes the environment
    "ca-certificates",
    "libnuma1",
)
"""What making the engine's environment needs, and running it outside a container."""

SUITE = "bookworm"
"""The Debian release of the images; the host's has to be the same: they share one Python environment."""

LOCK_TIMEOUT_SECONDS = 600


def check_host() -> None:
    """Raise ClusterError when this machine cannot host a node at all."""
    if os.geteuid() != 0:
        raise ClusterError("The node makes namespaces, mounts and control groups: run this as root.")
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    if f"VERSION_CODENAME={SUITE}" not in release:
        raise ClusterError(f"This tool is written for Debian 12 ({SUITE}): use such a machine or container.")


def missing(packages: tuple[str, ...]) -> list[str]:
    """Those of `packages` that are not installed."""
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *packages]
    listing = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in listing.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in installed]


def ensure(progress: Progress, packages: tuple[str, ...] = RUNTIME + IMAGES + ENGINE) -> None:
    """Install what is missing, after waiting for another apt that is at work; nothing missing, no network."""
    if not (wanted := missing(packages)):
        return
    apt = ["apt-get", "-q", "-y", "-o", f"DPkg::Lock::Timeout={LOCK_TIMEOUT_SECONDS}"]
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    with progress.step(f"installing Debian packages: {' '.join(wanted)}"):
        run([*apt, "update"], env=env)
        run([*apt, "install", "--no-install-recommends", *wanted], env=env)
