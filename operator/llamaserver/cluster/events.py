"""Kubernetes Events about LlamaServers: told once, never in a flood.

The same (object, reason, message) is not told again within `repeat_s`, and each object has a budget. Emitting
never waits: posting is a task of its own, which tries again while the API server is away. An Event that could
not be posted does not count as told.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from llamaserver.cluster.errors import ApiError, ConflictError, NotLeadingError, UnavailableError
from llamaserver.cluster.kinds import FIELD_MANAGER, LLAMASERVER, Object
from llamaserver.cluster.kube import Kube
from llamaserver.cluster.pace import TokenBucket

_log = logging.getLogger(__name__)

_REMEMBERED = 10_000
_MESSAGE_LIMIT = 1024
_QUEUE_LIMIT = 1000
_PAUSES_S = (2.0, 5.0, 10.0, 30.0, 60.0)
"""Between the attempts to post one Event."""

_Key = tuple[str, str, str]


class EventType(StrEnum):
    """The two types core/v1 knows."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Reference:
    """The LlamaServer an Event is about."""

    namespace: str
    name: str
    uid: str


class Recorder:
    """Turns `emit` calls into posted Events while `run` runs."""

    def __init__(
        self,
        kube: Kube,
        *,
        instance: str,
        monotonic: Callable[[], float],
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        repeat_s: float = 600.0,
        burst: float = 15.0,
        per_minute: float = 2.0,
    ) -> None:
        self._kube = kube
        self._instance = instance
        self._monotonic = monotonic
        self._wall = wall
        self._repeat_s = repeat_s
        self._burst = burst
        self._per_second = per_minute / 60
        self._told: OrderedDict[_Key, float] = OrderedDict()
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._queue: asyncio.Queue[tuple[_Key, Object]] = asyncio.Queue(_QUEUE_LIMIT)

    def emit(self, about: Reference, kind: EventType, reason: str, message: str) -> bool:
        """Queue an Event unless it was told lately or its object's budget is spent. Returns whether it was
        queued.
        """
        now = self._monotonic()
        key = (about.uid, reason, message)
        told_at = self._told.get(key)
        if told_at is not None and now - told_at < self._repeat_s:
            return False
        bucket = self._buckets.setdefault(
            about.uid, TokenBucket(self._per_second, self._burst, self._monotonic)
        )
        if self._queue.full() or not bucket.take():
            return False
        self._told[key] = now
        self._told.move_to_end(key)
        self._buckets.move_to_end(about.uid)
        for memory in (self._told, self._buckets):
            while len(memory) > _REMEMBERED:
                memory.popitem(last=False)
        self._queue.put_nowait((key, self._event(about, kind, reason, message)))
        return True

    async def run(self) -> None:
        """Post what was emitted, for ever."""
        while True:
            key, event = await self._queue.get()
            try:
                await self._post(event)
            except ApiError as error:
                _log.info("the event %s was not posted: %s", event["reason"], error)
                self._told.pop(key, None)
            finally:
                self._queue.task_done()

    async def _post(self, event: Object) -> None:
        """Post an Event, again where the API server is away or leadership is in doubt."""
        for pause in _PAUSES_S:
            try:
                await self._kube.create_event(event)
                return
            except ConflictError:
                return  # an earlier attempt got through although its answer did not
            except (UnavailableError, NotLeadingError):
                await asyncio.sleep(pause)
        await self._kube.create_event(event)

    def _event(self, about: Reference, kind: EventType, reason: str, message: str) -> Object:
        now = self._wall().strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": about.namespace, "name": f"{about.name[:200]}.{secrets.token_hex(8)}"},
            "involvedObject": {
                "apiVersion": LLAMASERVER.api_version,
                "kind": LLAMASERVER.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "type": kind.value,
            "reason": reason,
            "message": message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 1] + "…",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance[:128],
        }
