"""What is laid out for a pod is what vLLM's loader looks for."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import llamaserver_tuner

TUNER = Path(__file__).resolve().parents[2] / "images" / "tuner"


def test_the_staged_folder_is_an_installed_distribution(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run([sys.executable, TUNER / "stage.py", tmp_path], check=True, stdout=subprocess.DEVNULL)
    (found,) = importlib.metadata.distributions(path=[str(tmp_path)])
    project = tomllib.loads((TUNER / "pyproject.toml").read_text())["project"]
    assert (found.name, found.version) == ("llamaserver-tuner", llamaserver_tuner.__version__)
    assert {(e.group, e.name): e.value for e in found.entry_points} == {
        (group, name): target
        for group, entries in project["entry-points"].items()
        for name, target in entries.items()
    }
    assert {e.name for e in found.entry_points} == {
        "llamaserver_tuner_engine",
        "llamaserver_tuner_http",
        "llamaserver_tuner_stats",
    }
    source = {path.name for path in (TUNER / "llamaserver_tuner").glob("*.py")}
    assert {path.name for path in (tmp_path / "llamaserver_tuner").glob("*.py")} == source
    assert not project["dependencies"]
