"""A hub, on a loopback address unless told otherwise: the part of the Hugging Face hub's HTTP that a download
of a model uses, with faults to choose from.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from harness.listening import Listening

GIT_LIMIT = 1 << 10
"""Bytes from which on a file of this hub is kept in LFS."""


@dataclass
class FakeHub:
    """One repository at one commit. `refusal` is the answer to everything, `gate` to whoever wants a file:
    status, error code, message.
    """

    repository: str
    files: dict[str, bytes]
    commit: str = "a" * 40
    refs: dict[str, str] = field(default_factory=dict)
    refusal: tuple[int, str, str] | None = None
    gate: tuple[int, str, str] | None = None
    token: str | None = None
    """Without it nothing is answered; None where nobody is asked for one."""
    listener: socket.socket | None = None
    """Where the hub listens, if not at a port of loopback."""
    host: str = "127.0.0.1"
    store_host: str = "localhost"
    """By which the hub and its store of large files are reached."""
    tells_digests: bool = True
    """Whether the listing has them, as a mirror's may not."""
    pretended: dict[str, int] = field(default_factory=dict)
    """Sizes that are told in place of the true ones."""
    forged: dict[str, bytes] = field(default_factory=dict)
    """Content that comes in place of what was announced."""
    cut: set[str] = field(default_factory=set)
    """Files whose second half never comes."""
    held: threading.Event = field(default_factory=threading.Event)
    """Cleared, files of LFS stop half-way until it is set."""
    ranges: bool = True
    """Whether a file can be had from a byte in its middle on."""
    pace_s: float = 0.0
    """Seconds that each half of a large file takes."""
    patience_s: float | None = None
    """Seconds for which one is waited for who does not take what is sent."""
    fetched: Counter[str] = field(default_factory=Counter)
    """How often each file was asked for."""
    sent: Counter[str] = field(default_factory=Counter)
    """Bytes of each file that were sent."""
    began: dict[str, int] = field(default_factory=dict)
    """The byte from which each file was last asked for."""
    tokens: set[str] = field(default_factory=set)
    store_tokens: set[str] = field(default_factory=set)
    """What the store of large files, which has an address of its own, was shown."""
    _server: Listening | None = None

    def __enter__(self) -> Self:
        self.refs = {"main": self.commit, **self.refs}
        self.held.set()
        listener = self.listener or socket.create_server(("127.0.0.1", 0))
        self._server = Listening(listener, type("Handler", (_Handler,), {"hub": self}))
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.held.set()
        self.stop()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """For HF_ENDPOINT."""
        return f"http://{self.host}:{self.port}"

    def stop(self) -> None:
        """Answer nobody from now on."""
        assert self._server is not None
        self._server.stop()

    def knows(self, authorization: str | None) -> bool:
        """Whether whoever shows this is answered."""
        return self.token is None or authorization == f"Bearer {self.token}"

    def size(self, path: str) -> int:
        return self.pretended.get(path, len(self.files[path]))

    def is_large(self, path: str) -> bool:
        return len(self.files[path]) >= GIT_LIMIT

    def oid(self, path: str) -> str:
        content = self.files[path]
        if self.is_large(path):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def listed(self, path: str, names: tuple[str, str, str]) -> dict[str, Any]:
        """A file as the two listings have it, which call its name, its content and its LFS content apart."""
        name, blob, lfs = names
        if not self.tells_digests:
            return {name: path}
        # Of a file in LFS the blob is the pointer to it.
        pointed = "f" * 40 if self.is_large(path) else self.oid(path)
        found: dict[str, Any] = {name: path, "size": self.size(path), blob: pointed}
        if self.is_large(path):
            found["lfs"] = {lfs: self.oid(path), "size": self.size(path), "pointerSize": 130}
        return found


class _Handler(BaseHTTPRequestHandler):
    """One request. A method for each thing that can be asked for; `hub` says what is answered."""

    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, shown = unquote(urlsplit(self.path).path), self.headers.get("Authorization")
        if path.startswith("/store/"):
            self.hub.store_tokens.add(shown or "")
            self._content(path.removeprefix("/store/"))
            return
        if shown:
            self.hub.tokens.add(shown)
        if self.hub.refusal is not None:
            self._refuse(*self.hub.refusal)
        elif not self.hub.knows(shown):
            self._refuse(401, "", "Invalid credentials in Authorization header" if shown else "Unauthorized")
        else:
            self._ask(path)

    def _ask(self, path: str) -> None:
        """What the hub itself answers."""
        api, own = f"/api/models/{self.hub.repository}", f"/{self.hub.repository}/resolve/"
        if path == api or path.startswith(f"{api}/revision/"):
            self._info(path.removeprefix(api).removeprefix("/revision/") or "main")
        elif path.startswith(f"{api}/tree/"):
            self._tree()
        elif path.startswith(own):
            self._file(path.removeprefix(own).partition("/")[2])
        else:
            self._refuse(401, "RepoNotFound", "Repository not found")

    def _info(self, revision: str) -> None:
        """A revision's commit, and the names of its files."""
        hub = self.hub
        commit = hub.refs.get(revision, revision if revision == hub.commit else "")
        if not commit:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        siblings = [hub.listed(file, ("rfilename", "blobId", "sha256")) for file in hub.files]
        self._json({"id": hub.repository, "modelId": hub.repository, "sha": commit, "siblings": siblings})

    def _tree(self) -> None:
        """The files of the commit."""
        names = ("path", "oid", "oid")
        self._json([self.hub.listed(file, names) | {"type": "file"} for file in self.hub.files])

    def _file(self, path: str) -> None:
        """A file, or where in the store it is."""
        if self.hub.gate is not None:
            self._refuse(*self.hub.gate)
        elif self.hub.is_large(path):
            store = f"http://{self.hub.store_host}:{self.hub.port}/store"
            told = {
                "Location": f"{store}/{path}?Signature=permission",
                "X-Repo-Commit": self.hub.commit,
                "X-Linked-Etag": f'"{self.hub.oid(path)}"',
                "X-Linked-Size": str(self.hub.size(path)),
            }
            self._send(302, b"", told)
        else:
            self._content(path)

    def _content(self, path: str) -> None:
        """The bytes of a file, from the one that is asked for."""
        content = self.hub.forged.get(path, self.hub.files[path])
        asked = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        start = int(asked) if self.hub.ranges else 0
        self._lose_patience()
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{self.hub.oid(path)}"')
        self.send_header("X-Repo-Commit", self.hub.commit)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command != "HEAD":
            self.hub.fetched[path] += 1
            self.hub.began[path] = start
            self._halves(path, content, start)

    def _lose_patience(self) -> None:
        """Have what is sent wait for its reader no longer than the hub's patience lasts."""
        if self.hub.patience_s is not None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            self.connection.settimeout(self.hub.patience_s)

    def _halves(self, path: str, content: bytes, start: int) -> None:
        """What is left of a file, with what may happen to it half-way."""
        middle = max(start, len(content) // 2)
        self._body(path, content[start:middle])
        if path in self.hub.cut:
            self.close_connection = True
            return
        if self.hub.is_large(path):
            self.hub.held.wait(60)
        self._body(path, content[middle:])

    def _body(self, path: str, content: bytes) -> None:
        """Bytes of a file, at the hub's pace."""
        hub = self.hub
        hub.sent[path] += len(content)
        paced = hub.is_large(path) and hub.pace_s > 0
        step = len(content) // 8 + 1 if paced else len(content) + 1
        try:
            for at in range(0, len(content), step):
                self.wfile.write(content[at : at + step])
                self.wfile.flush()
                time.sleep(hub.pace_s / 8 if paced else 0)
        except OSError:
            self.close_connection = True

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
