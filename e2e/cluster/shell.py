"""Running other programs: quietly when they succeed, with the end of what they said when they fail."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.errors import ClusterError

TAIL_LINES = 25

Argument = str | os.PathLike[str]


def run(
    argv: Sequence[Argument],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    hint: str = "",
) -> str:
    """Run a program and return its standard output.

    `env` is added to this process's environment. Raises ClusterError, with the last lines of what the program
    printed and with `hint`, when the program is missing or fails.
    """
    command = [os.fspath(argument) for argument in argv]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{error.filename} is missing. {hint}".strip()) from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-TAIL_LINES:])
        message = f"`{' '.join(command)[:300]}` ended with {done.returncode}:\n{said}"
        raise ClusterError(f"{message}\n{hint}" if hint else message)
    return done.stdout
