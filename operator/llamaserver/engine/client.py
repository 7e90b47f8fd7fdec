"""HTTP or HTTPS to the engines: what they say, and signed changes to them. One session; each call has its
own deadline.

Nothing here raises for what an engine does: a hung, lying, half-started or hostile endpoint is a value
(`Failure`, `Refused`, `Unreachable`), so that one pod's fault stays that pod's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from llamaserver.control import Setpoint
from llamaserver.engine.progress import Progress, read_progress
from llamaserver.engine.signing import SigningKey
from llamaserver.observe import (
    EngineReport,
    Failure,
    Sample,
    Unusable,
    parse_exposition,
    read_snapshot,
    with_requests,
)

SNAPSHOT_PATH = "/llamaserver/v1/snapshot"
SCHEDULER_PATH = "/llamaserver/v1/scheduler"
METRICS_PATH = "/metrics"
DOWNLOAD_PATH = "/llamaserver/v1/download"

_SNAPSHOT_LIMIT = 1 << 20
_METRICS_LIMIT = 16 << 20
_ANSWER_LIMIT = 1 << 18
_PROGRESS_LIMIT = 1 << 12
_NO_TUNER_RECHECK_S = 30.0
"""A pod without the tuner's route is asked for it again this often; its plugin may have been late."""


@dataclass(frozen=True, slots=True)
class Target:
    """One engine pod. `restarts` is the restart count of its engine container."""

    pod: str
    uid: str
    restarts: int
    host: str
    port: int
    tls: bool = False

    @property
    def incarnation(self) -> str:
        """Changes whenever the engine's process does."""
        return f"{self.uid}/{self.restarts}"

    def url(self, path: str) -> str:
        """A URL on the pod's own address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{path}"


@dataclass(frozen=True, slots=True)
class EngineInForce:
    """What one engine runs with after a change, read back from its scheduler. The budget is the one that it
    keeps to: the tuner lifts a lowered one for steps in which it would starve somebody.
    """

    engine: int
    max_num_active_seqs: int | None
    max_num_scheduled_tokens: int | None


@dataclass(frozen=True, slots=True)
class Applied:
    """The change holds. `agreed` is False when the engines of the pod differ: the caller retries."""

    generation: int
    engines: tuple[EngineInForce, ...]
    agreed: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The tuner said no. `reason` is its CamelCase word; `generation` the current one when it said
    StaleGeneration.
    """

    status: int
    reason: str
    message: str
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No answer, or none that can be understood. Whether the change holds is not known; the next scrape
    tells.
    """

    message: str


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes


class EngineClient:
    """Scrapes engines and changes them. Use as an async context manager.

    `key` is asked for at each change, so that a rotated key is used at once; None means changes cannot be
    signed. `monotonic` stamps samples; `wall` (Unix seconds) goes into tokens.

    Engines with TLS are asked by it, and their certificate is not verified. It is made for names that clients
    use, while pods are asked by the address that the API server gave, which no certificate names; and the
    authority that could vouch for it is in a Secret of the tenant's, which the operator may not read. What is
    sent holds no secret and is worth nothing to whoever reads or repeats it: it is signed for one pod, one
    start and one generation. What is read is as good as by plain HTTP: whoever can answer in the place of a
    pod's address could lie there as well.
    """

    def __init__(
        self,
        *,
        key: Callable[[], SigningKey | None],
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        connections: int = 512,
    ) -> None:
        self._key = key
        self._monotonic = monotonic
        self._wall = wall
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._no_tuner: dict[str, tuple[str, float]] = {}
        self._boots: dict[str, tuple[str, str]] = {}
        """Incarnation and tuner's boot id of each pod as last read. By uid, like all that is kept of a pod:
        two namespaces may hold pods of one name.
        """

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, limit_per_host=4, ssl=False),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=True,
            trust_env=False,
            headers={"User-Agent": "llamaserver-operator"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a pod that is gone."""
        self._no_tuner.pop(uid, None)
        self._boots.pop(uid, None)

    async def scrape(self, target: Target, deadline_s: float) -> Sample | Failure:
        """The pod's sample: the tuner's snapshot, with what that lacks from `/metrics`; without the tuner's
        route `/metrics` alone.

        Both together end within `deadline_s`.
        """
        report: EngineReport | None = None
        try:
            async with asyncio.timeout(deadline_s):
                if self._asks_tuner(target):
                    found = await self._snapshot(target)
                    if isinstance(found, Sample | Failure):
                        return found
                    report = found
                answer = await self._send("GET", target.url(METRICS_PATH), _METRICS_LIMIT)
        except TimeoutError:
            return self._failure(f"no answer within {deadline_s:g} s")
        except _UnreadableError as error:
            return self._failure(str(error))
        if answer.status != 200:
            return self._failure(f"{METRICS_PATH} answered {answer.status}")
        sample = parse_exposition(
            answer.body.decode("utf-8", "replace"), self._monotonic(), target.incarnation
        )
        return sample if report is None or isinstance(sample, Failure) else with_requests(report, sample)

    async def put(
        self, target: Target, setpoint: Setpoint, generation: int, lease_s: float, deadline_s: float = 6.0
    ) -> Applied | Refused | Unreachable:
        """Set the whole wanted state of a pod for `lease_s` seconds; None in the setpoint means the start
        value.

        `generation` must be greater than the one the pod applied last. The tuner itself gives up after 5 s.
        The pod must have been scraped since its engine started: a change is signed for that start alone.
        """
        key = self._key()
        if key is None:
            return Refused(0, "NoSigningKey", "the operator has no signing key yet")
        incarnation, boot_id = self._boots.get(target.uid, ("", ""))
        if incarnation != target.incarnation:
            return Refused(0, "NotScraped", "the tuner of this start of the engine has not been read yet")
        body = json.dumps(
            {
                "max_num_active_seqs": setpoint.max_num_active_seqs,
                "max_num_scheduled_tokens": setpoint.max_num_scheduled_tokens,
                "generation": generation,
                "lease_seconds": lease_s,
            },
            separators=(",", ":"),
        ).encode()
        token = key.sign(
            pod_uid=target.uid, boot_id=boot_id, generation=generation, body=body, wall_s=self._wall()
        )
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._send("PUT", target.url(SCHEDULER_PATH), _ANSWER_LIMIT, body, headers)
        except TimeoutError:
            return Unreachable(f"no answer to the change within {deadline_s:g} s")
        except _UnreadableError as error:
            return Unreachable(str(error))
        return _outcome(answer, setpoint, generation)

    async def progress(self, target: Target, deadline_s: float) -> Progress | None:
        """How far a pod is that downloads its model before its engine starts; None where it does not tell."""
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._send("GET", target.url(DOWNLOAD_PATH), _PROGRESS_LIMIT)
        except (TimeoutError, _UnreadableError):
            return None
        return read_progress(answer.body) if answer.status == 200 else None

    async def _snapshot(self, target: Target) -> Sample | EngineReport | Failure | None:
        """What the snapshot says; a report or None when `/metrics` has to be asked, too."""
        answer = await self._send("GET", target.url(SNAPSHOT_PATH), _SNAPSHOT_LIMIT)
        if answer.status in (404, 405):
            self._no_tuner[target.uid] = (target.incarnation, self._monotonic())
            return None
        if answer.status != 200:
            return self._failure(f"{SNAPSHOT_PATH} answered {answer.status}")
        found = read_snapshot(answer.body, self._monotonic(), target.incarnation)
        if isinstance(found, Failure):
            return None if found.why is Unusable.MISSING else found
        self._boots[target.uid] = (target.incarnation, found.boot_id)
        return found

    def _asks_tuner(self, target: Target) -> bool:
        missing = self._no_tuner.get(target.uid)
        if missing is None:
            return True
        incarnation, since = missing
        return incarnation != target.incarnation or self._monotonic() - since >= _NO_TUNER_RECHECK_S

    def _failure(self, message: str) -> Failure:
        return Failure(self._monotonic(), Unusable.UNREACHABLE, message)

    async def _send(
        self,
        method: str,
        url: str,
        limit: int,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> _Answer:
        if self._session is None:
            raise RuntimeError("EngineClient is used outside of its context")
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                chunks: list[bytes] = []
                size = 0
                async for chunk in response.content.iter_chunked(1 << 16):
                    size += len(chunk)
                    if size > limit:
                        raise _UnreadableError(f"{url} answered more than {limit} bytes")
                    chunks.append(chunk)
                return _Answer(response.status, b"".join(chunks))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _UnreadableError(f"{type(error).__name__}: {error}") from error


class _UnreadableError(Exception):
    """The transport failed or the answer is too large."""


def _outcome(answer: _Answer, setpoint: Setpoint, generation: int) -> Applied | Refused | Unreachable:
    try:
        parsed: Any = json.loads(answer.body)
    except (ValueError, RecursionError):
        parsed = None
    if answer.status != 200:
        error = parsed.get("error") if isinstance(parsed, dict) else None
        return _refusal(answer.status, error if isinstance(error, dict) else {}, parsed)
    engines = _in_force(parsed)
    if engines is None:
        return Unreachable("the change was answered 200, but without the engines' state")
    wanted = setpoint.max_num_active_seqs
    caps = {engine.max_num_active_seqs for engine in engines}
    budgets = {engine.max_num_scheduled_tokens for engine in engines}
    agreed = len(caps) == 1 and len(budgets) == 1 and (wanted is None or caps == {wanted})
    return Applied(generation, engines, agreed)


def _refusal(status: int, error: dict[str, Any], parsed: Any) -> Refused:
    current = error.get("generation", parsed.get("generation") if isinstance(parsed, dict) else None)
    return Refused(
        status,
        str(error.get("reason") or "NoReason")[:64],
        str(error.get("message") or f"the tuner answered {status}")[:500],
        current if isinstance(current, int) else None,
    )


def _in_force(parsed: Any) -> tuple[EngineInForce, ...] | None:
    if not isinstance(parsed, dict) or not isinstance(parsed.get("engines"), list) or not parsed["engines"]:
        return None
    engines: list[EngineInForce] = []
    for position, engine in enumerate(parsed["engines"]):
        if not isinstance(engine, dict):
            return None
        number = _whole(engine.get("engine"))
        engines.append(
            EngineInForce(
                position if number is None else number,
                _whole(engine.get("max_num_active_seqs")),
                _budget(engine),
            )
        )
    return tuple(engines)


def _budget(engine: dict[str, Any]) -> int | None:
    wanted = engine.get("wanted")
    kept = _whole(wanted.get("max_num_scheduled_tokens")) if isinstance(wanted, dict) else None
    return _whole(engine.get("max_num_scheduled_tokens")) if kept is None else kept


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
