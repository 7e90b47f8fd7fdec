"""Debian's Prometheus for tests, from its package and without installing it: no service is started."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster import cache
from cluster.errors import ClusterError
from cluster.progress import Progress
from cluster.settings import Settings
from cluster.shell import run

PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")


def ensure(settings: Settings, progress: Progress) -> Path:
    """Return a folder with PROGRAMS in it, downloaded when the cache lacks them. Raises ClusterError."""
    target = settings.cache / "bin" / f"debian-{PACKAGE}"

    def unpack(out: Path) -> None:
        out.mkdir()
        with progress.step(f"downloading Debian's {PACKAGE} (20 MB)"):
            _download(out)
            run(["dpkg-deb", "--extract", *out.glob("*.deb"), out / "root"])
        for program in PROGRAMS:
            (out / "root" / "usr" / "bin" / program).rename(out / program)
        for left in (out / "root", *out.glob("*.deb")):
            cache.remove(left)

    if not target.exists() and shutil.which("apt-get") is None:
        raise ClusterError(f"{PACKAGE} comes from Debian, and there is no apt-get here.")
    cache.make(target, unpack, progress)
    return target


def _download(folder: Path) -> None:
    """Lists of packages may be missing or old: then they are renewed, which only root may do."""
    command = ["apt-get", "-q", "download", PACKAGE]
    try:
        run(command, cwd=folder)
    except ClusterError:
        run(["apt-get", "-q", "update"])
        run(command, cwd=folder)
