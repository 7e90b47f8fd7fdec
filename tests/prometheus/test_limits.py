"""A Prometheus that sends a byte now and then, or without end, holds nobody for longer than the deadline."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from llamaserver.observe import Failure
from llamaserver.prometheus import CURES, Access, Prometheus, PrometheusError, PrometheusSource

DEADLINE_S = 0.5
PATIENCE_S = 10.0
"""Of a busy machine; what trickles would go on for as long as the test lets it."""
EMPTY = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(EMPTY), EMPTY)
HEADERS = b"HTTP/1.1 200 OK\r\nX-Slow: "
BODY = b'HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{"status": '
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.0 200 OK\r\n\r\n"
TLS_HANDSHAKE = b"\x16\x03\x03\x40\x00"
"""The beginning of a record of 16 KiB."""


class Trickler:
    """Answers properly so often on a connection, then `begins`, and goes on with `drop` every `pause_s`."""

    def __init__(self) -> None:
        self.proper = 0
        self.begins = HEADERS
        self.drop, self.pause_s = b"1", 0.05
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def connections(self) -> int:
        return len(self._open)

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                connection, _ = self._listener.accept()
                self._open.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            for _ in range(self.proper):
                connection.recv(65536)
                connection.sendall(ANSWER)
            connection.recv(65536)
            connection.sendall(self.begins)
            while not self._over.wait(self.pause_s):
                connection.sendall(self.drop)


@pytest.fixture
def trickler() -> Iterator[Trickler]:
    made = Trickler()
    yield made
    made.close()


def access(url: str) -> Access:
    return Access(url, timeout_s=DEADLINE_S, retries=0, cures=CURES)


@pytest.mark.parametrize("begins", [HEADERS, BODY, CHUNKS, UNTIL_CLOSED])
def test_an_answer_that_trickles_is_given_up_at_the_deadline(begins: bytes, trickler: Trickler) -> None:
    trickler.begins, trickler.drop = begins, b"1\r\nx\r\n" if begins is CHUNKS else b"1"
    with Prometheus(access(trickler.url)) as prometheus:
        started = time.monotonic()
        with pytest.raises(PrometheusError) as caught:
            prometheus.samples("up[1m]", DEADLINE_S)
    assert DEADLINE_S - 0.01 <= time.monotonic() - started < PATIENCE_S
    assert str(caught.value) == f"Prometheus {trickler.url} did not answer within 0.5 s"


def test_a_handshake_that_trickles_is_given_up_at_the_deadline(trickler: Trickler) -> None:
    trickler.begins = TLS_HANDSHAKE
    with Prometheus(access(f"https://127.0.0.1:{trickler.port}")) as prometheus:
        started = time.monotonic()
        with pytest.raises(PrometheusError, match=r"did not answer within 0\.5 s$"):
            prometheus.samples("up[1m]", DEADLINE_S)
    assert time.monotonic() - started < PATIENCE_S


def test_the_deadline_holds_on_a_connection_that_was_used_before(trickler: Trickler) -> None:
    trickler.proper = 2
    with Prometheus(access(trickler.url)) as prometheus:
        assert prometheus.samples("up[1m]", DEADLINE_S) == []
        time.sleep(DEADLINE_S + 0.1)
        assert prometheus.samples("up[1m]", DEADLINE_S) == [], "the deadline of the first is no longer one"
        assert trickler.connections == 1
        started = time.monotonic()
        with pytest.raises(PrometheusError, match=r"did not answer within 0\.5 s$"):
            prometheus.samples("up[1m]", DEADLINE_S)
        assert time.monotonic() - started < PATIENCE_S
        assert prometheus.samples("up[1m]", DEADLINE_S) == [], "and the next question has a new connection"


def test_an_answer_without_end_is_given_up(trickler: Trickler) -> None:
    trickler.begins, trickler.drop, trickler.pause_s = UNTIL_CLOSED, b"1" * 100_000, 0.0
    with Prometheus(access(trickler.url)) as prometheus, pytest.raises(PrometheusError) as caught:
        prometheus.samples("up[1m]", 30.0, most_bytes=2_000_000)
    assert str(caught.value) == (
        f"Prometheus {trickler.url} answered more than 2 MB, which is not read: see whether several of its "
        "jobs scrape the same pods"
    )


async def test_fleets_that_wait_for_a_trickle_do_not_hold_the_next_look(trickler: Trickler) -> None:
    """More of them than there are threads, and the server gets well afterwards."""
    asked = Prometheus(access(trickler.url)).samples
    source = PrometheusSource(asked, monotonic=time.monotonic, wall=time.time, deadline_s=DEADLINE_S)
    try:
        reads = [source.read(f"ns/{n}", "ns", {f"{n}-0": "uid/0"}, 2.0) for n in range(9)]
        for found in await asyncio.gather(*reads):
            assert found is not None
            assert all("did not answer within 0.5 s" in one.message for one in failures(found))
        await asyncio.sleep(0.1)
        trickler.proper = 99
        for n in range(9):
            found = await source.read(f"ns/{n}", "ns", {f"{n}-0": "uid/0"}, 2.0)
            assert found is not None
            assert all("has no figures of it" in one.message for one in failures(found))
    finally:
        source.close()


def failures(found: object) -> list[Failure]:
    assert isinstance(found, dict)
    assert found
    assert all(isinstance(one, Failure) for one in found.values())
    return list(found.values())


PROGRAM = """
import asyncio, sys, time
from llamaserver.prometheus import Access, Prometheus, PrometheusSource

async def main():
    asked = Prometheus(Access(sys.argv[1], timeout_s=60.0, retries=0)).samples
    source = PrometheusSource(asked, monotonic=time.monotonic, wall=time.time, deadline_s=60.0)
    reads = [asyncio.create_task(source.read(str(n), "ns", {"m-0": "uid/0"}, 2.0)) for n in range(9)]
    await asyncio.sleep(1.0)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    source.close()
    print("closed", flush=True)

asyncio.run(main())
"""


def test_a_process_exits_although_prometheus_has_not_answered(trickler: Trickler) -> None:
    command = [sys.executable, "-c", PROGRAM, trickler.url]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"closed\n"
            assert trickler.connections == 4, "all threads are at a question"
            assert process.wait(timeout=10.0) == 0
        finally:
            process.kill()
