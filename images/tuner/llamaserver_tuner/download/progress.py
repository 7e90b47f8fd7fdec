"""How far a download is, by what is on disk: so that it is right also while another pod that shares the
claim, or a library of the engine's, fetches the same files.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

WINDOW_S: Final = 30.0
"""The rate is that of so many seconds."""
COMMIT: Final = re.compile("[0-9a-f]{40}")
"""What a revision is that never stands for anything else."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a repository. `blob` is the name of its content in the cache, and `checked` says that it is
    the digest of that content.
    """

    path: str
    size: int | None
    """Bytes; None where the hub, or a mirror of it, does not say."""
    blob: str
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What is on disk. huggingface_hub gives a file its full length long before it is full, and a part that
    is checked before it is gone on with is only touched: so it matters, too, when one was last `written`
    (Unix seconds, by the file system's clock).
    """

    bytes: int
    written: float


_NOTHING: Final = Look(0, 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is fetched. `folder` is the repository's in the cache."""

    folder: Path
    commit: str
    files: Sequence[File]

    @property
    def snapshot(self) -> Path:
        """Where the files of this commit are found by their names."""
        return self.folder / "snapshots" / self.commit

    @property
    def total(self) -> int | None:
        """Bytes of all files; None where that is not known."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if len(sizes) == len(self.files) else None

    def on_disk(self) -> Look:
        """What is there, files that are not whole yet included."""
        there, parts = 0, _parts(self.folder / "blobs")
        for file in self.files:
            whole = _stat(self.snapshot / file.path)
            part = parts.get(file.blob, _NOTHING)
            there += whole.bytes if whole else part.bytes if file.size is None else min(file.size, part.bytes)
        return Look(there, max((part.written for part in parts.values()), default=0.0))

    def missing(self) -> list[str]:
        """The files that are not there with their whole size."""
        return [file.path for file in self.files if not _whole(file, _stat(self.snapshot / file.path))]


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a download. `total` is None until the hub has said what there is to fetch."""

    bytes: int
    total: int | None
    bytes_per_second: float
    silent_s: float
    """Seconds since the last byte came, or one that is there was checked."""


@dataclass
class Meter:
    """Turns looks at the disk into readings. Times are monotonic seconds."""

    moved: float
    """When something was last done to the cache; at first, when the download began."""
    _looks: deque[tuple[float, Look]] = field(default_factory=deque)

    def read(self, plan: Plan | None, now: float) -> Reading:
        """One look, at `now`."""
        if plan is None:
            return Reading(0, None, 0.0, now - self.moved)
        look = plan.on_disk()
        if not self._looks or self._looks[-1][1] != look:
            self.moved = now
        self._looks.append((now, look))
        while now - self._looks[0][0] > WINDOW_S and len(self._looks) > 2:
            self._looks.popleft()
        since, before = self._looks[0]
        rate = max(0, look.bytes - before.bytes) / (now - since) if now > since else 0.0
        return Reading(look.bytes, plan.total, rate, now - self.moved)


def _parts(blobs: Path) -> dict[str, Look]:
    """What there is of each blob: `<blob>`, `<blob>.incomplete` or `<blob>.<id>.incomplete`, of which there
    are several where more than one pod fetches it, or one was cut short.
    """
    found: dict[str, Look] = {}
    for entry in entries(blobs):
        name, look = entry.name.partition(".")[0], _stat(entry)
        if look is not None:
            other = found.get(name, _NOTHING)
            found[name] = Look(max(look.bytes, other.bytes), max(look.written, other.written))
    return found


def entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing where there is none yet, or it cannot be read now."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _stat(path: Path) -> Look | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return Look(stat.st_size, stat.st_mtime)


def _whole(file: File, look: Look | None) -> bool:
    return look is not None and file.size in (None, look.bytes)
