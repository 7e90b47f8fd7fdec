"""The node's control groups: one folder in every hierarchy.

Below it the kubelet makes those of its pods, and `daemons` holds the node's own processes. So the kernel
itself knows at any time what belongs to the node, whatever became of the files written about it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

NEEDED_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
DAEMONS = "daemons"
DAEMONS_WEIGHT = 10
"""Share of the processor, against 1 of all pods together: engines that spin on every core would otherwise
starve an API server that starts afresh for minutes. In production the control plane has its own machines.
"""
REMOVAL_SECONDS = 10.0


@dataclass(frozen=True)
class Hierarchy:
    """A mounted control group tree: one or more controllers (version 1), or all that version 2 has."""

    mount: Path
    unified: bool
    controllers: tuple[str, ...]


def parse_mounts(text: str) -> list[Hierarchy]:
    """The hierarchies in the text of /proc/self/mounts."""
    found = {}
    for line in text.splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            found[mount] = Hierarchy(Path(mount), kind == "cgroup2", tuple(options.split(",")))
    return list(found.values())


def hierarchies() -> list[Hierarchy]:
    """Those of this machine; raises ClusterError when there are none."""
    found = parse_mounts(Path("/proc/self/mounts").read_text())
    if not found:
        raise ClusterError(
            "No control groups are mounted at /sys/fs/cgroup: the kubelet cannot run without them."
        )
    return found


def create(name: str, trees: list[Hierarchy]) -> None:
    """Make the node's groups in every hierarchy, with what their children need handed down."""
    pure_v2 = all(tree.unified for tree in trees)
    for tree in trees:
        if pure_v2:
            _delegate(tree.mount)
        for group in (tree.mount / name, tree.mount / name / DAEMONS):
            group.mkdir(exist_ok=True)
            if "cpuset" in tree.controllers:
                # A new cpuset is empty, and no process may enter an empty one.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (group / file).write_text((tree.mount / file).read_text())
        if pure_v2:
            _delegate(tree.mount / name)
        _prefer(tree.mount / name / DAEMONS)


def _prefer(group: Path) -> None:
    """Give the group its weight, in whichever version's file the hierarchy has."""
    for file, usual in (("cpu.shares", 1024), ("cpu.weight", 100)):
        if (group / file).exists():
            (group / file).write_text(str(DAEMONS_WEIGHT * usual))


def join(name: str, trees: list[Hierarchy]) -> None:
    """Move this process, and so its future children, into the group of the node's own processes."""
    for tree in trees:
        (tree.mount / name / DAEMONS / "cgroup.procs").write_text(
            "0"
        )  # 0: the writer, in any process namespace


def daemons(name: str, trees: list[Hierarchy]) -> set[int]:
    """Process ids, as seen from here, of the node's own processes."""
    return {pid for tree in trees for pid in _processes(tree.mount / name / DAEMONS)}


def _processes(group: Path) -> list[int]:
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _delegate(group: Path) -> None:
    """Let the children of a version 2 group use every controller it has."""
    available = (group / "cgroup.controllers").read_text().split()
    if absent := [controller for controller in NEEDED_CONTROLLERS if controller not in available]:
        raise ClusterError(
            f"{group} lacks the controllers {', '.join(absent)}: run where they are delegated."
        )
    for controller in available:
        try:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            if controller in NEEDED_CONTROLLERS:
                raise ClusterError(
                    f"{group}/cgroup.subtree_control does not take +{controller} ({error.strerror}). "
                    "Only a group without processes can delegate: in a container, move them into one below."
                ) from error


def remove(name: str, trees: list[Hierarchy]) -> None:
    """Remove the node's groups and all below them; their processes have to be gone, or about to go."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    while left := [group for tree in trees for group in _groups_below(tree.mount / name)]:
        for group in left:
            with contextlib.suppress(OSError):  # busy as long as the last process is still ending
                group.rmdir()
        if time.monotonic() > deadline:
            pids = sorted({pid for group in left for pid in _processes(group)})
            raise ClusterError(
                f"Processes {pids} do not leave the control groups named {name}; end them first."
            )
        time.sleep(0.02)


def _groups_below(group: Path) -> Iterator[Path]:
    """The folder and those below it, the deepest first."""
    for folder, _, _ in os.walk(group, topdown=False):
        yield Path(folder)
