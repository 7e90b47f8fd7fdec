"""The cache as huggingface_hub lays it out, so that every library that stands on it finds what is here.

    models--ORGANISATION--NAME/blobs/DIGEST                 the content of a file, by its digest on the hub
    models--ORGANISATION--NAME/blobs/DIGEST.POD.….incomplete    what one pod has of it
    models--ORGANISATION--NAME/snapshots/COMMIT/PATH        a link to it, by the file's name in a commit
    models--ORGANISATION--NAME/refs/REVISION                the commit that a branch or tag stood for
    .locks/models--ORGANISATION--NAME/DIGEST.lock           held by who fetches that content

What is seen under the other names is whole: it is made under another one and renamed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llamaserver_tuner.download.progress import COMMIT, File, Look, Plan, entries

ABANDONED_S: Final = 3600.0
"""A part that nobody has written to for so long is of a download that was cut short."""
LEFT_S: Final = 60.0
"""Another pod's part has no writer any more when it has not been written to for so long: a connection that
brings nothing is given up sooner, and the next try opens its part anew, by its name.
"""
_PART: Final = ".llamaserver.incomplete"
_NO_LOCKS: Final = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_NO_LINKS: Final = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class Repository:
    """One model in a cache; `cache` is the folder that outlives the pod."""

    name: str
    cache: Path
    pod: str = field(default_factory=lambda: os.urandom(8).hex())
    """Which parts are this download's own, also after its container was restarted."""

    @property
    def hub(self) -> Path:
        """The cache that huggingface_hub keeps where HF_HOME is `cache`/huggingface."""
        return self.cache / "huggingface" / "hub"

    @property
    def records(self) -> Path:
        """Where it is written down what is whole."""
        return self.cache / "downloads"

    @property
    def folder(self) -> Path:
        """The repository's own in the cache."""
        return self.hub / self._key

    def blob(self, file: File) -> Path:
        """Where the content of a file lies."""
        return self.folder / "blobs" / file.blob

    def part(self, file: File) -> Path:
        """What this pod has of it before it is whole. No other pod writes there, or what one has found to be
        right could be made wrong by another.
        """
        return self.blob(file).with_name(f"{file.blob}.{self.pod}{_PART}")

    def take_over(self, file: File, wait: Callable[[], None]) -> None:
        """Have this pod go on with what another one has left of a file. `wait` is called between two looks at
        what may still be written to; what is, in spite of the lock, stays the other's. Raises OSError.
        """
        own = self.part(file)
        if own.exists() and own.stat().st_size > 0:
            return
        others = self._parts_of_others(file)
        while others:
            own.touch()
            now = own.stat().st_mtime  # By the clock that dates the others.
            left = [part for part, look in others.items() if now - look.written > LEFT_S]
            if left:
                with suppress(FileNotFoundError):
                    max(left, key=lambda part: others[part].bytes).replace(own)
                return
            wait()
            seen = self._parts_of_others(file)
            others = {part: look for part, look in others.items() if seen.get(part) == look}

    def _parts_of_others(self, file: File) -> dict[Path, Look]:
        own, found = self.part(file), {}
        for path in entries(self.folder / "blobs"):
            if path != own and path.name.startswith(f"{file.blob}.") and path.name.endswith(_PART):
                with suppress(OSError), path.open("rb") as part:
                    # Of an open file a network file system asks its server.
                    stat = os.fstat(part.fileno())
                    if stat.st_size > 0:
                        found[path] = Look(stat.st_size, stat.st_mtime)
        return found

    @contextmanager
    def lock(self, file: File, wait: Callable[[], None]) -> Iterator[None]:
        """Nobody else who asks for this lock fetches the same content meanwhile; `wait` is called before each
        further try to have it.

        It saves the second download and no more: some network file systems grant it to one pod of every node,
        to everybody, or to nobody.
        """
        path = self.hub / ".locks" / self._key / f"{file.blob}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Group-writable, as huggingface_hub makes it: another pod may run as another user.
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o664)
        try:
            while not _taken(handle):
                wait()
            yield
        finally:
            os.close(handle)

    def place(self, file: File, plan: Plan) -> None:
        """Have a commit's file lead to its content. Raises OSError."""
        at, blob = plan.snapshot / file.path, self.blob(file)
        at.parent.mkdir(parents=True, exist_ok=True)
        new = at.with_name(f".{os.urandom(8).hex()}.new")
        try:
            new.symlink_to(os.path.relpath(blob, at.parent))
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without links: as huggingface_hub does there, the content itself.
            blob.replace(at)
        else:
            new.replace(at)

    def refer(self, revision: str, commit: str) -> None:
        """Remember which commit a branch or tag stands for; only when all its files are there. Raises
        OSError.
        """
        if not COMMIT.fullmatch(revision):
            write_whole(self._ref(revision), commit)

    def referred(self, revision: str) -> Plan | None:
        """What the cache has for a revision, which somebody else may have put there; None where nothing."""
        commit = revision
        if not COMMIT.fullmatch(revision):
            try:
                commit = self._ref(revision).read_text().strip()
            except (OSError, ValueError):
                return None
        found = Plan(self.folder, commit, ())
        return found if COMMIT.fullmatch(commit) and found.snapshot.is_dir() else None

    def clear_away(self, wanted: Collection[str]) -> None:
        """Remove parts that nobody goes on with: of content that is not `wanted`, and of releases of
        huggingface_hub that give each try a part of its own. Raises OSError.
        """
        for path in entries(self.folder / "blobs"):
            blob, _, rest = path.name.partition(".")
            ours = f".{rest}".endswith(_PART) and blob in wanted
            if rest.endswith("incomplete") and not ours:
                try:
                    if time.time() - path.stat().st_mtime > ABANDONED_S:
                        path.unlink()
                except FileNotFoundError:
                    continue

    def _ref(self, revision: str) -> Path:
        path = Path(os.path.normpath(self.folder / "refs" / revision))
        if not path.is_relative_to(self.folder / "refs"):
            raise ValueError(f"{revision!r} is no name of a branch or tag")
        return path

    @property
    def _key(self) -> str:
        return f"models--{self.name.replace('/', '--')}"


def _taken(handle: int) -> bool:
    """Whether there is nothing left to wait for: the lock is held, or the file system has none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def write_whole(path: Path, content: str) -> None:
    """Write a file so that whoever reads it finds the old one or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{os.urandom(8).hex()}.new")
    new.write_text(content)
    new.replace(path)
