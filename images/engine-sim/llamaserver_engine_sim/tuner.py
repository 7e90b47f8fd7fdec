"""The tuner's two routes: its own service on the plant. The contract is docs/tuner.md."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from llamaserver_engine_sim import VLLM
from llamaserver_engine_sim.core import Core
from llamaserver_engine_sim.port import EngineClient
from llamaserver_tuner.access import EngineAccess
from llamaserver_tuner.metrics import TunerMetrics
from llamaserver_tuner.service import Identity, TunerService
from llamaserver_tuner.signing import KeyRing

logger = logging.getLogger("vllm.engine_sim")

SNAPSHOT_PATH = "/llamaserver/v1/snapshot"
SCHEDULER_PATH = "/llamaserver/v1/scheduler"
MAX_BODY = 4096
PLUGIN = "llamaserver_tuner_http"


class TunerRoutes:
    """Where the tuner is not loaded there is nothing."""

    def __init__(self, environment: Mapping[str, str], boot_id: str, *, loads: bool = True) -> None:
        """Reads what the tuner's plugin reads. VLLM_PLUGINS is an allowlist; unset, everything is loaded.
        `loads` is False for an image in which the tuner does not.
        """
        plugins = environment.get("VLLM_PLUGINS")
        named = plugins is None or PLUGIN in plugins.split(",")
        self._loaded = loads and named
        self._why = "--no-tuner" if named else f"VLLM_PLUGINS does not name {PLUGIN}"
        folder = environment.get("LLAMASERVER_TUNER_KEYS_DIR")
        self._keys = KeyRing(Path(folder) if folder else None)
        self._identity = Identity(environment.get("LLAMASERVER_POD_UID", ""), boot_id, VLLM, api_servers=1)
        self._service: TunerService | None = None

    def start(self, core: Core) -> None:
        """Take up work for this engine."""
        if self._loaded:
            self._service = TunerService(
                self._identity,
                EngineAccess(EngineClient(core.tuner)),
                self._keys,
                core.collected,
                TunerMetrics(registry=core.metrics.registry),
            )

    async def ready(self) -> None:
        """Read the engine for the first time, and say whether it can be changed."""
        if self._service is None:
            logger.info("the tuner is not loaded: %s", self._why)
            return
        first = await self._service.snapshot()
        if first["reason"]:
            logger.warning("live changes are off: %s: %s", first["reason"], first["message"])

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        if self._service is not None:
            app.router.add_get(SNAPSHOT_PATH, self._snapshot)
            app.router.add_put(SCHEDULER_PATH, self._scheduler)

    async def refresh(self) -> None:
        """Bring the gauges up to date if nobody has asked for a while."""
        if self._service is not None:
            await self._service.refresh()

    async def _snapshot(self, _: web.Request) -> web.Response:
        assert self._service is not None
        return _json(200, await self._service.snapshot())

    async def _scheduler(self, request: web.Request) -> web.Response:
        assert self._service is not None
        body = await request.content.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            message = f"the body is longer than {MAX_BODY} bytes"
            return _json(400, {"error": {"reason": "InvalidBody", "message": message, "field": ""}})
        return _json(*await self._service.put(request.headers.get("Authorization"), body))


def _json(status: int, content: dict[str, Any]) -> web.Response:
    text = json.dumps(content, separators=(",", ":"))
    return web.Response(text=text, status=status, content_type="application/json")
