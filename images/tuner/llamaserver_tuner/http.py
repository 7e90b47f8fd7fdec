"""The endpoint plugin: two routes on vLLM's own port.

They are outside `/v1`, `/v2` and the other prefixes that `--api-key` guards. Reading is as open as /metrics
and says no more than it does; changing needs a signature (`signing`), not the users' key. A gateway that
publishes `/v1` alone does not publish these.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from fastapi import Request, Response  # type: ignore[import-not-found]

from llamaserver_tuner import signing
from llamaserver_tuner.access import EngineAccess
from llamaserver_tuner.engine import boot_id
from llamaserver_tuner.metrics import tuner_metrics
from llamaserver_tuner.service import REFRESH_S, Identity, TunerService
from llamaserver_tuner.totals import COLLECTED

logger = logging.getLogger("vllm.llamaserver_tuner")

SNAPSHOT_PATH = "/llamaserver/v1/snapshot"
SCHEDULER_PATH = "/llamaserver/v1/scheduler"
MAX_BODY = 4096

_STATE = "llamaserver_tuner"


class TunerEndpoint:
    """Entry point of `vllm.endpoint_plugins`."""

    name = "llamaserver_tuner_http"
    required_tasks = None

    def attach_router(self, app: Any) -> None:
        """Add the routes. vLLM calls this before the engine is known."""
        app.add_api_route(SNAPSHOT_PATH, _get_snapshot, methods=["GET"], include_in_schema=False)
        app.add_api_route(SCHEDULER_PATH, _put_scheduler, methods=["PUT"], include_in_schema=False)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:  # noqa: ARG002 - vLLM's
        """Make the service. Its first reading is what attaches the tuner to the engines."""
        parallel = getattr(getattr(engine_client, "vllm_config", None), "parallel_config", None)
        folder = os.environ.get("LLAMASERVER_TUNER_KEYS_DIR")
        service = TunerService(
            Identity(
                pod_uid=os.environ.get("LLAMASERVER_POD_UID", ""),
                boot_id=boot_id(),
                vllm=_vllm_version(),
                api_servers=getattr(parallel, "_api_process_count", 1),
            ),
            EngineAccess(engine_client),
            signing.KeyRing(Path(folder) if folder else None),
            COLLECTED,
            tuner_metrics(counts_expiry=getattr(parallel, "_api_process_rank", 0) == 0),
        )
        first = await service.snapshot()
        if first["reason"]:
            logger.warning("live changes are off: %s: %s", first["reason"], first["message"])
        else:
            logger.info("live changes are on for %d engine(s)", len(first["engines"]))
        setattr(state, _STATE, service)
        # The state holds the task: the event loop alone would let it go.
        state.llamaserver_tuner_refresh = asyncio.ensure_future(_refresh(service))


async def _refresh(service: TunerService) -> None:
    while True:
        await asyncio.sleep(REFRESH_S)
        await service.refresh()


async def _get_snapshot(request: Request) -> Response:
    service: TunerService = getattr(request.app.state, _STATE)
    return _json(200, await service.snapshot())


async def _put_scheduler(request: Request) -> Response:
    service: TunerService = getattr(request.app.state, _STATE)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            error = {
                "reason": "InvalidBody",
                "message": f"the body is longer than {MAX_BODY} bytes",
                "field": "",
            }
            return _json(400, {"error": error})
    return _json(*await service.put(request.headers.get("authorization"), body))


def _json(status: int, content: dict[str, Any]) -> Response:
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")


def _vllm_version() -> str:
    from vllm.version import __version__  # type: ignore[import-not-found]

    return str(__version__)
