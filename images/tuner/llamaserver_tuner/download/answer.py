"""The progress over HTTP, on the engine's port: the operator asks there anyway, network policies let it, and
while this container runs the engine does not.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Final

from llamaserver_tuner.download.progress import Reading

PATH: Final = "/llamaserver/v1/download"


def serve(port: int, reading: Callable[[], Reading]) -> ThreadingHTTPServer:
    """Answer on every address of this pod until the process ends. Raises OSError where the port is taken."""

    class Answer(BaseHTTPRequestHandler):
        """Knows one path; whatever else is asked, there is no engine yet."""

        timeout = 5

        def do_GET(self) -> None:
            known = self.path == PATH
            body = json.dumps(asdict(reading())).encode() if known else b"the model is being downloaded\n"
            self.send_response(200 if known else 503)
            self.send_header("Content-Type", "application/json" if known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Who asks every other second is not worth a line."""

    server = _Server(("", port), Answer)
    threading.Thread(target=server.serve_forever, name="answer", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    """On IPv6 and IPv4 at once where the pod has both."""

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer's own asks the name service for this host's name, which may take long to say nothing.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]
