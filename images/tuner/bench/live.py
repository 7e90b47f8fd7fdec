#!/usr/bin/env python3
"""Change a real `vllm serve` under load and check every promise of the tuner's contract.

    live.py --vllm-python ENV/bin/python --model FOLDER [--only NAME ...]

Starts servers on loopback one after the other (each takes a minute or more on a small machine), puts 40
closed-loop streams on each, and prints one line a check. Ends with 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server import SNAPSHOT, Server, Signer, load, serving

PROMPT = (16, 128)
OUTPUT = (60, 200)
STREAMS = 40
SETTLE_S = 10.0
WINDOW_S = 8.0

failures: list[str] = []


def check(what: str, holds: bool, detail: Any = "") -> None:
    """Print one promise and remember if it was broken."""
    print(f"  {'ok  ' if holds else 'FAIL'} {what}  {detail}", flush=True)
    if not holds:
        failures.append(what)


def reason(answer: tuple[int, Any]) -> tuple[int, str]:
    """Return the status and the reason of a reply, "" when it is not an error."""
    status, content = answer
    return status, content.get("error", {}).get("reason", "") if isinstance(content, dict) else str(content)


def in_force(server: Server) -> tuple[int, int]:
    """Return the cap and the budget that the scheduler has now."""
    engine = server.engine()
    return engine["max_num_active_seqs"], engine["max_num_scheduled_tokens"]


def wait_for_drain(server: Server, cap: int, seconds: float = 60.0) -> bool:
    """Wait until no more sequences run than the cap says."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.engine()["running"] <= cap:
            return True
        time.sleep(0.5)
    return False


def retune_under_load(server: Server, key: str = "") -> None:
    """Move the cap and the budget with 40 streams running; no stream may notice more than its latency."""
    traffic = load(server, STREAMS, PROMPT, OUTPUT, key)
    time.sleep(SETTLE_S)
    windows: list[tuple[str, float, float]] = []
    first = server.whole_snapshot()
    for cap, budget in ((32, None), (4, None), (16, 48), (None, None)):
        started = time.monotonic()
        status, reply = server.put(cap, budget)
        took = 1e3 * (time.monotonic() - started)
        wanted = reply["engines"][0]["wanted"] if status == 200 else reply
        check(f"PUT cap={cap} budget={budget} is applied", status == 200, f"{took:.0f} ms, {wanted}")
        check("running falls to the cap", wait_for_drain(server, cap or 32))
        check(
            "read back from the scheduler", in_force(server) == (cap or 32, budget or 2048), in_force(server)
        )
        time.sleep(2)
        now = time.perf_counter()
        windows.append((f"cap {cap} budget {budget}", now, now + WINDOW_S))
        time.sleep(WINDOW_S)
    last = server.whole_snapshot()
    seen = traffic.stop()
    medians = {}
    for name, start, end in windows:
        latencies = sorted(seconds for _, seconds, _ in seen.between(start, end)[0])
        medians[name] = 1e3 * statistics.median(latencies)
        p99 = 1e3 * latencies[int(0.99 * len(latencies))]
        rate = len(latencies) / WINDOW_S
        print(f"       {name}: ITL p50 {medians[name]:.1f} ms, p99 {p99:.1f} ms, {rate:.0f} tokens/s")
    full, small = medians["cap 32 budget None"], medians["cap 4 budget None"]
    check("a small cap makes the tokens come faster", small < 0.7 * full, f"{full:.1f} -> {small:.1f} ms")
    check("no stream was cut", seen.cut == 0, f"{seen.done} streams complete")
    check(
        "no sequence was preempted", last["engines"][0]["preemptions"] == first["engines"][0]["preemptions"]
    )
    if last["requests"] is not None:
        compare_meter_with_clients(first, last)


def compare_meter_with_clients(first: dict[str, Any], last: dict[str, Any]) -> None:
    """The engine's steps and the front end's latencies are two measurements of one thing."""

    def total(name: str, snapshot: dict[str, Any]) -> int:
        steps = snapshot["engines"][0]["steps"]
        return int(steps["decode"][name] + steps["mixed"][name])

    sequences = total("B", last) - total("B", first)
    step_ms = (total("By", last) - total("By", first)) / sequences / 1e3
    old, new = (snapshot["requests"]["0"]["itl"] for snapshot in (first, last))
    itl_ms = 1e3 * (new["sum"] - old["sum"]) / (new["count"] - old["count"])
    detail = f"{step_ms:.2f} ms a step and sequence, {itl_ms:.2f} ms between tokens"
    check("step times and inter-token latencies agree within 3 %", abs(step_ms / itl_ms - 1) < 0.03, detail)


def refusals(server: Server, folder: Path) -> None:
    """Every way to be refused has its status and its reason, and changes nothing."""
    before = in_force(server), server.engine()["generation"]
    now = int(time.time())
    stranger = Signer(folder / "elsewhere", server.signer.kid)
    cases: list[tuple[str, Callable[[], tuple[int, Any]], tuple[int, str]]] = [
        ("another key", lambda: server.put(4, None, signer=stranger), (401, "BadSignature")),
        (
            "an unknown key",
            lambda: server.put(4, None, signer=Signer(folder / "elsewhere", "x")),
            (401, "UnknownKey"),
        ),
        (
            "an expired token",
            lambda: server.put(4, None, iat=now - 100, exp=now - 60),
            (401, "Expired"),
        ),
        ("another pod's token", lambda: server.put(4, None, aud="other"), (401, "WrongAudience")),
        ("an earlier start's token", lambda: server.put(4, None, boot="before"), (401, "WrongBoot")),
        ("another body's token", lambda: server.put(4, None, sha256="0" * 64), (401, "BodyMismatch")),
        ("a cap above the ceiling", lambda: server.put(33, None), (400, "OutOfBounds")),
        ("a cap of nothing", lambda: server.put(0, None), (400, "OutOfBounds")),
        ("a budget below the cap", lambda: server.put(16, 15), (400, "OutOfBounds")),
        ("a budget above the start", lambda: server.put(16, 2049), (400, "OutOfBounds")),
        ("a lease of a second", lambda: server.put(4, None, lease=1), (400, "OutOfBounds")),
        (
            "a spent generation",
            lambda: server.put(4, None, generation=before[1]),
            (409, "StaleGeneration"),
        ),
        (
            "no token",
            lambda: server.request("PUT", "/llamaserver/v1/scheduler", b"{}"),
            (401, "MissingToken"),
        ),
    ]
    for name, send, expected in cases:
        got = reason(send())
        check(f"{name} is refused", got == expected, got)
    after = in_force(server), server.engine()["generation"]
    check("none of them changed anything", after == before, after)


def lease_end(server: Server) -> None:
    """A change that nobody renews ends by itself."""
    server.put(5, 64, lease=6)
    check("a short lease is in force", in_force(server) == (5, 64))
    time.sleep(6.5)
    engine = server.engine()
    check("at its end the engine is where it started", in_force(server) == (32, 2048), in_force(server))
    check("the end is counted", engine["retunes"]["expired"] >= 1 and engine["lease_expires_in_s"] is None)
    check("the end is in the log", "the lease of generation" in server.log.read_text())


def rotated_key(server: Server, folder: Path) -> None:
    """A second key is valid as soon as its file is there."""
    new = Signer(folder / "keys", "next")
    check("a key that was added signs", server.put(20, None, signer=new)[0] == 200)
    check("the old key still signs", server.put(None, None)[0] == 200)


def hung_engine(server: Server, key: str = "") -> None:
    """The engine core is stopped: the API server answers, says so, and what came too late stays without
    effect."""
    traffic = load(server, 8, PROMPT, OUTPUT, key)
    time.sleep(3)
    generation = server.engine()["generation"]
    core = server.child("EngineCore")
    os.kill(core, signal.SIGSTOP)
    try:
        started = time.monotonic()
        snapshot = server.snapshot()
        took = time.monotonic() - started
        check("the last reading comes with its age", took < 2 and snapshot["age_s"] > 0, f"{took:.2f} s")
        check("with the requests' figures", snapshot["requests"]["0"]["itl"]["count"] > 0)
        answer = server.put(3, None, generation=generation + 1, exp=int(time.time()) + 1)
        check("a change times out", reason(answer) == (504, "EngineTimeout"), reason(answer))
        answer = server.put(3, None, generation=generation + 1)
        check("and is not piled up on", reason(answer) == (504, "EngineTimeout"), reason(answer))
        time.sleep(8)
        snapshot = server.snapshot()
        check("an old reading is no longer served", snapshot["engines"] is None, snapshot["age_s"])
        check("and the reason is said", snapshot["reason"] == "EngineUnreachable", snapshot["message"])
    finally:
        os.kill(core, signal.SIGCONT)
    time.sleep(3)
    engine = server.engine()
    held = engine["generation"] == generation and engine["max_num_active_seqs"] == 32
    check("what came too late is not applied", held, (engine["generation"], engine["retunes"]))
    check("the engine takes changes again", server.put(30, None)[0] == 200)
    check("no stream was cut by the pause", traffic.stop().cut == 0)
    server.put(None, None)


def metrics(server: Server) -> None:
    """What is in force is on /metrics, under the tuner's own names."""
    server.put(7, 70)
    text = server.request("GET", "/metrics")[1]
    lines = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines()}
    for name, value in (
        ("max_num_active_seqs", 7.0),
        ("max_num_scheduled_tokens", 70.0),
        ("max_num_seqs", 32.0),
    ):
        got = lines.get(f'llamaserver_{name}{{engine="0"}}', "nan")
        check(f"llamaserver_{name} shows it", float(got) == value, got)
    check("retunes are counted", float(lines['llamaserver_retunes_total{result="applied"}']) > 0)
    server.put(None, None)


def one_api_server(server: Server, folder: Path) -> None:
    """Everything, behind `--api-key`, with vLLM's default loop."""
    key = "the-users-key"
    check("the users' key guards the models", server.request("GET", "/v1/models")[0] == 401)
    check("and not the snapshot", server.request("GET", SNAPSHOT)[0] == 200)
    retune_under_load(server, key)
    refusals(server, folder)
    lease_end(server)
    rotated_key(server, folder)
    metrics(server)
    hung_engine(server, key)


def other_loop(server: Server, folder: Path) -> None:
    """The same change in vLLM's other engine loop."""
    del folder
    retune_under_load(server)


def two_api_servers(server: Server, folder: Path) -> None:
    """Two API servers: the engine is one, the requests' figures are not."""
    del folder
    snapshots = [server.whole_snapshot() for _ in range(20)]
    check("they are two", {s["api_servers"] for s in snapshots} == {2})
    check("all of them name one start", len({s["boot_id"] for s in snapshots}) == 1)
    got = {(s["requests"], s["requests_reason"]) for s in snapshots}
    check("the requests' figures are left to /metrics", got == {(None, "SeveralApiServers")}, got)
    check("changes are on", all(s["writable"] for s in snapshots), snapshots[0]["reason"])
    retune_under_load(server)
    lease_end(server)
    metrics(server)


SCENARIOS: dict[str, tuple[Callable[[Server, Path], None], list[str]]] = {
    "one-api-server": (one_api_server, ["--api-key", "the-users-key"]),
    "synchronous": (other_loop, ["--no-async-scheduling"]),
    "asynchronous": (other_loop, ["--async-scheduling"]),
    "two-api-servers": (two_api_servers, ["--api-server-count", "2"]),
}


def main() -> None:
    """Run the scenarios that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-python", required=True, help="interpreter of an environment with vLLM")
    parser.add_argument("--model", required=True, help="folder of a small model")
    parser.add_argument("--only", nargs="+", choices=sorted(SCENARIOS), default=list(SCENARIOS))
    arguments = parser.parse_args()
    for name in arguments.only:
        scenario, flags = SCENARIOS[name]
        print(f"{name}: {' '.join(flags)}", flush=True)
        with (
            tempfile.TemporaryDirectory(prefix="tuner-live-") as folder,
            serving(arguments.vllm_python, arguments.model, Path(folder), flags) as server,
        ):
            scenario(server, Path(folder))
    print(f"{len(failures)} failed: {failures}" if failures else "all checks hold")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
