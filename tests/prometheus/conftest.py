"""A real Prometheus for the tests: Debian's, as a process of its own on a free loopback port.

`filled` is started once a session, filled by promtool with some minutes of two simulated fleets: model `m` in
the namespace chat, on one replica that is asked for more and more, and `other` in the namespace batch.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster import prometheus as programs
from cluster.errors import ClusterError
from cluster.progress import Progress
from cluster.settings import Settings
from llamaserver.simulate.demand import Request
from llamaserver.simulate.shapes import Size, shaped
from recording import EPOCH, record
from running_prometheus import running_prometheus

SPAN_S = 600.0


@pytest.fixture(scope="session")
def prometheus_programs() -> Path:
    """The folder with prometheus and promtool. Where Debian's packages cannot be had, tests are skipped, but
    never in CI.
    """
    try:
        return programs.ensure(Settings.from_environment(), Progress(to_stderr=True))
    except ClusterError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Prometheus: {error}")


@dataclass(frozen=True)
class Filled:
    """Where a Prometheus is, and what it was filled with."""

    url: str
    start: float
    end: float
    requests: list[Request]
    """That the engine of model `m` was asked."""


@pytest.fixture(scope="session")
def filled(prometheus_programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    folder = tmp_path_factory.mktemp("prometheus")
    requests = list(shaped("ramp", Size(SPAN_S, 0, 2.0, 120, 150), 1).requests)
    chat = record(requests, SPAN_S)
    batch = record(requests[:200], 120.0)
    text = folder / "history.txt"
    others = (line.replace('"m"', '"other"').replace('"chat"', '"batch"') for line in batch.lines())
    text.write_text("\n".join([*(line for line in others if line != "# EOF"), *chat.lines(), ""]))
    command = [prometheus_programs / "promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    done = subprocess.run([*command, text, folder / "data"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with running_prometheus(prometheus_programs, folder, "") as url:
        yield Filled(url, EPOCH, EPOCH + SPAN_S, requests)
