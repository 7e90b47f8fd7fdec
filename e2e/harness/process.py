"""Programs that run beside the cluster for the length of a block, each with a log of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.kube import Kube

END_S = 20.0


@contextmanager
def running(kube: Kube, commands: Mapping[str, Sequence[str]], logs: Path) -> Iterator[None]:
    """Run these commands, by name, in the cluster's network; NAME.log in `logs` has what they say."""
    with ExitStack() as started:
        for name, command in commands.items():
            log = started.enter_context((logs / f"{name}.log").open("w"))
            process = kube.start(*command, stdout=subprocess.DEVNULL, stderr=log)
            started.callback(_end, process)
        yield


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=END_S)
