"""What was fetched as a whole, written down only after it was: others who use the cache write its own
reference to a branch before the files are there, which names half a model after an interruption.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from llamaserver_tuner.download.cache import write_whole
from llamaserver_tuner.download.progress import File, Plan


def read(records: Path, folder: Path, repository: str, revision: str) -> Plan | None:
    """What was last fetched for this revision, if all of it is still there."""
    try:
        found = json.loads(_path(records, repository, revision).read_text())
        files = [File(path, size, "") for path, size in found["files"].items()]
        plan = Plan(folder, found["commit"], files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None if not files or plan.missing() else plan


def write(records: Path, repository: str, revision: str, plan: Plan) -> None:
    """Remember a plan that was carried out. Raises OSError."""
    content = {
        "repository": repository,
        "revision": revision,
        "commit": plan.commit,
        "files": {file.path: file.size for file in plan.files},
    }
    write_whole(_path(records, repository, revision), json.dumps(content, indent=1))


def _path(records: Path, repository: str, revision: str) -> Path:
    """A revision may be longer than a file's name."""
    return records / f"{hashlib.sha256(f'{repository}@{revision}'.encode()).hexdigest()[:32]}.json"
