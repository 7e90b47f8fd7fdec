"""The small random Llama of the engine's image, as files on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cluster import cache
from cluster.progress import Progress
from cluster.settings import REPOSITORY, Settings

SCRIPT = REPOSITORY / "images" / "engine-cpu" / "make_model.py"


def engine_python() -> Path:
    """The interpreter of the CPU engine, installed first when it is missing."""
    command = [sys.executable, str(REPOSITORY / "e2e" / "cluster"), "engine", "--print-python"]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def engine_model(python: Path) -> Path:
    """The model's folder, made first by the engine's interpreter when it is missing."""
    target = Settings.from_environment().cache / "model" / cache.fingerprint(SCRIPT)

    def make(folder: Path) -> None:
        subprocess.run([str(python), str(SCRIPT), str(folder)], check=True)

    cache.make(target, make, Progress())
    return target
