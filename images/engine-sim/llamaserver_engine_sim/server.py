"""The HTTP server: vLLM's routes around one engine core, and the tuner's on the same port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from llamaserver.simulate.profiles import Profile
from llamaserver_engine_sim import VLLM, protocol
from llamaserver_engine_sim.auth import guard
from llamaserver_engine_sim.core import Core, Generation
from llamaserver_engine_sim.options import Options
from llamaserver_engine_sim.protocol import ApiError, Ask
from llamaserver_engine_sim.replies import Chat, Completion, Reply
from llamaserver_engine_sim.tuner import TunerRoutes

logger = logging.getLogger("vllm.engine_sim")

MAX_BODY = 64 << 20
CUT_S = 1.0
"""How long handlers get to end once their requests were aborted."""

Read = Callable[[bytes, tuple[str, ...], Profile], Ask]


class Server:
    """One engine with its front end. Use as an async context manager; `port` is known inside."""

    def __init__(self, options: Options, tuner: TunerRoutes, *, developer: bool = False) -> None:
        """`tuner` says whether its routes are there; `developer` has those that vLLM guards by
        VLLM_SERVER_DEV_MODE.
        """
        self._options = options
        self._rng = random.Random(f"{options.seed} lengths")
        self._draining = False
        self._open = 0
        """Requests that have not got all of their answer."""
        self._quiet = asyncio.Event()
        self.core = Core(options.profile, options.served[0], options.seed)
        tuner.start(self.core)
        self._tuner = tuner
        self._runner = web.AppRunner(
            self._app(developer), access_log=None, handler_cancellation=True, shutdown_timeout=CUT_S
        )
        self._loop: asyncio.Task[None] | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        await self._tuner.ready()
        await self._runner.setup()
        await web.TCPSite(
            self._runner, self._options.host, self._options.port, ssl_context=_tls(self._options)
        ).start()
        self.port = self._runner.addresses[0][1]
        self._loop = asyncio.create_task(self.core.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.core.leave_all()
        await self._runner.cleanup()
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop

    async def failed(self) -> None:
        """Wait for the engine's loop, which ends only by an error. Raises it."""
        assert self._loop is not None
        await asyncio.shield(self._loop)

    async def drain(self) -> None:
        """Refuse what comes and wait until all that is here has ended, at most the time to drain."""
        self._draining = True
        logger.info("draining %d requests", self._open)
        if self._open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), self._options.drain_s)

    def _app(self, developer: bool) -> web.Application:
        app = web.Application(middlewares=[guard(self._options.api_keys), _errors], client_max_size=MAX_BODY)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        for path in ("/health", "/ping"):
            app.router.add_route("*", path, self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        self._tuner.add_to(app)
        if developer:
            app.router.add_post("/sleep", self._sleep)
            app.router.add_post("/wake_up", self._wake_up)
            app.router.add_get("/is_sleeping", self._is_sleeping)
        return app

    # --- generation ---------------------------------------------------------------------------------
    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, protocol.completion, Completion)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, protocol.chat, Chat)

    async def _generate(self, request: web.Request, read: Read, form: type[Reply]) -> web.StreamResponse:
        if self._draining:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "this server is shutting down")
        ask = read(await request.read(), self._options.served, self._options.profile)
        output = protocol.output_tokens(ask, self._options.mean_output, self._rng)
        reply = form(ask, uuid4().hex, int(time.time()))
        generation = self.core.ask(ask.prompt, output, ask.most)
        self._began()
        try:
            if ask.stream:
                return await _stream(request, generation, reply)
            made, reason = await generation.end()
            _check(reason)
            return web.json_response(reply.whole(made, reason))
        finally:
            self.core.leave(generation)
            self._ended()

    def _began(self) -> None:
        self._open += 1
        self._quiet.clear()

    def _ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._quiet.set()

    # --- what is asked of the server itself -----------------------------------------------------------
    async def _models(self, _: web.Request) -> web.Response:
        card = {
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": self._options.root,
            "parent": None,
            "max_model_len": self._options.profile.longest,
        }
        cards = [{"id": name, **card} for name in self._options.served]
        return web.json_response({"object": "list", "data": cards})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VLLM})

    async def _metrics(self, _: web.Request) -> web.Response:
        await self._tuner.refresh()
        text = generate_latest(self.core.metrics.registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _sleep(self, request: web.Request) -> web.Response:
        level = request.query.get("level", "1")
        if level not in ("1", "2"):
            raise protocol.bad(f"level: 1 or 2 is wanted, not {level[:20]}", "level")
        self.core.sleep(int(level))
        return web.json_response({"status": "sleeping", "level": int(level)})

    async def _wake_up(self, _: web.Request) -> web.Response:
        self.core.wake()
        return web.json_response({"status": "awake", "tags": None})

    async def _is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.core.sleep_level > 0})


def _tls(options: Options) -> ssl.SSLContext | None:
    """As vLLM has it: TLS 1.2 and newer, and no certificate is asked of clients."""
    if options.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certificate, options.key)
    return context


async def _stream(request: web.Request, generation: Generation, reply: Reply) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    sent, reason, opening = 0, "", reply.opening()
    while not reason:
        made, reason = await generation.beyond(sent)
        if reason == "abort":
            # Nothing more can be said in a stream that has begun; its end without the last event tells.
            raise ConnectionResetError("the request was aborted")
        await response.write(opening + reply.event(sent, made, reason))
        sent, opening = made, b""
    await response.write(reply.closing(sent))
    await response.write_eof()
    return response


def _check(reason: str) -> None:
    if reason == "abort":
        raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "the request was aborted by the server")


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors as JSON, in vLLM's form."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except ApiError as error:
        return web.json_response(error.to_json(), status=error.status)
    except web.HTTPException as error:
        status = HTTPStatus(error.status)
        said = ApiError(status, error.reason, kind=status.phrase).to_json()
        return web.Response(
            text=json.dumps(said), status=status, content_type="application/json", headers=_allowed(error)
        )


def _allowed(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
