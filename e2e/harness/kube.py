"""kubectl and helm as a person would use them, on the project's own node or on the user's cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

Object = dict[str, Any]
TAIL_LINES = 20
UNREACHABLE = (
    *("TLS handshake timeout", "connection refused", "was refused", "i/o timeout", "EOF"),
    *("connection reset", "http2: client connection lost", "currently unable to handle the request"),
    *("etcdserver: request timed out", "etcdserver: leader changed", "Client.Timeout exceeded"),
)
"""How kubectl says that the API server did not answer, which on a busy machine is worth another try."""
TRIES, TRY_AGAIN_S = 4, 2.0


class KubeError(Exception):
    """A command failed; the message holds the command and the end of what it said."""


class Kube:
    """Commands against one cluster. `wrap` makes a command run where that cluster can be reached."""

    def __init__(
        self, wrap: Callable[[Sequence[str]], list[str]], env: Mapping[str, str], kubectl: str, helm: str
    ) -> None:
        self._wrap = wrap
        folder = Path(tempfile.gettempdir()) / "llamaserver-helm"
        home = {f"HELM_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        self._env = {**os.environ, **env, **home}
        self._kubectl, self._helm = kubectl, helm

    @classmethod
    def own(cls) -> Kube:
        """The node that `python3 e2e/cluster up` started. Raises KubeError when it is down."""
        from cluster.node import Node

        node = Node()
        if node.holder() is None:
            raise KubeError("the node is down: start it with `make cluster`")
        return cls(
            lambda command: [os.fspath(word) for word in node.net_command(list(command))],
            {"KUBECONFIG": str(node.kubeconfig)},
            str(node.programs / "kubectl"),
            str(node.programs / "helm"),
        )

    @classmethod
    def current(cls) -> Kube:
        """The cluster of the user's kubeconfig. Raises KubeError when kubectl or helm is not installed."""
        missing = [program for program in ("kubectl", "helm") if shutil.which(program) is None]
        if missing:
            raise KubeError(f"not on PATH: {', '.join(missing)}")
        return cls(list, {}, "kubectl", "helm")

    def command(self, *argv: str) -> list[str]:
        """The command line that runs a program where the cluster can be reached."""
        return self._wrap(argv)

    def run(self, *argv: str, input: str | None = None, timeout: float = 60) -> str:
        """Run a program there and return its output. Raises KubeError when it fails or takes too long."""
        words = " ".join(argv)[:300]
        try:
            done = subprocess.run(
                self.command(*argv),
                env=self._env,
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise KubeError(f"`{words}` did not end within {timeout:.0f} s") from error
        if done.returncode != 0:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-TAIL_LINES:])
            raise KubeError(f"`{words}` ended with {done.returncode}:\n{said}")
        return done.stdout

    def start(
        self, *argv: str, stdout: int = subprocess.PIPE, stderr: int | IO[str] = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Start a program there; its errors are dropped unless they are wanted."""
        return subprocess.Popen(
            self.command(*argv),
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 60) -> str:
        """Run kubectl; again when the API server does not answer."""
        for left in range(TRIES - 1, -1, -1):
            try:
                return self.run(self._kubectl, *args, input=input, timeout=timeout)
            except KubeError as error:
                if not left or not any(said in str(error) for said in UNREACHABLE):
                    raise
                time.sleep(TRY_AGAIN_S)
        raise AssertionError("the last try returns or raises")

    def start_kubectl(self, *args: str) -> subprocess.Popen[str]:
        """Start kubectl and leave it running, for `logs -f` and the like."""
        return self.start(self._kubectl, *args)

    def helm(self, *args: str, timeout: float = 180) -> str:
        """Run helm; what it keeps for itself goes below the folder for temporary files."""
        return self.run(self._helm, *args, timeout=timeout)

    def apply(self, *objects: Object) -> None:
        """`kubectl apply` of these objects."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", input=json.dumps(listed))

    def get(self, kind: str, name: str, namespace: str) -> Object | None:
        """One object, or None when it does not exist."""
        said = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        found: Object | None = json.loads(said) if said.strip() else None
        return found

    def managed_fields(self, kind: str, name: str, namespace: str) -> list[Object]:
        """Who owns which of an object's fields, by the API server's books."""
        said = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--show-managed-fields")
        entries: list[Object] = json.loads(said)["metadata"]["managedFields"]
        return entries

    def list(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        """All objects of a kind (or of several, comma-separated) in a namespace."""
        args = ["get", kind, "-n", namespace, "-o", "json", *(["-l", selector] if selector else [])]
        items: list[Object] = json.loads(self.kubectl(*args))["items"]
        return items

    def delete(self, kind: str, name: str, namespace: str, *args: str, timeout: float = 60) -> None:
        """Delete one object if it is there, and wait until it is gone."""
        self.kubectl("delete", kind, name, "-n", namespace, "--ignore-not-found", *args, timeout=timeout)


def write(path: Path, text: str) -> None:
    """Write a text file whose folder may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
