"""A fake engine pod: vLLM's and the tuner's HTTP surface as far as the operator uses it, with faults to
choose from.

It checks signatures as the tuner's contract says, in its own words, so that both sides cannot share one
mistake.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import jwt
from aiohttp import web

MOMENTS = ("n", "B", "K", "P", "y", "BB", "BK", "BP", "By", "KK", "KP", "Ky", "PP", "Py", "yy")
LO, GROWTH = 1e-4, 1.04


@dataclass
class FakeEngine:
    """One engine. `fault` names how it misbehaves; empty is well behaved."""

    pod_uid: str = "uid-0"
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    port: int = 0
    boot_id: str = "boot-0"
    public_keys: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    ceiling: int = 64
    cap: int = 64
    budget: int = 2048
    generation: int = 0
    lease_ends: float | None = None
    running: int = 0
    waiting: int = 0
    itl_s: float = 0.02
    tokens_per_s: float = 0.0
    started: float = field(default_factory=time.monotonic)
    puts: list[dict[str, Any]] = field(default_factory=list)
    scrapes: int = 0
    download: dict[str, Any] | None = None
    """What the init container that comes before the engine says of its download."""
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/llamaserver/v1/snapshot", self._snapshot)
        app.router.add_put("/llamaserver/v1/scheduler", self._scheduler)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/llamaserver/v1/download", self._download)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port, ssl_context=self.tls).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def snapshot(self) -> dict[str, Any]:
        """What GET snapshot says now: a steady load of `running` sequences since the start."""
        age = time.monotonic() - self.started
        tokens = int(age * self.tokens_per_s)
        steps = tokens // max(1, self.running)
        micros = int(self.itl_s * 1e6)
        context = 1000 * self.running
        sums = {
            "n": steps,
            "B": steps * self.running,
            "K": steps * context,
            "P": 0,
            "y": steps * micros,
            "BB": steps * self.running**2,
            "BK": steps * self.running * context,
            "BP": 0,
            "By": steps * self.running * micros,
            "KK": steps * context**2,
            "KP": 0,
            "Ky": steps * context * micros,
            "PP": 0,
            "Py": 0,
            "yy": steps * micros**2,
        }
        digest = _digest(tokens, self.itl_s)
        return {
            "schema": 1,
            "tuner": "0.1.0",
            "vllm": "0.32.0",
            "pod_uid": self.pod_uid,
            "boot_id": self.boot_id,
            "monotonic_s": age,
            "api_servers": 1,
            "writable": True,
            "reason": "",
            "message": "",
            "engines": [{**self._state(), "steps": {"decode": sums, "mixed": dict.fromkeys(MOMENTS, 0)}}],
            "requests": {
                "0": {
                    "itl": digest,
                    "tpot": digest,
                    "ttft": _digest(0, 0.1),
                    "queue": _digest(0, 0.1),
                    "prompt_tokens": 0,
                    "cached_prompt_tokens": 0,
                    "generation_tokens": tokens,
                    "arrived": self.running,
                    "finished": {"stop": 0, "length": 0, "abort": 0, "error": 0},
                    "prompt_tokens_finished": 0,
                    "generation_tokens_finished": 0,
                    "itl_events": tokens,
                }
            },
        }

    def _state(self) -> dict[str, Any]:
        left = None if self.lease_ends is None else self.lease_ends - time.monotonic()
        if left is not None and left <= 0:
            self.cap, self.lease_ends, left = self.ceiling, None, None
        return {
            "engine": 0,
            "max_num_seqs": self.ceiling,
            "max_num_batched_tokens": 2048,
            "start_num_active_seqs": self.ceiling,
            "max_num_active_seqs": self.cap,
            "max_num_scheduled_tokens": self.budget,
            "live": {"max_num_active_seqs": "", "max_num_scheduled_tokens": ""},
            "min_num_scheduled_tokens": 16,
            "generation": self.generation,
            "lease_expires_in_s": left,
            "retunes": {"applied": self.generation, "expired": 0, "rejected": 0},
            "running": self.running,
            "waiting": self.waiting,
            "waiting_deferred": 0,
            "paused": False,
            "kv": {"block_size": 16, "num_blocks": 10_000, "used_blocks": 63 * self.running},
            "preemptions": 0,
        }

    async def _snapshot(self, request: web.Request) -> web.StreamResponse:
        self.scrapes += 1
        document = self.snapshot()
        counted = document["requests"]["0"]
        match self.fault:
            case "hang":
                await asyncio.sleep(3600)
            case "404":
                raise web.HTTPNotFound
            case "500":
                raise web.HTTPInternalServerError
            case "empty":
                return web.Response(body=b"")
            case "nan":
                counted["itl"]["sum"] = float("nan")
            case "negative":
                counted["generation_tokens"] = -1
            case "missing":
                del counted["itl"]
            case "no-requests":
                document |= {"requests": None, "requests_reason": "SeveralApiServers", "api_servers": 2}
            case "no-plugin":
                document |= {"engines": None, "writable": False, "reason": "EnginePluginMissing"}
            case "silent":
                document |= {"engines": None, "writable": False, "reason": "EngineUnreachable"}
            case "flood":
                return web.Response(body=b'{"schema":1,"x":"' + b"x" * (2 << 20) + b'"}')
            case "redirect":
                raise web.HTTPFound("http://127.0.0.1:1/elsewhere")
            case "unwritable":
                document |= {"writable": False, "reason": "NoPublicKeys", "message": "no key is mounted"}
        return web.Response(text=json.dumps(document), content_type="application/json")

    async def _download(self, _: web.Request) -> web.Response:
        return web.Response(status=404) if self.download is None else web.json_response(self.download)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if self.fault == "hang":
            await asyncio.sleep(3600)
        return web.Response(text=_EXPOSITION.format(running=self.running, waiting=self.waiting))

    async def _scheduler(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self.fault == "put-hang":
            await asyncio.sleep(3600)
        wanted = json.loads(body)
        problem = self._refusal(request.headers.get("Authorization", ""), body, wanted)
        if problem is not None:
            status, reason = problem
            error = {"reason": reason, "message": reason, "field": "", "generation": self.generation}
            return web.json_response({"error": error}, status=status)
        self.generation = wanted["generation"]
        self.cap = wanted["max_num_active_seqs"] or self.ceiling
        self.budget = wanted["max_num_scheduled_tokens"] or 2048
        self.lease_ends = time.monotonic() + wanted["lease_seconds"]
        self.puts.append(wanted)
        return web.json_response({"engines": self.read_back()})

    def read_back(self) -> list[dict[str, Any]]:
        """What the answer to a change says of each engine."""
        return [self._state()]

    def _refusal(self, authorization: str, body: bytes, wanted: dict[str, Any]) -> tuple[int, str] | None:
        scheme, _, token = authorization.partition(" ")
        if scheme != "Bearer" or not token:
            return 401, "MissingToken"
        kid = jwt.get_unverified_header(token).get("kid", "")
        if kid not in self.public_keys:
            return 401, "UnknownKey"
        try:
            claims = jwt.decode(
                token,
                self.public_keys[kid],
                algorithms=["EdDSA"],
                audience=self.pod_uid,
                issuer="llamaserver-operator",
                options={"require": ["exp", "iat", "aud", "iss"]},
            )
        except jwt.InvalidAudienceError:
            return 401, "WrongAudience"
        except jwt.InvalidTokenError:
            return 401, "BadSignature"
        if claims.get("boot") != self.boot_id:
            return 401, "WrongBoot"
        if claims["exp"] - claims["iat"] > 60:
            return 401, "Expired"
        if claims["sha256"] != hashlib.sha256(body).hexdigest() or claims["gen"] != wanted["generation"]:
            return 401, "BodyMismatch"
        if wanted["generation"] <= self.generation:
            return 409, "StaleGeneration"
        return None


def _digest(count: int, seconds: float) -> dict[str, Any]:
    index = 0
    while LO * GROWTH ** (index + 1) <= seconds:
        index += 1
    counts = {str(index): count} if count else {}
    return {"lo": LO, "growth": GROWTH, "count": count, "sum": count * seconds, "counts": counts}


_EXPOSITION = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.1
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{engine="0",model_name="m"}} 0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{{engine="0",model_name="m"}} 10
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} 20
# TYPE vllm:request_success counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} 1
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{{engine="0",le="0.01",model_name="m"}} 0
vllm:inter_token_latency_seconds_bucket{{engine="0",le="0.025",model_name="m"}} 19
vllm:inter_token_latency_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} 19
vllm:inter_token_latency_seconds_sum{{engine="0",model_name="m"}} 0.38
vllm:inter_token_latency_seconds_count{{engine="0",model_name="m"}} 19
"""
