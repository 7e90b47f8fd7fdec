"""Limits of one question as a whole: in time and in bytes.

A timeout of requests is for each single wait, so a server that sends a byte now and then holds who asks for
as long as it likes: in the handshake, in the headers or in the body. Here the sockets are shut down at the
deadline, which ends whatever waits for them. Only names are looked up in the time of the system's resolver.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError


class AnswerTooLongError(Exception):
    """The answer has more bytes than are read."""


class Limits:
    """Holds for what its thread asks through a LimitedAdapter until it is left."""

    def __init__(self, within_s: float, most_bytes: int) -> None:
        self.expired = False
        self.most_bytes = most_bytes
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(within_s, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> Limits:
        _here.limits = self
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        _here.limits = None
        with self._lock:
            for known in self._sockets:
                known.close()
            self._sockets.clear()

    def watch(self, sock: socket.socket) -> bool:
        """Whether there is time left; if so the socket is shut down when there is none any more."""
        with self._lock:
            if not self.expired:
                # A second descriptor of the same connection: the first one changes its owner with TLS.
                self._sockets.append(socket.socket(fileno=os.dup(sock.fileno())))
            return not self.expired

    def _expire(self) -> None:
        with self._lock:
            self.expired = True
            for known in self._sockets:
                with contextlib.suppress(OSError):  # it was closed by the other side
                    known.shutdown(socket.SHUT_RDWR)


class _Here(threading.local):
    limits: Limits | None = None


_here = _Here()


class LimitedAdapter(HTTPAdapter):
    """What a requests session asks through, within the limits of the thread that asks, if it has any."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        if not proxy.lower().startswith("socks"):  # which has connections of its own
            manager.pool_classes_by_scheme = _POOLS
        return manager

    def build_response(self, req: PreparedRequest, resp: Any) -> Response:
        response = super().build_response(req, resp)
        if _here.limits is not None:
            response.raw = _Body(resp, _here.limits.most_bytes)
        return response


class _Body:
    """The body of an answer, which ends with AnswerTooLongError where it has more than so many bytes."""

    def __init__(self, raw: Any, most_bytes: int) -> None:
        self._raw = raw
        self._most_bytes = most_bytes

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        size = 0
        for chunk in self._raw.stream(*args, **kwargs):
            size += len(chunk)
            if size > self._most_bytes:
                self._raw.close()
                raise AnswerTooLongError
            yield chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _Connection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _watched(self, super()._new_conn())

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:  # it was opened for an earlier question, or just now
            _watched(self, self.sock)
        super().request(*args, **kwargs)


class _TLSConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _watched(self, super()._new_conn())

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            _watched(self, self.sock)
        super().request(*args, **kwargs)


def _watched(connection: HTTPConnection, sock: socket.socket) -> socket.socket:
    if _here.limits is not None and not _here.limits.watch(sock):
        sock.close()
        raise ConnectTimeoutError(connection, "timed out")
    return sock


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


_POOLS: MutableMapping[str, type[HTTPConnectionPool]] = {"http": _Pool, "https": _TLSPool}
