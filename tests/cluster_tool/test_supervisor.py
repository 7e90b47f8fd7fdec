"""The supervisor, with real processes: they are started in order, revived, stopped and reaped."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.plan import Component, Plan
from cluster.settings import PACKAGE

PROGRAM = """
import sys
from pathlib import Path
from cluster.plan import Plan
from cluster.supervisor import Supervisor
Supervisor(Plan.load(Path(sys.argv[1]))).run()
"""
"""The supervisor as it runs in a node, less the namespaces."""

PATIENCE_SECONDS = 20


def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return result


class Supervised:
    """A running supervisor and the way to talk to it."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def ask(self, **request: object) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_SECONDS)
            connection.connect(str(self.state / "supervisor.sock"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile().readline())
            return answer

    def pid(self, component: str) -> int:
        return int(self.ask(verb="status")["components"][component]["pid"])

    def log(self, component: str) -> str:
        file = self.state / "log" / f"{component}.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    shell = "/bin/sh"
    components = (
        Component("steady", (shell, "-c", "echo started; exec sleep 1000")),
        Component("stubborn", (shell, "-c", "trap '' TERM; echo started; while :; do sleep 0.1; done")),
        Component("patient", (shell, "-c", "exec sleep 1000"), waits_for=f"unix://{tmp_path / 'door.sock'}"),
        Component("orphaning", (shell, "-c", "(sh -c 'sleep 0.2' &) ; exec sleep 1000")),
    )
    plan = Plan("node", str(tmp_path), "10.0.0.1/24", "10.1.0.0/16", (), "/usr/bin:/bin", components)
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "log").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path / "plan.json"],
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": os.environ["PATH"]},
    )
    supervised = Supervised(tmp_path)
    eventually((tmp_path / "supervisor.sock").exists)
    yield supervised
    running = [state["pid"] for state in supervised.ask(verb="status")["components"].values()]
    process.kill()
    process.wait()
    for pid in filter(None, running):
        os.kill(pid, signal.SIGKILL)


def test_a_component_that_dies_is_revived(supervised: Supervised) -> None:
    first = eventually(lambda: supervised.pid("steady"))
    os.kill(first, signal.SIGKILL)
    second = eventually(lambda: (pid := supervised.pid("steady")) != first and pid)
    assert Path(f"/proc/{second}").exists()
    assert supervised.ask(verb="status")["components"]["steady"]["starts"] == 2
    eventually(lambda: supervised.log("steady").count("started") == 2)


def test_a_component_that_is_stopped_stays_down_until_it_is_started(supervised: Supervised) -> None:
    eventually(lambda: supervised.pid("steady"))
    supervised.ask(verb="stop", component="steady", signal=int(signal.SIGTERM))
    eventually(lambda: not supervised.pid("steady"))
    os.kill(eventually(lambda: supervised.pid("orphaning")), signal.SIGKILL)
    eventually(lambda: supervised.ask(verb="status")["components"]["orphaning"]["starts"] == 2)
    assert not supervised.pid("steady"), "revived together with another"
    supervised.ask(verb="start", component="steady")
    assert eventually(lambda: supervised.pid("steady"))


def test_the_signal_is_the_one_asked_for(supervised: Supervised) -> None:
    eventually(lambda: "started" in supervised.log("stubborn"))
    supervised.ask(verb="stop", component="stubborn", signal=int(signal.SIGTERM))
    assert supervised.pid("stubborn"), "a trapped signal ended it"
    supervised.ask(verb="stop", component="stubborn", signal=int(signal.SIGKILL))
    eventually(lambda: not supervised.pid("stubborn"))


def test_a_component_waits_for_its_condition(supervised: Supervised) -> None:
    eventually(lambda: supervised.pid("steady"))
    assert not supervised.pid("patient")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(supervised.state / "door.sock"))
        door.listen()
        eventually(lambda: supervised.pid("patient"))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"verb": "stop", "component": "nobody"}, "no component is called 'nobody'"),
        ({"verb": "dance"}, "no verb is called 'dance'"),
        ({"verb": "stop", "component": "steady", "signal": "loud"}, "bad request"),
    ],
)
def test_a_bad_request_is_answered_and_survived(
    supervised: Supervised, request_: dict[str, object], error: str
) -> None:
    eventually(lambda: supervised.pid("steady"))
    assert error in supervised.ask(**request_)["error"]
    assert supervised.pid("orphaning") or eventually(lambda: supervised.pid("orphaning"))


def test_a_caller_that_hangs_up_is_survived(supervised: Supervised) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(supervised.state / "supervisor.sock"))
    assert eventually(lambda: supervised.pid("steady"))


def test_a_client_that_is_slow_to_speak_is_answered(supervised: Supervised) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect(str(supervised.state / "supervisor.sock"))
        time.sleep(1.5)
        connection.sendall(b'{"verb": "status"}\n')
        assert "components" in json.loads(connection.makefile().readline())
