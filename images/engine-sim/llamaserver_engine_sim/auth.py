"""The users' key: which paths it guards, and how it is compared."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from aiohttp import web

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Prefixes of paths; /metrics, /health and the tuner's routes are open."""


def guard(keys: tuple[str, ...]) -> Any:
    """A middleware that asks for one of `keys`; without any it lets all pass."""
    known = [_digest(key) for key in keys]

    @web.middleware
    async def guarded(request: web.Request, handler: Any) -> web.StreamResponse:
        open_path = request.method == "OPTIONS" or not request.path.startswith(GUARDED)
        if known and not open_path and not _matches(request.headers.get("Authorization", ""), known):
            return web.json_response({"error": "Unauthorized"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    return guarded


def _matches(header: str, known: list[bytes]) -> bool:
    scheme, _, key = header.partition(" ")
    if scheme.lower() != "bearer":
        return False
    digest = _digest(key)
    return any(secrets.compare_digest(digest, one) for one in known)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
