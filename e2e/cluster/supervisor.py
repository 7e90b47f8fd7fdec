"""Process 1 of the node: starts the components, revives those that die, reaps orphans, takes requests.

Runs as `python3 -m cluster.supervisor PLAN`, as the first process of new network, mount and PID namespaces.
When it ends, the kernel ends every process of the node with it; that is how a node is taken down.

A request is one JSON line on a Unix socket, {"verb": "status"} or {"verb": "start", "component": NAME} or
{"verb": "stop", "component": NAME, "signal": 15}; so is the answer, {"components": {NAME: {...}}} or
{"error": TEXT}. A stop only sends the signal: ask for the status to see the process gone.
"""

from __future__ import annotations

import http.client
import json
import os
import selectors
import signal
import socket
import ssl
import sys
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from cluster import isolation
from cluster.plan import Component, Plan

REVIVE_AFTER_SECONDS = 1.0
LOOK_AGAIN_SECONDS = 0.1
CONDITION_TIMEOUT_SECONDS = 1.0
REQUEST_TIMEOUT_SECONDS = 10.0
"""A client on a machine full of engines may be kept waiting between its first step and its second."""


@dataclass
class Unit:
    """A component and what has become of it. Times are on the monotonic clock."""

    component: Component
    wanted: bool = True
    pid: int = 0
    """0 while it does not run."""
    starts: int = 0
    started: float = 0.0
    not_before: float = 0.0

    def describe(self, now: float) -> dict[str, object]:
        """What `status` tells."""
        running = now - self.started if self.pid else 0.0
        return {
            "pid": self.pid,
            "wanted": self.wanted,
            "starts": self.starts,
            "running_seconds": round(running, 1),
        }


class Supervisor:
    """One thread that waits for children, requests and conditions in turn."""

    def __init__(self, plan: Plan) -> None:
        self._state = Path(plan.state)
        self._environment = {"PATH": plan.path, "HOME": str(self._state), "LANG": "C.UTF-8"}
        self._units = {component.name: Unit(component) for component in plan.components}

    def run(self) -> None:
        """Serve until killed."""
        selector = selectors.DefaultSelector()
        listener = self._listen()
        selector.register(listener, selectors.EVENT_READ)
        selector.register(_wake_on_child_exit(), selectors.EVENT_READ)
        while True:
            self._start_what_is_due()
            waiting = any(unit.wanted and not unit.pid for unit in self._units.values())
            for key, _ in selector.select(LOOK_AGAIN_SECONDS if waiting else None):
                if key.fileobj is listener:
                    self._serve(listener)
                else:
                    os.read(key.fd, 4096)
            self._reap()

    def _listen(self) -> socket.socket:
        path = self._state / "supervisor.sock"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        return listener

    def _start_what_is_due(self) -> None:
        now = time.monotonic()
        for unit in self._units.values():
            due = unit.wanted and not unit.pid and now >= unit.not_before
            if due and _is_met(unit.component.waits_for, self._state / "pki"):
                self._start(unit)

    def _start(self, unit: Unit) -> None:
        log = self._state / "log" / f"{unit.component.name}.log"
        argv = unit.component.argv
        unit.pid = os.posix_spawn(
            argv[0],
            argv,
            self._environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE],
        )
        unit.started = time.monotonic()
        unit.starts += 1
        _say(f"started {unit.component.name}, process {unit.pid}")

    def _reap(self) -> None:
        by_pid = {unit.pid: unit for unit in self._units.values() if unit.pid}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if unit := by_pid.get(pid):
                code = os.waitstatus_to_exitcode(status)
                _say(f"{unit.component.name}, process {pid}, ended with {code}")
                unit.pid = 0
                unit.not_before = time.monotonic() + REVIVE_AFTER_SECONDS

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(REQUEST_TIMEOUT_SECONDS)
            try:
                request = json.loads(connection.makefile().readline())
                answer = self._answer(request)
            except (OSError, ValueError, TypeError) as error:
                answer = {"error": f"bad request: {error}"}
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError as error:
                _say(f"nobody waited for the answer: {error}")

    def _answer(self, request: dict[str, object]) -> dict[str, object]:
        verb, name = request.get("verb"), str(request.get("component", ""))
        if verb in ("start", "stop"):
            unit = self._units.get(name)
            if unit is None:
                return {"error": f"no component is called {name!r}; there are {', '.join(self._units)}"}
            unit.wanted = verb == "start"
            unit.not_before = 0.0
            if verb == "stop" and unit.pid:
                os.kill(unit.pid, int(str(request.get("signal", int(signal.SIGTERM)))))
        elif verb != "status":
            return {"error": f"no verb is called {verb!r}; there are start, status, stop"}
        now = time.monotonic()
        return {"components": {name: unit.describe(now) for name, unit in self._units.items()}}


def _wake_on_child_exit() -> int:
    """A file descriptor that can be read once a child has ended."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read_end


def _is_met(condition: str, pki: Path) -> bool:
    """Whether a component's `waits_for` holds now."""
    try:
        if condition.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CONDITION_TIMEOUT_SECONDS)
                probe.connect(condition.removeprefix("unix://"))
        elif condition:
            return _answers_ok(condition, pki)
    except (OSError, http.client.HTTPException):
        return False
    return True


def _answers_ok(url: str, pki: Path) -> bool:
    context = ssl.create_default_context(cafile=pki / "ca.crt")
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPSConnection(parts.netloc, timeout=CONDITION_TIMEOUT_SECONDS, context=context)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == http.client.OK
    finally:
        connection.close()


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}", flush=True)


def main() -> None:
    plan = Plan.load(Path(sys.argv[1]))
    isolation.enter(plan)
    Supervisor(plan).run()


if __name__ == "__main__":
    main()
