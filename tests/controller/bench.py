"""What the operator costs the API server and its users: the figures of docs/operations.md.

    PYTHONPATH=operator:tests:e2e .venv/bin/python -m controller.bench [apply] [render] [--count 200]

apply: so many LlamaServers are applied at once to the API server of the tests, with the operator in a process
of its own. For each, the time from its own event to that of its Deployment, as a watch tells them. No
controller runs beside, so nothing but the operator and the API server is timed; etcd does not wait for a
disk.

render: processor time from an example's YAML, once it is read, to the objects that are applied.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import yaml

from conftest import ApiServer, install_crd, running_api_server
from llamaserver.api import effective, parse
from llamaserver.desired import BuildSettings, build, desired_fleet

ROOT = Path(__file__).resolve().parents[2]
SERVERS = "/apis/llamaserver.dev/v1alpha1/namespaces/{}/llamaservers"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
SECONDS = 120.0
SENDERS = 32
"""Connections by which LlamaServers are applied."""
REPEATS = 200


@dataclass
class Seen:
    """When things happened, by the name of the LlamaServer; seconds of one clock."""

    sent: dict[str, float] = field(default_factory=dict)
    stored: dict[str, float] = field(default_factory=dict)
    deployed: dict[str, float] = field(default_factory=dict)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that so many of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def told(name: str, values: Sequence[float], unit: str, scale: float) -> str:
    """One line of figures."""
    figures = (quantile(values, 0.5), quantile(values, 0.99), max(values))
    p50, p99, most = (f"{value * scale:.3g} {unit}" for value in figures)
    return f"{name:34s} p50 {p50}, p99 {p99}, max {most}"


def server(name: str) -> dict[str, Any]:
    """A LlamaServer such as users have."""
    obj: dict[str, Any] = next(iter(yaml.safe_load_all((ROOT / "examples" / "chat.yaml").read_text())))
    return {**obj, "metadata": {"name": name}}


async def watch(session: aiohttp.ClientSession, path: str, into: dict[str, float]) -> None:
    """Note when each object of a collection is first seen."""
    async with session.get(path, params={"watch": "true"}) as answer:
        answer.raise_for_status()
        buffer = b""
        async for chunk in answer.content.iter_any():
            now = time.monotonic()
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                # To read all of it would take the processor that is measured.
                found = re.search(rb'"name":"([^"]+)"', line)
                if found and line.startswith(b'{"type":"ADDED"'):
                    into.setdefault(found[1].decode(), now)


async def send(session: aiohttp.ClientSession, path: str, obj: dict[str, Any], seen: Seen) -> None:
    name = obj["metadata"]["name"]
    query = {"fieldManager": "bench", "force": "true"}
    headers = {"Content-Type": "application/apply-patch+yaml"}
    seen.sent[name] = time.monotonic()
    async with session.patch(f"{path}/{name}", params=query, data=json.dumps(obj), headers=headers) as answer:
        assert answer.status in (200, 201), await answer.text()


async def calls(session: aiohttp.ClientSession, port: int) -> Counter[str]:
    """The calls that the operator has made so far, by verb, resource and outcome."""
    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        text = await answer.text()
    pattern = r'llamaserver_api_calls_total\{outcome="(.+?)",resource="(.+?)",verb="(.+?)"\} (\S+)'
    return Counter(
        {
            f"{verb} {what} {outcome}": int(float(n))
            for outcome, what, verb, n in re.findall(pattern, text)
            if what not in ("leases", "secrets")
        }
    )


def processor_s(pid: int) -> float:
    """Processor time that a process has used, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def operator(api: ApiServer, namespace: str, options: Sequence[str]) -> AsyncIterator[tuple[int, int]]:
    """The operator as a process of its own, leading. Yields its pid, and the port of its metrics."""
    port = 20_000 + os.getpid() % 10_000
    command = ["-m", "llamaserver.cli.main", "run", f"--kubeconfig={api.kubeconfig}", "--log-level=warning"]
    command += [f"--namespace={namespace}", "--http-host=127.0.0.1", f"--http-port={port}", *options]
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(600):
                await asyncio.sleep(0.1)
                try:
                    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                        if "llamaserver_is_leader 1.0" in await answer.text():
                            break
                except aiohttp.ClientError:
                    assert process.returncode is None, "the operator ended"
        await asyncio.sleep(2)
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def applied(api: ApiServer, count: int, options: Sequence[str]) -> tuple[Seen, Counter[str], float]:
    """`count` LlamaServers at once; the calls that the operator made until all have their Deployment and a
    status, and its processor time until the last Deployment, seconds.
    """
    namespace, seen = api.create_namespace(), Seen()
    servers, deployments = SERVERS.format(namespace), DEPLOYMENTS.format(namespace)
    context = ssl.create_default_context(cafile=str(api.ca_file))
    connector = aiohttp.TCPConnector(limit=SENDERS + 2, ssl=context)
    headers = {"Authorization": f"Bearer {api.token}"}
    async with (
        operator(api, namespace, options) as (pid, port),
        aiohttp.ClientSession(api.url, connector=connector, headers=headers, read_bufsize=1 << 20) as session,
        aiohttp.ClientSession() as plain,
        asyncio.timeout(SECONDS),
    ):
        watches = [
            asyncio.create_task(watch(session, servers, seen.stored)),
            asyncio.create_task(watch(session, deployments, seen.deployed)),
        ]
        await asyncio.sleep(0.5)
        before, used = await calls(plain, port), processor_s(pid)
        made = [server(f"chat-{number}") for number in range(count)]
        await asyncio.gather(*(send(session, servers, obj, seen) for obj in made))
        while len(seen.deployed) < count:
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in watches), "a watch ended"
        used = processor_s(pid) - used
        # Until what is not urgent is done, too.
        while (now := await calls(plain, port)) != before:
            before, wrote = now, now
            await asyncio.sleep(3)
        for task in watches:
            task.cancel()
    return seen, wrote, used


def bench_apply(count: int, runs: int, options: Sequence[str]) -> None:
    """Print the figures of each run."""
    for run in range(runs):
        with tempfile.TemporaryDirectory() as folder, running_api_server(Path(folder)) as api:
            install_crd(api)
            seen, wrote, used = asyncio.run(applied(api, count, options))
        names = list(seen.sent)
        took = max(seen.stored.values()) - min(seen.sent.values())
        print(f"run {run + 1}: {count} LlamaServers, all stored after {took:.2f} s")
        stored = [seen.deployed[name] - seen.stored[name] for name in names]
        print(told("  from stored to Deployment", stored, "s", 1))
        sent = [seen.deployed[name] - seen.sent[name] for name in names]
        print(told("  from request to Deployment", sent, "s", 1))
        last = max(seen.deployed.values()) - min(seen.sent.values())
        print(f"  the last Deployment {last:.2f} s after the first request")
        print(f"  the operator's processor time until then {used / count * 1e3:.1f} ms a LlamaServer")
        for call, number in sorted(wrote.items()):
            print(f"  {call:34s} {number / count:.2f} a LlamaServer")


def bench_render() -> None:
    """Print what an example takes from YAML to objects, processor time."""
    settings, medians = BuildSettings("llamaserver/tuner:0", public_keys={"k": "pem"}), []
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for obj in yaml.safe_load_all(path.read_text()):
            if obj["kind"] != "LlamaServer":
                continue
            obj["metadata"] |= {"namespace": "models", "uid": "00000000-0000-0000-0000-000000000001"}
            times = []
            for _ in range(REPEATS):
                began = time.process_time()
                parsed = parse(obj)
                build(parsed, desired_fleet(effective(parsed.spec), None, None), settings)
                times.append(time.process_time() - began)
            medians.append(median(times))
            print(told(path.name, times, "ms", 1e3))
    print(f"median of the examples {median(medians) * 1e3:.2f} ms, the slowest {max(medians) * 1e3:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["apply", "render"], default=["apply", "render"])
    parser.add_argument("--count", type=int, default=200, help="LlamaServers that are applied at once")
    parser.add_argument("--runs", type=int, default=3, help="of apply, each on an API server of its own")
    parser.add_argument(
        "--option", action="append", default=[], help="of the operator, such as --option=--workers=8"
    )
    given = parser.parse_args()
    if "render" in given.what:
        bench_render()
    if "apply" in given.what:
        bench_apply(given.count, given.runs, given.option)


if __name__ == "__main__":
    main()
