"""The node as a whole: start, stop, look, and run things in it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from cluster import binaries, cache, cgroups, components, forward, isolation, pki
from cluster.errors import ClusterError
from cluster.plan import Plan
from cluster.settings import PACKAGE, SYSTEM_PYTHON, Settings
from cluster.shell import Argument, run

START_SECONDS = 30.0
ATTEMPTS = 3
"""How often the node's process 1 is asked until it is said not to answer."""
READY_SECONDS = 120.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.1


class NoAnswerError(ClusterError):
    """The node's process 1 cannot be reached, or hung up."""


class Node:
    """A node that may or may not be up; every method that needs it up raises ClusterError otherwise."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.from_environment()

    # --- what it is ---------------------------------------------------------------------------------

    @property
    def programs(self) -> Path:
        """Folder with kubectl, helm and the node's own programs."""
        return binaries.folder(self.settings)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for programs run with `net`."""
        return self.settings.kubeconfig

    def holder(self) -> int | None:
        """Process id, on this machine, of the node's process 1; None when the node is down."""
        own = cgroups.daemons(self.settings.name, cgroups.hierarchies())
        return next((pid for pid in own if is_first_of_namespace(pid)), None)

    def live_holder(self) -> int:
        """As `holder`, but ClusterError when the node is down."""
        if (pid := self.holder()) is None:
            raise ClusterError("The node is down: start it with `python3 e2e/cluster up`.")
        return pid

    def components(self) -> dict[str, dict[str, object]]:
        """State of each component: pid (in the node), wanted, starts, running_seconds."""
        return self._ask(verb="status")

    # --- its life -----------------------------------------------------------------------------------

    def boot(self, engine_environment: Path | None) -> bool:
        """Start the node, or restart it if it runs with another configuration; return whether it did.

        Kept state of an earlier run is used again, unless the machine itself was restarted since: nothing was
        flushed to disk for that case. Stopped components of a running node are started.
        """
        if self.holder() is None and self._last_boot() != boot_id():
            self.destroy()
        changed = self._write_configuration(engine_environment)
        if self.holder() is not None:
            if not changed:
                for name, state in self.components().items():
                    if not state["wanted"]:
                        self.start(name)
                return False
            self.halt()
        self._clear_leftovers()
        isolation.load_modules()
        cgroups.create(self.settings.name, cgroups.hierarchies())
        self._spawn()
        return True

    def wait_ready(self) -> None:
        """Return once the node is Ready and pods can be made in the default namespace."""
        self.live_holder()
        self.wait_for(self._is_ready, "the node to be Ready")
        account = ["get", "serviceaccount", "default", "--output=name"]
        self.wait_for(lambda: bool(self.kubectl_says(*account)), "the default service account")

    def halt(self) -> None:
        """End every process of the node at once, like a power cut; its state is kept."""
        if (holder := self.holder()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder, signal.SIGKILL)  # the kernel ends all others of its namespace
            _wait(lambda: self.holder() is None, STOP_SECONDS, "The node's processes do not end")
        self._clear_leftovers()

    def destroy(self) -> None:
        """End the node and delete everything it wrote."""
        self.halt()
        cache.remove(self.settings.state)
        with contextlib.suppress(OSError):  # not empty: another node's state lies there as well
            self.settings.state.parent.rmdir()

    def stop(self, component: str, signal_name: str = "TERM") -> None:
        """End a component with the given signal and leave it down; returns when it is gone.

        Prefer KILL for kube-apiserver: with TERM it first waits for its watchers, about 13 s.
        """
        number = parse_signal(signal_name)
        self._ask(verb="stop", component=component, signal=int(number))

        def gone() -> bool:
            return not self.components()[component]["pid"]

        _wait(gone, STOP_SECONDS, f"{component} does not end at {number.name}")

    def start(self, component: str) -> None:
        """Start a component that was stopped; returns when its process runs."""
        self._ask(verb="start", component=component)

        def runs() -> bool:
            return bool(self.components()[component]["pid"])

        _wait(runs, START_SECONDS, f"{component} does not start; see {self.settings.logs}")

    def restart(self, component: str, signal_name: str = "TERM") -> None:
        """`stop`, then `start`."""
        self.stop(component, signal_name)
        self.start(component)

    def signal(self, component: str, signal_name: str) -> None:
        """Send a signal to a running component: STOP makes it hang, CONT makes it go on."""
        number = parse_signal(signal_name)
        state = self.components().get(component)
        if not state or not state["pid"]:
            raise ClusterError(f"No component called {component!r} is running; see `status`.")
        self.exec("kill", f"-{int(number)}", str(state["pid"]))

    # --- work in it ---------------------------------------------------------------------------------

    def kubectl(self, *arguments: Argument, input: str | None = None) -> str:
        """Run kubectl as the administrator; return what it prints, or raise ClusterError with its words."""
        return run(self.net_command(self.kubectl_command(*arguments)), input=input)

    def kubectl_says(self, *arguments: Argument) -> str:
        """As `kubectl`, but empty when it fails: for conditions that are waited for."""
        try:
            return self.kubectl(*arguments, "--request-timeout=5s")
        except ClusterError:
            return ""

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
        """Return once `condition` holds; raise ClusterError when it does not within `seconds`."""
        failure = f"Waited {seconds:.0f} s for {what} in vain; the logs are in {self.settings.logs}"
        _wait(condition, seconds, failure)

    def net(self, *command: Argument, input: str | None = None) -> str:
        """Run a program of this machine in the node's network, where addresses of pods and Services work."""
        return run(self.net_command(command), input=input)

    def exec(self, *command: Argument, input: str | None = None) -> str:
        """Run a program in all of the node's namespaces, where `ctr` and the components' files are found."""
        return run(self.exec_command(command), input=input)

    def kubectl_command(self, *arguments: Argument) -> list[Argument]:
        """The command line of an administrator's kubectl, to be run with `net`."""
        return [self.programs / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]

    def net_command(self, command: Sequence[Argument]) -> list[Argument]:
        """The command line that runs `command` in the node's network."""
        return ["nsenter", f"--target={self.live_holder()}", "--net", "--", *command]

    def exec_command(self, command: Sequence[Argument]) -> list[Argument]:
        """The command line that runs `command` in the node's network, mount and process namespaces."""
        return ["nsenter", f"--target={self.live_holder()}", "--net", "--mount", "--pid", "--", *command]

    def set_gpus(self, count: int) -> None:
        """Let the node advertise `count` GPUs; pods that ask for one are admitted and get no device."""
        patch = json.dumps({"status": {"capacity": {"nvidia.com/gpu": str(count)}}})
        name = self.settings.name
        self.kubectl("patch", "node", name, "--subresource=status", "--type=merge", f"--patch={patch}")
        query = ["get", "node", name, "-o", r"jsonpath={.status.allocatable.nvidia\.com/gpu}"]
        self.wait_for(lambda: self.kubectl_says(*query) == str(count), "the GPUs to be allocatable")

    def address_of(self, target: str) -> tuple[str, int]:
        """Address and port, in the node's network, of `api`, `NAMESPACE/SERVICE:PORT` or `ADDRESS:PORT`."""
        if target == "api":
            return "127.0.0.1", self.settings.api_port
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            raise ClusterError(
                f"{target!r} is not a target: use api, NAMESPACE/SERVICE:PORT or ADDRESS:PORT."
            )
        if "/" in host:
            namespace, _, service = host.partition("/")
            query = ["-n", namespace, "get", "service", service, "-o", "jsonpath={.spec.clusterIP}"]
            host = self.kubectl(*query).strip()
        return host, int(port)

    @contextmanager
    def forward(self, target: str, port: int = 0) -> Iterator[int]:
        """Let 127.0.0.1:`port` (0: any) of this machine reach `target`, see `address_of`; yields the port."""
        command: list[Argument] = [sys.executable, PACKAGE, "forward", f"{port}:{target}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                line = process.stdout.readline()
                if not line:
                    raise ClusterError(f"Cannot forward to {target}: {process.stderr.read().strip()}")
                yield int(line.split()[0].rpartition(":")[2])
            finally:
                process.terminate()

    def listen(self, host: str, port: int = 0) -> socket.socket:
        """A socket of this process that listens in the node's network; port 0 is any. Raises OSError."""
        return forward.listener(self.live_holder(), host, port)

    # --- the inside ---------------------------------------------------------------------------------

    @property
    def _start_file(self) -> Path:
        """When the node was last started: the machine's boot, and the wall clock, seconds since the epoch."""
        return self.settings.state / "start.json"

    def _last_boot(self) -> str:
        """The machine's boot in which the node was last started; empty when that is not known."""
        return str(json.loads(self._start_file.read_text())["boot"]) if self._start_file.exists() else ""

    def _is_ready(self) -> bool:
        """Whether the kubelet of this very start said Ready; what an earlier one said still lies in etcd."""
        path = "{range .status.conditions[?(@.type=='Ready')]}{.lastHeartbeatTime} {.status}{end}"
        said = self.kubectl_says("get", "node", self.settings.name, f"--output=jsonpath={path}")
        heartbeat, _, status = said.partition(" ")
        if status != "True":
            return False
        started: float = json.loads(self._start_file.read_text())["time"]
        return datetime.fromisoformat(heartbeat).timestamp() >= int(started)

    def _write_configuration(self, engine_environment: Path | None) -> bool:
        """Write whatever the components read; return whether any of it differs from what lay there."""
        settings = self.settings
        for folder in (settings.state, settings.logs):
            folder.mkdir(parents=True, exist_ok=True)
        pki.ensure(settings)
        files = components.configuration(settings, engine_spec=engine_environment is not None)
        if engine_environment is not None:
            files["engine-spec.json"] = components.engine_runtime_spec(
                run(["ctr", "oci", "spec"]), engine_environment
            )
        wanted = {settings.conf / name: text for name, text in files.items()}
        wanted[settings.plan] = components.make_plan(settings, self.programs).to_json()
        changed = False
        for path, text in wanted.items():
            if not path.exists() or path.read_text() != text:
                changed = True
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return changed

    def _spawn(self) -> None:
        log = self.settings.logs / "supervisor.log"
        namespaces = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation=private",
        ]
        supervisor: list[Argument] = [SYSTEM_PYTHON, "-B", "-m", "cluster.supervisor", self.settings.plan]
        plan = Plan.load(self.settings.plan)
        self._start_file.write_text(json.dumps({"boot": boot_id(), "time": time.time()}))
        with log.open("a") as output:
            process = subprocess.Popen(
                ["unshare", *namespaces, *supervisor],
                env={"PATH": plan.path, "PYTHONPATH": str(PACKAGE.parent), "LANG": "C.UTF-8"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        cause = f"The node's process 1 does not start; see {log}"
        answers = self.settings.control_socket.exists
        _wait(lambda: answers() or process.poll() is not None, START_SECONDS, cause)
        if process.poll() is not None:
            raise ClusterError(f"{cause}:\n{log.read_text()[-2000:]}")

    def _clear_leftovers(self) -> None:
        """Remove what a node that ended has left in the kernel, however it ended."""
        cgroups.remove(self.settings.name, cgroups.hierarchies())
        self.settings.control_socket.unlink(missing_ok=True)

    def _ask(self, **request: object) -> dict[str, dict[str, object]]:
        """Asked again when the answer fails to come: on a machine that is full of engines either side may be
        kept waiting for longer than the other waits, and every verb may be said twice.
        """
        for attempt in range(ATTEMPTS):
            try:
                return self._ask_once(request)
            except NoAnswerError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _ask_once(self, request: dict[str, object]) -> dict[str, dict[str, object]]:
        self.live_holder()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_SECONDS)
            try:
                connection.connect(str(self.settings.control_socket))
                connection.sendall(json.dumps(request).encode() + b"\n")
                answer = json.loads(connection.makefile().readline())
            except (OSError, ValueError) as error:
                raise NoAnswerError(
                    f"The node's process 1 does not answer ({error}); see {self.settings.logs}"
                ) from error
        if "error" in answer:
            raise ClusterError(answer["error"])
        told: dict[str, dict[str, object]] = answer["components"]
        return told


def _wait(condition: Callable[[], bool], seconds: float, failure: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(failure)
        time.sleep(POLL_SECONDS)


def boot_id() -> str:
    """Identifies the current run of this machine's kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_first_of_namespace(pid: int) -> bool:
    """Whether a process is number 1 of a process namespace below this one."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


def parse_signal(name: str) -> signal.Signals:
    """A signal from `KILL`, `SIGKILL` or `9`."""
    text = name.upper().removeprefix("SIG")
    try:
        return signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{text}"]
    except (KeyError, ValueError) as error:
        raise ClusterError(
            f"{name!r} is not a signal: use a name such as TERM or KILL, or a number."
        ) from error
