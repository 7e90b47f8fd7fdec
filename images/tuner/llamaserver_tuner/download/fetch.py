"""Brings a model to the cache: asks what it consists of, fetches what is not there, and goes on where an
earlier try has ended, whoever made it.

Pods that share the cache take turns by file. Where the file system's locks do not hold, each fetches it to a
part of its own, and the first that has it whole gives it its name.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from llamaserver_tuner.download import record
from llamaserver_tuner.download.cache import Repository
from llamaserver_tuner.download.hub import CHUNK, Hub, HubUnreachableError, OfflineModeIsEnabledError
from llamaserver_tuner.download.progress import COMMIT, File, Plan

DEFAULT_REVISION: Final = "main"
AT_ONCE: Final = 4
"""Files that are fetched at the same time: one stream seldom fills the way to the hub."""
TRIES: Final = 5
"""In a row that bring no byte, until a file is given up; the kubelet then begins anew, more slowly."""
LOCK_S: Final = 0.5
SIGN_S: Final = 5.0
"""How often a part that is read is touched: whoever looks at the claim is to see that something is done."""


class _StoppedError(Exception):
    """Another file has failed."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Which model, at which revision, and where to."""

    repository: Repository
    revision: str | None


def fetch(
    wish: Wish,
    hub: Hub,
    planned: Callable[[Plan], None],
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Plan:
    """Have the model in the cache; `planned` is told what is to come as soon as that is known.

    A commit that is there as a whole needs no hub. Where the hub gives no answer, what was last fetched for
    this branch or tag does. Raises the hub's errors and OSError.
    """
    repository, revision = wish.repository, wish.revision or DEFAULT_REVISION
    known = record.read(repository.records, repository.folder, repository.name, revision)
    if known is not None and COMMIT.fullmatch(revision):
        return known
    if hub.offline:
        if (found := known or repository.referred(revision)) is not None:
            return found
        raise OfflineModeIsEnabledError(f"HF_HUB_OFFLINE is set, and {repository.name} is not in the cache")
    try:
        commit, files = hub.files(repository.name, revision)
    except HubUnreachableError as error:
        if known is None:
            raise
        say(f"{error}: going on with commit {known.commit}, the last that was downloaded of {revision}")
        return known
    plan = Plan(repository.folder, commit, files)
    planned(plan)
    _carry_out(repository, hub, plan, say, pause)
    repository.refer(revision, commit)
    record.write(repository.records, repository.name, revision, plan)
    return plan


def _carry_out(
    repository: Repository,
    hub: Hub,
    plan: Plan,
    say: Callable[[str], None],
    pause: Callable[[float], None],
) -> None:
    (repository.folder / "blobs").mkdir(parents=True, exist_ok=True)
    missing = set(plan.missing())
    repository.clear_away({file.blob for file in plan.files if file.path in missing})
    _check_room(repository.folder, plan)
    stop = threading.Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        work = _Work(repository, hub, plan, say, pause, stop)
        futures = [pool.submit(work.bring, file) for file in plan.files if file.path in missing]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Work:
    repository: Repository
    hub: Hub
    plan: Plan
    say: Callable[[str], None]
    pause: Callable[[float], None]
    stop: threading.Event

    def bring(self, file: File) -> None:
        """Have one file in the snapshot."""
        with self.repository.lock(file, self._wait):
            if self._is_there(file):
                return
            if not self._has_content(file):
                self.repository.take_over(file, self._wait)
                self._try_on(file)
                # Where another pod was first.
                self.repository.part(file).unlink(missing_ok=True)
            self.repository.place(file, self.plan)

    def _wait(self) -> None:
        if self.stop.wait(LOCK_S):
            raise _StoppedError

    def _is_there(self, file: File) -> bool:
        """Another pod may have brought it while this one waited."""
        return file.path not in Plan(self.plan.folder, self.plan.commit, [file]).missing()

    def _has_content(self, file: File) -> bool:
        there = _size(self.repository.blob(file))
        return there is not None and file.size in (None, there)

    def _try_on(self, file: File) -> None:
        failed, before, read = 0, -1, _Digest(file)
        # Where locks do not hold, another pod may have brought it since the last try.
        while not self._has_content(file):
            try:
                self._bring_content(file, read)
            except HubUnreachableError as error:
                there = _size(self.repository.part(file)) or 0
                failed, before = (1 if there > before else failed + 1), there
                if failed >= TRIES:
                    raise
                self.say(f"{file.path}: {error}; trying again")
            self.pause(2.0 ** (failed - 1))

    def _bring_content(self, file: File, read: _Digest) -> None:
        part, blob = self.repository.part(file), self.repository.blob(file)
        handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o664)
        with os.fdopen(handle, "r+b") as out:
            self._bring_rest(file, out, read)
            out.flush()
            os.fsync(out.fileno())
        if not read.is_right():
            part.unlink(missing_ok=True)
            raise HubUnreachableError(f"what came of {file.path} is not what the hub announced ({file.blob})")
        # An engine may read what another pod has named so meanwhile, and would lose it on another node.
        if not self._has_content(file):
            part.replace(blob)

    def _bring_rest(self, file: File, out: BinaryIO, read: _Digest) -> None:
        """Have all of a part there, and all of it in its digest."""
        there = out.seek(0, os.SEEK_END)
        if file.size is None or there > file.size:
            there = 0
            out.truncate(0)
        # Before anything is asked for: it takes minutes, and a store does not wait for one who does not read.
        self._catch_up(out, there, read)
        if there == file.size:
            return
        stream = self.hub.open(self.repository.name, self.plan.commit, file.path, there)
        if stream.start != there:
            read.start_over()
        out.seek(stream.start)
        for chunk in stream.chunks:
            if self.stop.is_set():
                raise _StoppedError
            out.write(chunk)
            read.add(chunk)
        if file.size not in (None, out.tell()):
            raise HubUnreachableError(f"{out.tell()} bytes came of {file.path}, of {file.size} announced")

    def _catch_up(self, out: BinaryIO, there: int, read: _Digest) -> None:
        """Let the digest see what it has not seen of the first bytes of a part."""
        if read.bytes > there:
            read.start_over()
        if not read.tells:
            return
        out.seek(read.bytes)
        signed = -math.inf
        while read.bytes < there:
            if self.stop.is_set():
                raise _StoppedError
            if (now := time.monotonic()) - signed >= SIGN_S:
                signed = now
                with suppress(OSError):
                    os.utime(out.fileno())
            chunk = out.read(min(CHUNK, there - read.bytes))
            if not chunk:
                raise OSError(errno.EIO, f"{os.strerror(errno.EIO)}: a part became shorter")
            read.add(chunk)


class _Digest:
    """That of the first `bytes` of a part, kept from try to try: a large part is read for minutes."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.start_over()

    def start_over(self) -> None:
        """Forget what was seen."""
        self.bytes = 0
        self._made = _made_for(self._file)

    def add(self, chunk: bytes) -> None:
        """See what comes next."""
        self.bytes += len(chunk)
        if self._made is not None:
            self._made.update(chunk)

    @property
    def tells(self) -> bool:
        """Whether there is anything to compare it with."""
        return self._made is not None

    def is_right(self) -> bool:
        """Whether what was seen is what the hub announced, as far as that can be told."""
        return self._made is None or self._made.hexdigest() == self._file.blob


def _made_for(file: File) -> Any:
    """What tells a content by the name of its blob: SHA-256 of large files, git's own of the others."""
    if not file.checked or (len(file.blob) == 40 and file.size is None):
        return None
    if len(file.blob) == 64:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _check_room(folder: Path, plan: Plan) -> None:
    """Raises OSError at once where the claim cannot hold what is to come, as far as its file system tells."""
    disk, total = shutil.disk_usage(folder), plan.total
    left = 0 if total is None else total - plan.on_disk().bytes
    if disk.total > 0 and disk.free < left:
        text = f"{left / 2**30:.1f} GiB are still to be downloaded, and {disk.free / 2**30:.1f} GiB are free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} on the claim: {text}")
