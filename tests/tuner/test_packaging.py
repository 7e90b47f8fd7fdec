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
    assert modules(tmp_path) == modules(TUNER)
    assert not project["dependencies"]


def modules(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in (folder / "llamaserver_tuner").rglob("*.py")}


def test_the_download_needs_nothing_but_python(tmp_path: Path) -> None:
    """As in an engine's image: the staged folder on PYTHONPATH, and no packages."""
    subprocess.run([sys.executable, TUNER / "stage.py", tmp_path], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "llamaserver_tuner.download", "--help"],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--repository" in done.stdout
