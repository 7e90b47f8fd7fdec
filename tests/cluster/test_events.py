"""Events are told once, never in a flood, and cost nobody any waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from llamaserver.cluster import ApiError, EventType, Recorder, Reference, UnavailableError
from llamaserver.cluster.kinds import Object

pytestmark = pytest.mark.looptime

CHAT = Reference("ns", "chat", "uid-chat")
BATCH = Reference("ns", "batch", "uid-batch")


class Posted(list[Object]):
    """Takes events in the place of an API server."""

    fault: Exception | None = None

    async def create_event(self, event: Object) -> None:
        if self.fault is not None:
            raise self.fault
        self.append(event)


@contextlib.asynccontextmanager
async def recording(posted: Posted) -> AsyncIterator[Recorder]:
    recorder = Recorder(posted, instance="test", monotonic=asyncio.get_running_loop().time)  # type: ignore[arg-type]
    task = asyncio.create_task(recorder.run())
    yield recorder
    await asyncio.sleep(0.1)
    task.cancel()


async def test_an_event_names_its_object_and_speaks_plainly() -> None:
    posted = Posted()
    async with recording(posted) as recorder:
        recorder.emit(CHAT, EventType.WARNING, "SLOMissed", "p95 is 61ms, the target 50ms")
    (event,) = posted
    assert event["involvedObject"]["uid"] == "uid-chat"
    assert (event["type"], event["reason"]) == ("Warning", "SLOMissed")
    assert event["message"] == "p95 is 61ms, the target 50ms"


async def test_the_same_is_not_told_twice_but_again_much_later() -> None:
    posted = Posted()
    async with recording(posted) as recorder:
        for _ in range(100):
            recorder.emit(CHAT, EventType.NORMAL, "Ready", "1 of 1 replicas ready")
            await asyncio.sleep(1)
        assert len(posted) == 1
        await asyncio.sleep(600)
        recorder.emit(CHAT, EventType.NORMAL, "Ready", "1 of 1 replicas ready")
    assert len(posted) == 2


async def test_a_flood_about_one_object_is_cut_and_leaves_others_their_say() -> None:
    posted = Posted()
    async with recording(posted) as recorder:
        for number in range(1000):
            recorder.emit(CHAT, EventType.NORMAL, "Retuned", f"cap {number}")
        recorder.emit(BATCH, EventType.NORMAL, "Ready", "fine")
    about_chat = [event for event in posted if event["involvedObject"]["uid"] == "uid-chat"]
    assert len(about_chat) <= 20
    assert len(posted) == len(about_chat) + 1


async def test_while_the_api_server_is_gone_events_wait() -> None:
    posted = Posted()
    posted.fault = UnavailableError(0, "NoConnection", "gone")
    async with recording(posted) as recorder:
        recorder.emit(CHAT, EventType.NORMAL, "Ready", "first")
        await asyncio.sleep(10)
        posted.fault = None
        recorder.emit(CHAT, EventType.NORMAL, "Ready", "second")
        await asyncio.sleep(30)
    assert [event["message"] for event in posted] == ["first", "second"]


async def test_an_event_that_was_refused_does_not_count_as_told() -> None:
    posted = Posted()
    posted.fault = ApiError(403, "Forbidden", "no")
    async with recording(posted) as recorder:
        assert recorder.emit(CHAT, EventType.NORMAL, "Ready", "fine")
        await asyncio.sleep(1)
        posted.fault = None
        assert recorder.emit(CHAT, EventType.NORMAL, "Ready", "fine")
    assert len(posted) == 1


async def test_an_overlong_message_is_cut_to_what_the_api_server_takes() -> None:
    posted = Posted()
    async with recording(posted) as recorder:
        recorder.emit(CHAT, EventType.NORMAL, "Long", "x" * 5000)
    assert len(posted[0]["message"]) == 1024
