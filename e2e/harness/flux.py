"""Flux on the project's own node: its source and kustomize controllers, and a git repository for them.

The controllers run as processes in the node's network, with the administrator's kubeconfig, and not as pods.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import binaries
from cluster.node import Node
from cluster.progress import Progress
from cluster.settings import Settings
from harness import process
from harness.gitserver import repositories
from harness.kube import Kube, Object, write
from harness.listening import served
from harness.manifests import namespace
from harness.server import condition
from harness.wait import until

NAMESPACE = "flux-system"
GIT_PORT, ARTIFACT_PORT = 9780, 9790
BRANCH = "main"
INTERVAL = "5s"
AUTHOR = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{f"GIT_{who}_NAME": "platform" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "platform@example.com" for who in ("AUTHOR", "COMMITTER")},
}


class Repository:
    """A git repository in a folder; every commit has all of its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name
        folder.mkdir(parents=True)
        self._git("init", "--quiet", f"--initial-branch={BRANCH}")

    def commit(self, message: str, files: Mapping[str, str]) -> str:
        """Commit these files, by path, and no others; return the hash."""
        self._git("rm", "-r", "--quiet", "--ignore-unmatch", ".")
        for path, text in files.items():
            write(self.folder / path, text)
        self._git("add", "--all")
        self._git("commit", "--quiet", f"--message={message}")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self.folder), *words]
        return subprocess.run(
            command, env={**os.environ, **AUTHOR}, capture_output=True, text=True, check=True, timeout=30
        ).stdout


class Flux:
    """A GitRepository and a Kustomization that applies what is below models/ in it, waits and prunes."""

    def __init__(self, kube: Kube, repository: Repository) -> None:
        self.kube, self.repository = kube, repository

    def follow(self, timeout: str) -> None:
        """Apply both; from now on what is committed is applied, and has so long to become ready."""
        name = self.repository.name
        source = {
            "interval": INTERVAL,
            "url": f"http://127.0.0.1:{GIT_PORT}/{name}",
            "ref": {"branch": BRANCH},
        }
        self.kube.apply(
            _object("source.toolkit.fluxcd.io/v1", "GitRepository", name, source),
            _object(
                "kustomize.toolkit.fluxcd.io/v1",
                "Kustomization",
                name,
                {
                    "interval": INTERVAL,
                    "retryInterval": INTERVAL,
                    "timeout": timeout,
                    "path": "./models",
                    "prune": True,
                    "wait": True,
                    "sourceRef": {"kind": "GitRepository", "name": name},
                },
            ),
        )

    def kustomization(self) -> Object:
        """As it is now. Raises KeyError when it is gone."""
        found = self.kube.get("kustomization.kustomize.toolkit.fluxcd.io", self.repository.name, NAMESPACE)
        if found is None:
            raise KeyError(f"the Kustomization {self.repository.name} is gone")
        return found

    def applied(self) -> str:
        """The commit that was applied last and became ready."""
        return str(self.kustomization().get("status", {}).get("lastAppliedRevision", "")).rpartition(":")[2]

    def attempted(self) -> str:
        """The commit that was tried last."""
        return str(self.kustomization().get("status", {}).get("lastAttemptedRevision", "")).rpartition(":")[2]

    def wait_applied(self, commit: str, timeout: float) -> None:
        """Wait until a commit is applied and all of it ready."""

        def ready() -> bool:
            found = condition(self.kustomization(), "Ready")
            return self.applied() == commit and found is not None and found["status"] == "True"

        until(f"Flux to have applied {commit[:8]}", ready, timeout, every=1.0, seen=self.describe)

    def wait_failed(self, commit: str, timeout: float) -> dict[str, Any]:
        """Wait until Flux has given a commit up; its Ready condition."""

        def failed() -> dict[str, Any] | None:
            found = condition(self.kustomization(), "Ready")
            tried = self.attempted() == commit and found is not None and found["status"] == "False"
            return found if tried else None

        return until(f"Flux to fail at {commit[:8]}", failed, timeout, every=1.0, seen=self.describe)

    def unfollow(self) -> None:
        """Delete both, which prunes what was applied."""
        for kind in ("kustomization.kustomize.toolkit.fluxcd.io", "gitrepository.source.toolkit.fluxcd.io"):
            self.kube.delete(kind, self.repository.name, NAMESPACE, timeout=120)

    def describe(self) -> str:
        """The Kustomization's conditions in one line, for failures."""
        said = self.kustomization().get("status", {}).get("conditions", [])
        return (
            "; ".join(f"{c['type']}={c['status']} ({c['reason']}): {c['message']}" for c in said) or "nothing"
        )


def _object(api: str, kind: str, name: str, spec: Mapping[str, Any]) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": dict(spec)}


@contextmanager
def running(kube: Kube, folder: Path, name: str) -> Iterator[Flux]:
    """Flux, with an empty repository of this name to follow; ended with the block.

    `folder` holds the repository, Flux's artifacts, and the controllers' logs.
    """
    programs = binaries.ensure_module(binaries.FLUX, Settings.from_environment(), Progress())
    repository = Repository(folder / "git" / name)
    artifacts = f"127.0.0.1:{ARTIFACT_PORT}"
    commands = {
        "source-controller": (
            *_controller(programs, "source-controller"),
            *(f"--storage-path={folder / 'artifacts'}", f"--storage-addr={artifacts}"),
            f"--storage-adv-addr={artifacts}",
        ),
        "kustomize-controller": _controller(programs, "kustomize-controller"),
    }
    (folder / "artifacts").mkdir()
    kube.apply(namespace(NAMESPACE, "privileged"))
    definitions = programs / binaries.DEFINITIONS
    kube.kubectl("apply", "--server-side", "-f", str(definitions), timeout=120)
    try:
        git = served(Node().listen("127.0.0.1", GIT_PORT), repositories(folder / "git"))
        with git, process.running(kube, commands, folder):
            yield Flux(kube, repository)
    finally:
        kube.kubectl("delete", "-f", str(definitions), "--ignore-not-found", timeout=120)
        kube.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=120)


def _controller(programs: Path, name: str) -> tuple[str, ...]:
    words = ("--metrics-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0", "--enable-leader-election=false")
    return ("env", f"RUNTIME_NAMESPACE={NAMESPACE}", str(programs / name), *words)
