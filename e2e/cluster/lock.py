"""One change to a node at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.progress import Progress


@contextmanager
def exclusive(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path`, which is deleted afterwards; waits for whoever holds it, and says so."""
    descriptor = _acquire(path, progress)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, progress: Progress) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"waiting for another run that holds {path}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Whoever held it before may have deleted the file: then this lock is on a file nobody else will find.
        if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
        os.close(descriptor)
