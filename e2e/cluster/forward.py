"""Sockets at either side of the node's network: a loopback port of this machine that leads into it, and a
port in it that is answered by a process of this machine.

For the former one process does both ends: it listens first, then moves itself into the node's network, where
all connections it makes from then on are made. A socket stays in the network it was made in.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from cluster.errors import ClusterError

CLONE_NEWNET = 0x40000000
CHUNK_BYTES = 65536


def serve(port: int, holder: int, host: str, host_port: int) -> None:
    """Listen on 127.0.0.1:`port` (0: any) and pass connections on, until interrupted or the node ends."""
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ClusterError(f"Cannot listen on 127.0.0.1:{port}: {error.strerror}") from error
    life = os.pidfd_open(holder)
    _enter_network(holder)
    print(f"127.0.0.1:{listener.getsockname()[1]} -> {host}:{host_port}", flush=True)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(listener, life, host, host_port))


def listener(holder: int, host: str, port: int) -> socket.socket:
    """A socket of this process that listens in the node's network; port 0 is any. Raises OSError."""

    def made() -> socket.socket:
        _enter_network(holder)
        return socket.create_server((host, port))

    # Only the thread that enters is there, and it ends with this.
    with ThreadPoolExecutor(max_workers=1) as inside:
        return inside.submit(made).result()


def _enter_network(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as namespace:  # noqa: PTH123 - a descriptor is wanted, not text
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise ClusterError(f"Cannot enter the node's network: {os.strerror(ctypes.get_errno())}")


async def _serve(listener: socket.socket, life: int, host: str, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(life, ended.set)
    async with await asyncio.start_server(connected, sock=listener):
        await ended.wait()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until either side is done; closing one direction closes the other end's reading."""
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
        return
    writer.close()
