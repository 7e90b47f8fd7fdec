"""What is made once is found again exactly while nothing it is made from changed, and is never half there."""

import os
import threading
from pathlib import Path

import pytest

from cluster import cache
from cluster.progress import Progress


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "main.py").write_text("print(1)\n")
    return folder


def test_fingerprint_changes_with_content(source: Path) -> None:
    before = cache.fingerprint(source)
    (source / "main.py").write_text("print(2)\n")
    assert cache.fingerprint(source) != before


def test_fingerprint_changes_with_a_name(source: Path) -> None:
    before = cache.fingerprint(source)
    (source / "main.py").rename(source / "other.py")
    assert cache.fingerprint(source) != before


def test_fingerprint_changes_when_a_file_becomes_executable(source: Path) -> None:
    before = cache.fingerprint(source)
    (source / "main.py").chmod(0o755)
    assert cache.fingerprint(source) != before


def test_fingerprint_ignores_what_python_leaves_behind(source: Path) -> None:
    before = cache.fingerprint(source)
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "main.cpython-311.pyc").write_bytes(b"\0")
    assert cache.fingerprint(source) == before


def test_fingerprint_does_not_depend_on_where_a_folder_lies(source: Path, tmp_path: Path) -> None:
    before = cache.fingerprint(source)
    (tmp_path / "elsewhere").mkdir()
    assert cache.fingerprint(source.rename(tmp_path / "elsewhere" / "source")) == before


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "thing"
    with pytest.raises(RuntimeError), cache.building(target) as unfinished:
        unfinished.mkdir()
        raise RuntimeError("no disk left")
    assert list(target.parent.iterdir()) == []


def test_what_a_killed_build_left_is_removed_and_a_running_one_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    largest_pid = int(Path("/proc/sys/kernel/pid_max").read_text())
    dead, alive = (folder / f"thing.unfinished-{pid}" for pid in (largest_pid + 1, os.getppid()))
    dead.mkdir()
    alive.mkdir()
    with cache.building(folder / "other") as unfinished:
        unfinished.write_text("done")
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(["other", alive.name])


def test_two_that_want_the_same_thing_make_it_once(tmp_path: Path) -> None:
    target, made = tmp_path / "thing", []
    both = threading.Barrier(2)

    def write(out: Path) -> None:
        made.append(out)
        out.write_text("made")

    def want() -> None:
        both.wait()
        cache.make(target, write, Progress())

    threads = [threading.Thread(target=want) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["thing"]


def test_only_the_versions_used_last_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(("operator-new", "operator-old", "operator-older", "tuner-oldest")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1_000_000 - age, 1_000_000 - age))
    cache.keep_newest(tmp_path, "operator-*", keep=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "operator-new",
        "operator-old",
        "tuner-oldest",
    ]
