"""/healthz, /readyz and /metrics. A probe says what was proven, not that a port is open.

An API server that is gone makes neither probe fail: a restart would not bring it back, and would lose what
the operator knows and goes on tuning with. Watches that lag behind an API server that answers do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from aiohttp import web

from llamaserver.telemetry.metrics import Metrics

MAX_LOOP_LAG_S = 10.0
MAX_CANARY_AGE_S = 120.0
_OUTAGE_S = 30.0
"""Direct answers further apart than this mean that the API server was gone in between."""
_BEAT_S = 0.5
_REMEMBERED_S = 30.0


class LoopLag:
    """Measures how late the event loop runs what is due. `run` beats; `worst` and `now` judge."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._due = monotonic()
        self._lags: deque[tuple[float, float]] = deque()

    async def run(self) -> None:
        """Beat for ever."""
        while True:
            self._due = self._monotonic() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            now = self._monotonic()
            self._lags.append((now, max(0.0, now - self._due)))
            while self._lags[0][0] < now - _REMEMBERED_S:
                self._lags.popleft()

    def worst(self) -> float:
        """Seconds: the largest lag of the last 30 s, a beat that is overdue right now included."""
        overdue = self._monotonic() - self._due
        return max([0.0, overdue, *(lag for _, lag in self._lags)])


class Canary:
    """Compares two ways to the same object, the leader lease: read directly, and seen through the watches.

    `contact` is told of every direct answer, `seen` of every watch event. The age is how far the second lags
    behind the first, so it stands still while the API server is gone: it grows only while that answers and
    watches do not. After an outage it starts afresh, for the watches need some time to come back; before the
    first `seen` it does not grow at all, for there are no watches yet.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._contact = monotonic()
        self._since: float | None = None

    def contact(self) -> None:
        """The API server answered a direct call about the lease just now."""
        now = self._monotonic()
        if self._since is not None and now - self._contact > _OUTAGE_S:
            self._since = max(self._since, now)
        self._contact = now

    def seen(self) -> None:
        """The lease came through the watches just now."""
        self._since = self._monotonic()

    def age(self) -> float:
        """Seconds that the watches lag behind."""
        return 0.0 if self._since is None else max(0.0, self._contact - self._since)


@dataclass
class Probes:
    """What the two probes are decided from."""

    lag: LoopLag
    canary: Canary
    synced: Callable[[], bool]
    stopping: bool = field(default=False)

    def unhealthy(self) -> str:
        """Why the process should be restarted, or an empty text."""
        lag, age = self.lag.worst(), self.canary.age()
        if lag >= MAX_LOOP_LAG_S:
            return f"the event loop lags {lag:.1f} s"
        if age >= MAX_CANARY_AGE_S:
            return f"the API server answers, but the watches have been silent for {age:.0f} s"
        return ""

    def unready(self) -> str:
        """Why this replica could not lead now, or an empty text. Leader and standby are ready alike."""
        if self.stopping:
            return "stopping"
        return "" if self.synced() else "the caches are not filled yet"


class HealthServer:
    """The HTTP server of the operator. Started before anything else, stopped after everything else.

    An empty `host` means every address, of IPv4 and IPv6 alike.
    """

    def __init__(self, probes: Probes, metrics: Metrics, *, host: str, port: int) -> None:
        self._probes = probes
        self._metrics = metrics
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port in use; differs from the one asked for when that was 0."""
        if self._runner is None or not self._runner.addresses:
            raise RuntimeError("the health server is not running")
        return int(self._runner.addresses[0][1])

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._exposition)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host or None, self._port).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._probes.unhealthy())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._probes.unready())

    async def _exposition(self, _: web.Request) -> web.Response:
        self._metrics.loop_lag_seconds.set(self._probes.lag.worst())
        self._metrics.canary_seconds.set(self._probes.canary.age())
        return web.Response(
            body=self._metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def _answer(problem: str) -> web.Response:
    return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)
