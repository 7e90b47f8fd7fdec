"""Debian's Prometheus on the project's own node, as a process in the node's network and not as a pod.

Debian builds it without the discovery of pods, so which engines it scrapes stands in a file, with the labels
that a PodMonitor gives them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import prometheus as programs
from cluster.progress import Progress
from cluster.settings import Settings
from harness import process
from harness.fleet import ENGINE_PORT
from harness.kube import Kube, KubeError, Object
from harness.wait import until

PORT = 9490
SCRAPED_EVERY_S = 2
URL = f"http://{Settings.from_environment().node_ip}:{PORT}"
"""Where the operator's pod reaches it."""
READY_S = 30.0
TARGETS = "targets.json"


@contextmanager
def running(kube: Kube, folder: Path) -> Iterator[None]:
    """Prometheus, which scrapes what `scrape` has written into this folder, until the end of the block. The
    folder takes its configuration, its log, and what it keeps: another one there goes on with that.
    """
    settings = Settings.from_environment()
    program = programs.ensure(settings, Progress()) / "prometheus"
    file = folder / "prometheus.json"
    file.write_text(json.dumps(_configuration(folder)))
    command = (str(program), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}")
    listen = f"--web.listen-address={settings.node_ip}:{PORT}"
    with process.running(kube, {"prometheus": (*command, listen)}, folder):
        until("Prometheus to be ready", lambda: _ready(kube), READY_S, seen=lambda: _log(folder))
        yield


def scrape(folder: Path, pods: Iterable[Object]) -> None:
    """Have these engines scraped from now on, and no others."""
    written = folder / f"{TARGETS}.new"
    written.write_text(json.dumps([target(pod) for pod in pods]))
    written.replace(folder / TARGETS)


def target(pod: Object) -> Object:
    """An engine as Prometheus is told of it, with the labels that the operator finds its series by."""
    metadata = pod["metadata"]
    labels = {"namespace": metadata["namespace"], "pod": metadata["name"]}
    return {"targets": [f"{pod['status']['podIP']}:{ENGINE_PORT}"], "labels": labels}


def _configuration(folder: Path) -> Object:
    """Its configuration, as JSON, which is YAML."""
    found = {"files": [str(folder / TARGETS)], "refresh_interval": "5s"}
    every = f"{SCRAPED_EVERY_S}s"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every},
        "scrape_configs": [{"job_name": "engines", "file_sd_configs": [found]}],
    }


def _ready(kube: Kube) -> bool:
    try:
        kube.run("curl", "-sf", "-m", "5", f"{URL}/-/ready", timeout=10)
    except KubeError:
        return False
    return True


def _log(folder: Path) -> str:
    return (folder / "prometheus.log").read_text()[-2000:]
