"""Serves git repositories over HTTP, read-only: what Flux can fetch from without a link outwards.

git speaks the protocol itself (`git upload-pack`); here are only its two requests, as gitprotocol-http(5) has
them.
"""

from __future__ import annotations

import gzip
import subprocess
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

SERVICE = "git-upload-pack"
ADVERTISED = f"# service={SERVICE}\n"
TIMEOUT_S = 30


class Repositories(BaseHTTPRequestHandler):
    """One request. Each folder below `folder` is a repository, by its name."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        """The references of a repository."""
        url = urlsplit(self.path)
        repository = self._repository(url.path, "/info/refs")
        if repository is None or url.query != f"service={SERVICE}":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        packet = f"{len(ADVERTISED) + 4:04x}{ADVERTISED}0000".encode()
        self._answer("advertisement", packet + _git("--http-backend-info-refs", repository))

    def do_POST(self) -> None:
        """The objects that the client lacks."""
        repository = self._repository(self.path, f"/{SERVICE}")
        if repository is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        said = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            said = gzip.decompress(said)
        self._answer("result", _git("--stateless-rpc", repository, said))

    def log_message(self, *_: object) -> None:
        """Flux asks every few seconds."""

    def _repository(self, path: str, ending: str) -> Path | None:
        name = path.removesuffix(ending).strip("/")
        known = {entry.name: entry for entry in self.folder.iterdir()}
        return known.get(name) if path.endswith(ending) else None

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"application/x-{SERVICE}-{kind}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        self.wfile.write(body)


def _git(how: str, repository: Path, said: bytes = b"") -> bytes:
    command = ["git", "upload-pack", how, str(repository)]
    done = subprocess.run(command, input=said, capture_output=True, timeout=TIMEOUT_S, check=False)
    return done.stdout


def repositories(folder: Path) -> type[Repositories]:
    """What serves the repositories below a folder."""
    return type("Repositories", (Repositories,), {"folder": folder})
