"""Mounts and network of the node, set up from inside its new namespaces.

Components keep their default paths, /var/lib/kubelet and the like: the node sees folders of its own state at
/var/lib and /var/log and an empty /run. The machine itself gets no mount and no folder, so nothing has to be
cleaned up: all of it ends with the mount namespace.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cluster import cgroups
from cluster.errors import ClusterError
from cluster.plan import Plan
from cluster.shell import run

COVERED = ("/var/lib", "/var/log")
VOLATILE = "/run"

KERNEL_MODULES = ("br_netfilter", "overlay")
"""Loaded before a start where the kernel has them as modules."""

NETWORK_SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/bridge/bridge-nf-call-iptables": "1",
}
"""Settings of the node's network namespace; the machine's own stay as they are."""

KERNEL_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What the kubelet writes on a machine that is its own. These belong to the whole machine, so the kubelet is
shown files that hold the wanted values already, and writes nothing."""


def enter(plan: Plan) -> None:
    """Make the namespaces that this process is the first of into a node."""
    cgroups.join(plan.name, cgroups.hierarchies())
    run(["mount", "--make-rshared", "/"])  # kubelet and containerd pass mounts on to each other
    own = Path(plan.state, "root")
    hide(own, [Path(folder) for folder in plan.visible])
    show_kernel_sysctls(own / "sysctl")
    connect(plan)


def hide(own: Path, visible: list[Path]) -> None:
    """Put folders below `own` on the paths that programs write to by default; see `cover`."""
    for path in COVERED:
        cover(Path(path), own / path.lstrip("/"), visible)
    # /run is memory, like on any machine: sockets, pid files and locks of an earlier life must not be found.
    volatile = own / VOLATILE.lstrip("/")
    volatile.mkdir(parents=True, exist_ok=True)
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "node-run", volatile])
    for name in ("lock", "netns", "containerd"):
        (volatile / name).mkdir()
    cover(Path(VOLATILE), volatile, visible)


def cover(path: Path, own: Path, visible: list[Path]) -> None:
    """Mount the folder `own` on `path`; what of `visible` lies below `path` is to be seen there as before."""
    own.mkdir(parents=True, exist_ok=True)
    for folder in visible:
        if folder.is_relative_to(path):
            again = own / folder.relative_to(path)
            again.mkdir(parents=True, exist_ok=True)
            run(["mount", "--rbind", folder, again])
    run(["mount", "--rbind", own, path])


def show_kernel_sysctls(folder: Path) -> None:
    """Put files with the values of KERNEL_SYSCTLS on those of /proc/sys."""
    for name, value in KERNEL_SYSCTLS.items():
        real = Path("/proc/sys", name)
        if real.exists():
            shown = folder / name
            shown.parent.mkdir(parents=True, exist_ok=True)
            shown.write_text(f"{value}\n")
            run(["mount", "--bind", shown, real])


def connect(plan: Plan) -> None:
    """Bring up the loopback and a bridge that holds the node's address.

    There is no default route and no link to the machine's network: what is not the node's is unreachable. The
    route to the services' range only lets local processes send; kube-proxy's rules know where to.
    """
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "link", "add", "node0", "type", "bridge"])
    run(["ip", "address", "add", plan.node_address, "dev", "node0"])
    run(["ip", "link", "set", "node0", "up"])
    run(["ip", "route", "add", plan.service_cidr, "dev", "node0"])
    for name, value in NETWORK_SYSCTLS.items():
        setting = Path("/proc/sys", name)
        if not setting.exists():
            raise ClusterError(
                f"{setting} is missing: this kernel needs the modules {', '.join(KERNEL_MODULES)}."
            )
        setting.write_text(value)


def load_modules() -> None:
    """Ask the kernel for what it may have as modules only; one that has them built in just says no."""
    if shutil.which("modprobe"):
        subprocess.run(["modprobe", "--all", "--quiet", *KERNEL_MODULES], check=False)
