"""HTTP served by this process at a socket that listens already, wherever it was made: on loopback, or in the
network of the project's own node, where pods and the cluster's programs reach it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

POLL_S = 0.05


class Listening(ThreadingHTTPServer):
    """A thread a request; none of them keeps this process from its end."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(listener.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def start(self) -> None:
        """Answer from now on."""
        threading.Thread(target=self.serve_forever, args=(POLL_S,), daemon=True).start()

    def stop(self) -> None:
        """Answer nobody any more; once started, it may be said twice."""
        self.shutdown()
        self.server_close()


@contextmanager
def served(listener: socket.socket, handler: type[BaseHTTPRequestHandler]) -> Iterator[None]:
    """Answer until the end of the block."""
    server = Listening(listener, handler)
    server.start()
    try:
        yield
    finally:
        server.stop()
