"""Things made once and kept: named by a fingerprint of what they are made from, and never half there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.lock import exclusive
from cluster.progress import Progress

FINGERPRINT_DIGITS = 16
UNINTERESTING = {"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def source_files(root: Path) -> Iterator[Path]:
    """Every file at or below `root` that a build could depend on, in a fixed order."""
    if root.is_file():
        yield root
        return
    for entry in sorted(root.iterdir()):
        if entry.name in UNINTERESTING or entry.suffix == ".pyc":
            continue
        yield from source_files(entry)


def fingerprint(*parts: str | Path | Iterable[Path]) -> str:
    """Digest of strings as they are, of files and folders by relative name, executable bit and content."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(f"text {part}\0".encode())
            continue
        for root in [part] if isinstance(part, Path) else part:
            for file in source_files(root):
                name = file.relative_to(root.parent)
                executable = bool(file.stat().st_mode & 0o100)
                digest.update(f"file {name} {executable}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:FINGERPRINT_DIGITS]


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """Yield a path beside `target` to build at; when the block succeeds it becomes `target` in one rename.

    A run that is killed leaves only the unfinished path, which the next one removes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob("*.unfinished-*"):
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            remove(left)
    unfinished = target.with_name(f"{target.name}.unfinished-{os.getpid()}")
    remove(unfinished)
    try:
        yield unfinished
        unfinished.rename(target)
    finally:
        remove(unfinished)


def make(target: Path, write: Callable[[Path], None], progress: Progress) -> None:
    """Have `target`: if it is missing, `write` makes it at the path it is given, while others wait for it."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.with_name(f"{target.name}.lock"), progress):
        if not target.exists():
            with building(target) as unfinished:
                write(unfinished)


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def keep_newest(folder: Path, pattern: str, keep: int) -> None:
    """Delete all but the `keep` most recently used entries of `folder` that match `pattern`."""
    entries = [entry for entry in folder.glob(pattern) if ".unfinished-" not in entry.name]
    for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime, reverse=True)[keep:]:
        remove(entry)
