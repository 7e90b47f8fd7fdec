"""Control groups on every kind of machine: version 1, version 2, and both at once."""

from pathlib import Path

import pytest

from cluster import cgroups
from cluster.cgroups import Hierarchy
from cluster.errors import ClusterError

HYBRID = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
/dev/vda / ext4 rw 0 0
"""


def test_hierarchies_of_a_hybrid_machine() -> None:
    found = {str(tree.mount): tree for tree in cgroups.parse_mounts(HYBRID)}
    assert set(found) == {f"/sys/fs/cgroup/{name}" for name in ("unified", "cpu,cpuacct", "cpuset")}
    assert found["/sys/fs/cgroup/unified"].unified
    assert not found["/sys/fs/cgroup/cpuset"].unified
    assert "cpuacct" in found["/sys/fs/cgroup/cpu,cpuacct"].controllers


def test_a_mount_seen_twice_is_one_hierarchy() -> None:
    line = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
    assert len(cgroups.parse_mounts(line + line)) == 1


def test_version_1_cpusets_are_filled_from_the_machine(tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset.mems").write_text("0\n")
    cgroups.create("node", [Hierarchy(tmp_path, unified=False, controllers=("rw", "cpuset"))])
    for group in (tmp_path / "node", tmp_path / "node" / "daemons"):
        assert (group / "cpuset.cpus").read_text() == "0-1\n"
        assert (group / "cpuset.mems").read_text() == "0\n"


def unified(tmp_path: Path, controllers: str) -> Hierarchy:
    """A version 2 tree that has the node's group already, with the files the kernel would put there."""
    for group in (tmp_path, tmp_path / "node"):
        group.mkdir(exist_ok=True)
        (group / "cgroup.controllers").write_text(controllers)
        (group / "cgroup.subtree_control").write_text("")
    return Hierarchy(tmp_path, unified=True, controllers=("rw",))


def test_version_2_hands_controllers_down_to_pods(tmp_path: Path) -> None:
    tree = unified(tmp_path, "cpuset cpu memory pids")
    cgroups.create("node", [tree])
    # A plain file keeps the last of the writes; the kernel adds each to the set.
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids"
    assert (tmp_path / "node" / "cgroup.subtree_control").read_text() == "+pids"


@pytest.mark.parametrize(("file", "weight"), [("cpu.shares", "10240"), ("cpu.weight", "1000")])
def test_the_nodes_own_processes_come_before_pods(tmp_path: Path, file: str, weight: str) -> None:
    daemons = tmp_path / "node" / "daemons"
    daemons.mkdir(parents=True)
    (daemons / file).write_text("")
    cgroups.create("node", [Hierarchy(tmp_path, unified=False, controllers=("rw", "cpu"))])
    assert (daemons / file).read_text() == weight


def test_a_missing_controller_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="lacks the controllers cpuset, memory"):
        cgroups.create("node", [unified(tmp_path, "cpu pids")])


def test_the_kernels_list_tells_what_belongs_to_the_node(tmp_path: Path) -> None:
    trees = [Hierarchy(tmp_path / name, unified=False, controllers=("rw", name)) for name in ("cpu", "pids")]
    for tree, pids in zip(trees, ("12\n34\n", "34\n56\n"), strict=True):
        (tree.mount / "node" / "daemons").mkdir(parents=True)
        (tree.mount / "node" / "daemons" / "cgroup.procs").write_text(pids)
    assert cgroups.daemons("node", trees) == {12, 34, 56}
    assert cgroups.daemons("another", trees) == set()


def test_removal_takes_nested_groups_and_leaves_others(tmp_path: Path) -> None:
    (tmp_path / "node" / "kubepods" / "pod1" / "container").mkdir(parents=True)
    (tmp_path / "another").mkdir()
    cgroups.remove("node", [Hierarchy(tmp_path, unified=True, controllers=("rw",))])
    assert [entry.name for entry in tmp_path.iterdir()] == ["another"]


def test_removal_of_what_never_was_is_nothing(tmp_path: Path) -> None:
    cgroups.remove("node", [Hierarchy(tmp_path, unified=True, controllers=("rw",))])
    assert list(tmp_path.iterdir()) == []
