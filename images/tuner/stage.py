#!/usr/bin/env python3
"""Lay the tuner out in a folder as an installer would, ready to be put on PYTHONPATH.

    stage.py DIR

Writes DIR/llamaserver_tuner and DIR/llamaserver_tuner-VERSION.dist-info, whose entry_points.txt is how vLLM
finds the plugins. The package is pure Python without dependencies, so nothing has to be built or downloaded.
"""

import argparse
import re
import shutil
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "llamaserver_tuner"


def stage(folder: Path) -> Path:
    """Write the package and its metadata below `folder`, replacing what an earlier run left there; return
    `folder`."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    found = re.search(r'^__version__ = "(.+)"$', (HERE / PACKAGE / "__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{PACKAGE}/__init__.py names no __version__")
    for old in (folder / PACKAGE, *folder.glob(f"{PACKAGE}-*.dist-info")):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(HERE / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = folder / f"{PACKAGE}-{found[1]}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {found[1]}\n"
    )
    (metadata / "INSTALLER").write_text("stage.py\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return folder


def main() -> None:
    """Read the folder from the command line and write to it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to write; made if it is not there")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{stage(folder)}: put it on PYTHONPATH and name the three plugins in VLLM_PLUGINS")


if __name__ == "__main__":
    main()
