"""What the two routes answer: the snapshot, and the outcome of a change. Everything but HTTP itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llamaserver_tuner import SCHEMA, __version__, signing
from llamaserver_tuner.access import EngineAccess, UnansweredError
from llamaserver_tuner.metrics import TunerMetrics
from llamaserver_tuner.setpoints import CAP, Refusal, parse_change
from llamaserver_tuner.totals import Collected

REFRESH_S = 10.0
"""How old the gauges on /metrics may get while nobody reads or changes the engine."""

_STATUS = {"InvalidBody": 400, "OutOfBounds": 400, "StaleGeneration": 409, "EngineTimeout": 504}
_UNAUTHORIZED = 401
_UNAVAILABLE = 503

Reply = tuple[int, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this server is. `pod_uid` is what a token must be addressed to."""

    pod_uid: str
    boot_id: str
    vllm: str
    api_servers: int


class TunerService:
    """One per API server process; runs in its event loop."""

    def __init__(
        self,
        identity: Identity,
        access: EngineAccess,
        keys: signing.KeyRing,
        collected: Collected,
        metrics: TunerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._access = access
        self._keys = keys
        self._collected = collected
        self._metrics = metrics
        self._clock = clock
        self._refreshed = clock()

    async def snapshot(self) -> dict[str, Any]:
        """Return all that is known, whether or not the engines answer."""
        engines, obstacle, age_s = await self._read()
        obstacle = obstacle or self._obstacle_to_writing() or _obstacle_in(engines or [])
        reason, message = obstacle or ("", "")
        requests, requests_reason = self._requests(engines)
        identity = self._identity
        return {
            "schema": SCHEMA,
            "tuner": __version__,
            "vllm": identity.vllm,
            "pod_uid": identity.pod_uid,
            "boot_id": identity.boot_id,
            "monotonic_s": self._clock(),
            "api_servers": identity.api_servers,
            "writable": not reason,
            "reason": reason,
            "message": message,
            "engines": engines,
            "age_s": age_s,
            "requests": requests,
            "requests_reason": requests_reason,
        }

    async def put(self, authorization: str | None, body: bytes) -> Reply:
        """Check, apply and read back a change; return the HTTP status and the reply."""
        status, reply = await self._put(authorization, body)
        result = {200: "applied", _UNAUTHORIZED: "unauthorized"}.get(status)
        self._metrics.count(result or ("failed" if status >= _UNAVAILABLE else "rejected"))
        return status, reply

    async def refresh(self) -> None:
        """Bring the gauges up to date if nobody has asked for a while. Never raises."""
        if self._clock() - self._refreshed >= REFRESH_S:
            await self._read()

    async def _put(self, authorization: str | None, body: bytes) -> Reply:
        obstacle = self._obstacle_to_writing()
        if obstacle is not None:
            return _error(_UNAVAILABLE, Refusal("NotWritable", f"{obstacle[0]}: {obstacle[1]}"))
        identity = self._identity
        claims = signing.verify(authorization, body, identity.pod_uid, identity.boot_id, self._keys.keys())
        if isinstance(claims, Refusal):
            return _error(_UNAUTHORIZED, claims)
        change = parse_change(body)
        if isinstance(change, Refusal):
            return _error(_STATUS[change.reason], change)
        if change.generation != claims.generation:
            mismatch = Refusal("BodyMismatch", "the generation is not the one that was signed", "generation")
            return _error(_UNAUTHORIZED, mismatch)
        try:
            engines = await self._access.apply(body.decode(), claims.expires_at + signing.LEEWAY_S)
        except UnansweredError as error:
            refusal = Refusal(_reason_of_put(error.reason), error.message)
            return _error(_STATUS.get(refusal.reason, _UNAVAILABLE), refusal)
        self._seen(engines)
        return _outcome(engines)

    async def _read(self) -> tuple[list[dict[str, Any]] | None, tuple[str, str] | None, float | None]:
        """Return the engines, what is in the way of them, and the age of their answer in seconds."""
        try:
            reading = await self._access.read()
        except UnansweredError as error:
            return None, (error.reason, error.message), None
        engines = reading.engines
        failed = next((engine for engine in engines if "retunes" not in engine), None)
        if failed is not None:
            return None, ("TunerFailed", f"engine {failed['engine']}: {failed['failed']}"), None
        self._seen(engines)
        return engines, None, round(reading.age_s, 3)

    def _seen(self, engines: list[dict[str, Any]]) -> None:
        self._metrics.observe(engines)
        self._refreshed = self._clock()

    def _obstacle_to_writing(self) -> tuple[str, str] | None:
        if not self._identity.pod_uid:
            return "NoPodUid", "LLAMASERVER_POD_UID is not set, so no change can be addressed to this pod"
        if not signing.HAS_LIBRARY:
            return (
                "NoSigningLibrary",
                "PyJWT with cryptography is not installed, so no change can be verified",
            )
        if not self._keys.keys():
            return "NoPublicKeys", "LLAMASERVER_TUNER_KEYS_DIR holds no Ed25519 public key named <kid>.pem"
        return None

    def _requests(self, engines: list[dict[str, Any]] | None) -> tuple[dict[str, Any] | None, str]:
        """Return the requests' figures by engine, or None and why.

        Each of several API servers hears of its own requests only, and nobody can choose which one answers,
        so figures of one of them would run back and forth.
        """
        if self._identity.api_servers > 1:
            return None, "SeveralApiServers"
        if self._collected.reason:
            return None, self._collected.reason
        arrived = {engine["engine"]: engine["arrived"] for engine in engines or []}
        if arrived.keys() - self._collected.engines.keys():
            # vLLM drops custom stat loggers when elastic expert parallelism adds engines.
            return None, "StatLoggerLost"
        return {
            str(engine): {**totals.to_json(), "arrived": arrived.get(engine)}
            for engine, totals in self._collected.engines.items()
        }, ""


def _obstacle_in(engines: list[dict[str, Any]]) -> tuple[str, str] | None:
    for engine in engines:
        if engine["failed"]:
            return "TunerFailed", f"engine {engine['engine']}: {engine['failed']}"
        if engine["live"][CAP]:
            return "NoLiveCap", f"engine {engine['engine']}: {CAP} cannot be set live: {engine['live'][CAP]}"
    return None


def _outcome(engines: list[dict[str, Any]]) -> Reply:
    if any("retunes" not in engine for engine in engines):
        return _error(_UNAVAILABLE, Refusal("NotWritable", "the tuner failed in an engine; see its log"))
    refused = [engine["error"] for engine in engines if "error" in engine]
    if not refused:
        return 200, {"engines": engines, "differs": _differing(engines)}
    generation = max(engine["generation"] for engine in engines)
    first = Refusal(refused[0]["reason"], refused[0]["message"], refused[0]["field"], generation)
    late = first.reason == "Expired"
    status, reply = _error(_UNAUTHORIZED if late else _STATUS.get(first.reason, _UNAVAILABLE), first)
    return status, {**reply, "engines": engines}


def _differing(states: list[dict[str, Any]]) -> list[str]:
    """Return which of the wanted values are not the same in all engines; empty when all agree."""
    names = [*states[0]["wanted"]]
    return [name for name in names if len({state["wanted"][name] for state in states}) > 1]


def _reason_of_put(reason: str) -> str:
    return reason if reason in ("EngineTimeout", "EngineDead") else "NotWritable"


def _error(status: int, refusal: Refusal) -> Reply:
    error: Mapping[str, Any] = refusal.to_json()
    return status, {"error": {name: value for name, value in error.items() if value is not None}}
