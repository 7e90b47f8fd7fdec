"""The laws of the work queue, on a clock that does not wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.controller.queue import Backoff, Key, RetryLater, WorkQueue

pytestmark = pytest.mark.looptime

A, B, C = Key("ns", "a"), Key("ns", "b"), Key("ns", "c")


@contextlib.asynccontextmanager
async def serving(
    handler: Callable[[Key], Awaitable[float | None]], workers: int = 4, spacing_s: float = 0.2
) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(
        handler, monotonic=asyncio.get_running_loop().time, workers=workers, spacing_s=spacing_s
    )
    task = asyncio.create_task(queue.run())
    yield queue
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class Looks:
    """A handler that notes when it looked at what, and how many looks went on at once."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s
        self.seen: list[tuple[float, Key]] = []
        self.now: list[Key] = []
        self.most_at_once = 0
        self.again: float | None = None
        self.fail: set[Key] = set()

    async def __call__(self, key: Key) -> float | None:
        assert key not in self.now, "one key was looked at twice at once"
        self.now.append(key)
        self.most_at_once = max(self.most_at_once, len(self.now))
        self.seen.append((asyncio.get_running_loop().time(), key))
        try:
            await asyncio.sleep(self.takes_s)
            if key in self.fail:
                raise RuntimeError("fault")
            return self.again
        finally:
            self.now.remove(key)

    def times(self, key: Key) -> list[float]:
        return [at for at, seen in self.seen if seen == key]


async def test_a_key_added_many_times_is_looked_at_once() -> None:
    looks = Looks()
    async with serving(looks) as queue:
        for _ in range(50):
            queue.add(A)
        await asyncio.sleep(5)
    assert len(looks.times(A)) == 1


async def test_a_key_added_during_its_look_is_looked_at_again() -> None:
    looks = Looks(takes_s=2)
    async with serving(looks) as queue:
        queue.add(A)
        await asyncio.sleep(1)
        queue.add(A)
        await asyncio.sleep(10)
    assert len(looks.times(A)) == 2
    assert looks.times(A)[1] - looks.times(A)[0] >= 2


async def test_looks_at_one_key_keep_their_distance() -> None:
    looks = Looks()
    async with serving(looks, spacing_s=1.0) as queue:
        for _ in range(20):
            queue.add(A)
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
    times = looks.times(A)
    assert len(times) <= 4
    assert all(later - sooner >= 1.0 - 1e-6 for sooner, later in pairwise(times))


async def test_a_wish_to_look_later_does_not_postpone_a_sooner_one() -> None:
    looks = Looks()
    async with serving(looks) as queue:
        queue.add(A, after_s=1)
        queue.add(A, after_s=100)
        await asyncio.sleep(2)
        assert len(looks.times(A)) == 1
        await asyncio.sleep(200)
    assert len(looks.times(A)) == 1


async def test_a_wish_finer_than_the_clock_ticks_is_looked_at_too() -> None:
    looks = Looks()
    async with serving(looks) as queue:
        queue.add(A, after_s=1 + 5e-10)
        await asyncio.sleep(2)
    assert len(looks.times(A)) == 1


async def test_a_sooner_wish_replaces_a_later_one() -> None:
    looks = Looks()
    async with serving(looks) as queue:
        queue.add(A, after_s=100)
        queue.add(A)
        await asyncio.sleep(200)
    assert [at < 1 for at in looks.times(A)] == [True]


async def test_a_failing_key_waits_longer_each_time_and_delays_nobody() -> None:
    looks = Looks()
    looks.fail = {A}
    async with serving(looks) as queue:
        queue.add(A)
        for _ in range(60):
            queue.add(B)
            await asyncio.sleep(1)
    gaps = [later - sooner for sooner, later in pairwise(looks.times(A))]
    assert len(gaps) >= 4
    assert all(later > sooner * 1.5 for sooner, later in pairwise(gaps))
    assert len(looks.times(B)) == 60


async def test_backoff_starts_anew_after_success() -> None:
    looks = Looks()
    looks.fail = {A}
    async with serving(looks) as queue:
        queue.add(A)
        await asyncio.sleep(30)
        looks.fail = set()
        await asyncio.sleep(60)
        looks.fail = {A}
        queue.add(A)
        await asyncio.sleep(1.5)
    times = looks.times(A)
    assert times[-1] - times[-2] < 1


async def test_keys_that_failed_are_looked_at_at_once_when_the_reason_is_gone() -> None:
    looks = Looks()
    looks.fail = {A}
    async with serving(looks) as queue:
        queue.add(A)
        queue.add(B, after_s=1000)
        await asyncio.sleep(150)
        before = len(looks.times(A))
        looks.fail = set()
        queue.retry_now()
        await asyncio.sleep(0.5)
        assert len(looks.times(A)) == before + 1
        await asyncio.sleep(100)
        assert len(looks.times(A)) == before + 1, "it went well, so nothing is left to try"
        assert looks.times(B) == [], "a key that did not fail is none of them"


async def test_a_handler_may_ask_for_a_certain_delay() -> None:
    seen: list[float] = []

    async def handler(key: Key) -> None:
        seen.append(asyncio.get_running_loop().time())
        raise RetryLater("the server said when", after_s=17)

    async with serving(handler) as queue:
        queue.add(A)
        await asyncio.sleep(18)
    assert len(seen) == 2
    assert seen[1] - seen[0] >= 17


async def test_a_handler_may_ask_to_be_called_again() -> None:
    looks = Looks()
    looks.again = 10
    async with serving(looks) as queue:
        queue.add(A)
        await asyncio.sleep(35)
    assert len(looks.times(A)) == 4


async def test_no_more_than_the_workers_look_at_once_and_a_slow_key_blocks_only_its_worker() -> None:
    looks = Looks(takes_s=100)
    async with serving(looks, workers=2) as queue:
        for key in (A, B, C):
            queue.add(key)
        await asyncio.sleep(50)
        assert {key for _, key in looks.seen} == {A, B}
        assert queue.depth() == 1
        assert queue.oldest_age() == pytest.approx(50, abs=1)
        await asyncio.sleep(100)
    assert looks.most_at_once == 2
    assert {key for _, key in looks.seen} == {A, B, C}


async def test_a_dead_handler_does_not_kill_the_queue() -> None:
    looks = Looks()
    looks.fail = {A}
    async with serving(looks, workers=1) as queue:
        queue.add(A)
        queue.add(B)
        await asyncio.sleep(1)
    assert looks.times(B)


@given(st.integers(1, 10_000))
def test_backoff_grows_to_its_bound_and_never_beyond(failures: int) -> None:
    backoff = Backoff()
    assert backoff.first_s <= backoff.delay(failures) <= backoff.most_s * 1.1
