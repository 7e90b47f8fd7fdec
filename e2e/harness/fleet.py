"""A LlamaServer on the project's own node: its engines asked directly, load on them, faults in them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from cluster.node import Node
from harness.kube import TAIL_LINES, Kube, KubeError, Object
from harness.manifests import CEILING, MODEL, llamaserver, slo
from harness.server import READY_S, Server
from harness.wait import WaitError, until

STREAMS = Path(__file__).with_name("streams.py")
SNAPSHOT = "/llamaserver/v1/snapshot"
HEALTH = "/health"
ENGINE_PORT = 8000
LONGEST_LOAD_S = 400.0
ANSWER_S = 30.0


class Load:
    """Streams that run in the background, in the node's network. `errors` is where the client complains."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process, self._errors = process, errors

    def running(self) -> bool:
        """Whether the clients are still at work."""
        return self._process.poll() is None

    def check_running(self) -> None:
        """Raise WaitError unless the clients have outlasted what was done to the cluster."""
        if not self.running():
            raise WaitError(f"the load was to outlast the fault; its client ended: {self._complaint()}")

    def _complaint(self) -> str:
        self._errors.seek(0)
        tail = " / ".join(self._errors.read().strip().splitlines()[-TAIL_LINES:])
        return f"status {self._process.returncode}, {tail or 'without a word'}"

    def end(self) -> None:
        """Start no stream any more; those that are open run on."""
        self._process.terminate()

    def finish(self, timeout: float = 120) -> dict[str, Any]:
        """Let the open streams run to their end; the client's summary. Raises KubeError for none."""
        self.end()
        try:
            said, _ = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise KubeError(f"the streams did not end within {timeout:.0f} s") from error
        if self._process.returncode != 0:
            raise KubeError(f"the streaming client ended: {self._complaint()}")
        summary: dict[str, Any] = json.loads(said.splitlines()[-1])
        return summary

    def stop(self) -> None:
        """Hang up, if it still runs, and let go of its output."""
        if self.running():
            self._process.kill()
        self._process.communicate(timeout=10)


class Fleet(Server):
    """A LlamaServer of real engines, tuned to an objective that needs less than their ceiling. `env` is
    spec.engine.env, `most` spec.tuning.numSeqs.max: with it the cap of a tuned engine is below the ceiling
    however fast the machine became since the objective was measured.
    """

    def __init__(
        self,
        kube: Kube,
        name: str,
        namespace: str,
        image: str,
        runtime_class: str | None,
        target_ms: int,
        *,
        env: Sequence[Object] = (),
        most: int | None = None,
    ) -> None:
        super().__init__(kube, name, namespace)
        self.node = Node()
        self.target_ms = target_ms
        self._most = most
        self._image, self._runtime_class, self._env = image, runtime_class, list(env)

    def resource(self, **changes: Any) -> Object:
        """The resource, with changes to `harness.manifests.llamaserver`'s arguments."""
        made = llamaserver(
            self.name,
            self.namespace,
            image=self._image,
            runtime_class=self._runtime_class,
            **{"tuning": "Auto", "objective": slo(self.target_ms), **changes},
        )
        if self._env:
            made["spec"]["engine"]["env"] = list(self._env)
        if self._most is not None and made["spec"]["tuning"]["mode"] == "Auto":
            made["spec"]["tuning"]["numSeqs"] = {"max": self._most}
        return made

    # --- engines ------------------------------------------------------------------------------------

    def engine_pod(self) -> Object:
        """The one pod that is not ending."""
        (pod,) = (pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"])
        return pod

    def snapshot(self, address: str) -> dict[str, Any] | None:
        """What the tuner at a pod's address says; None when it does not answer now."""
        try:
            said = self.kube.run(
                "curl", "-sf", "-m", "5", f"http://{address}:{ENGINE_PORT}{SNAPSHOT}", timeout=10
            )
        except KubeError:
            return None
        snapshot: dict[str, Any] = json.loads(said)
        return snapshot

    def engine(self, address: str) -> dict[str, Any] | None:
        """The engine part of a snapshot: cap in force, generation, lease, retunes."""
        snapshot = self.snapshot(address)
        return None if not snapshot or not snapshot["engines"] else dict(snapshot["engines"][0])

    def ask(self, address: str) -> dict[str, Any]:
        """The engine part of a snapshot; a busy engine gets a while to answer."""
        return until("the engine to answer", lambda: self.engine(address), ANSWER_S)

    def wait_cap(self, address: str, *, tuned: bool, timeout: float) -> float:
        """Wait until the cap in force is below the ceiling (`tuned`), or at it; return the monotonic time."""

        def there() -> bool:
            engine = self.engine(address)
            return engine is not None and (engine["max_num_active_seqs"] < CEILING) is tuned

        wanted = "below its ceiling" if tuned else "back at its start value"
        until(f"the cap to be {wanted}", there, timeout, every=0.25, seen=lambda: self._told(address))
        return time.monotonic()

    def _told(self, address: str) -> str:
        engine = self.engine(address)
        if engine is None:
            return "the engine does not answer"
        kept = ("max_num_active_seqs", "generation", "lease_expires_in_s", "running", "waiting", "retunes")
        return f"{ {key: engine[key] for key in kept} }; {self.describe()}"

    def running(self) -> int:
        """Streams that run, as the status tells."""
        return int(self.status().get("observed", {}).get("running", 0))

    def asked_for(self) -> int:
        """The replicas that the Deployment is to have."""
        deployment = self.kube.get("deployment", self.name, self.namespace)
        assert deployment is not None, "the Deployment is gone"
        return int(deployment["spec"]["replicas"])

    def wait_replicas(self, replicas: int, timeout: float = READY_S) -> None:
        """Wait until so many serve and no other pod is left."""

        def there() -> bool:
            return self.status().get("readyReplicas") == replicas == len(self.pods())

        until(f"{replicas} engines", there, timeout, every=1.0, seen=self.describe)

    # --- load and faults ----------------------------------------------------------------------------

    @contextmanager
    def load(
        self, concurrency: int, *flags: str, seconds: float = LONGEST_LOAD_S, pod: str = ""
    ) -> Iterator[Load]:
        """Closed-loop streams against the Service, or one pod's address, for at most so long; ended with the
        block in any case. `flags` are more of the client's, such as `--wave 30`.

        They begin when the address answers: the node's rules for a Service follow a pod's readiness by some
        seconds while engines fill every core.
        """
        url = f"http://{pod}:{ENGINE_PORT}" if pod else self.address()
        until("the address to answer", lambda: self.healthy(url), ANSWER_S, seen=self.describe)
        with tempfile.TemporaryFile("w+") as errors:
            process = self.kube.start(
                *(sys.executable, str(STREAMS), "--url", url, "--model", MODEL),
                *("--concurrency", str(concurrency), "--seconds", str(seconds), *flags),
                stderr=errors,
            )
            load = Load(process, errors)
            try:
                yield load
            finally:
                load.stop()

    def healthy(self, url: str) -> bool:
        """Whether the server at a URL answers /health with 200."""
        try:
            self.kube.run("curl", "-sf", "-m", "5", f"{url}{HEALTH}", timeout=10)
        except KubeError:
            return False
        return True

    def latency_ms(self, concurrency: int, seconds: float) -> float:
        """The p95 of the inter-token latency that so many streams at once have, as their clients see it."""
        with self.load(concurrency) as load:
            time.sleep(seconds)
            return float(load.finish()["itl_ms"]["p95"])

    def kill_container(self, pod: Object, container: str) -> None:
        """End a container's process with SIGKILL, behind the kubelet's back."""
        self._tasks("kill", "--signal=SIGKILL", _identity(pod, container))

    def stop_process(self, pod: Object, container: str, title: str) -> None:
        """Have the one process of this title in a container stand still, with SIGSTOP."""
        listed = self._tasks("ps", _identity(pod, container)).splitlines()
        pids = [words[0] for words in map(str.split, listed) if words and words[0].isdigit()]
        (pid,) = (pid for pid in pids if self._title(pid) == title)
        self.node.exec("kill", "-STOP", pid)

    def in_network_of(self, pod: Object, container: str, *command: str) -> str:
        """Run a program of this machine in a pod's network. Raises ClusterError when it fails."""
        listed = (line.split() for line in self._tasks("ls").splitlines())
        (pid,) = (words[1] for words in listed if words and words[0] == _identity(pod, container))
        return self.node.exec("nsenter", f"--target={pid}", "--net", "--", *command)

    def _tasks(self, *words: str) -> str:
        return self.node.exec("ctr", "--namespace=k8s.io", "tasks", *words)

    def _title(self, pid: str) -> str:
        return self.node.exec("cat", f"/proc/{pid}/cmdline").partition("\0")[0].strip()


def _identity(pod: Object, container: str) -> str:
    """What containerd calls a container of a pod."""
    (status,) = (c for c in pod["status"]["containerStatuses"] if c["name"] == container)
    return str(status["containerID"]).rpartition("/")[2]
