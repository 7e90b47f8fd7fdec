"""A keyed, level-triggered work queue: which objects to look at, when, and never the same one twice at once.

Laws (see the tests): a key that is added while it waits is looked at once; one that is added while it is
being looked at is looked at again afterwards; a failing key waits longer each time and delays no other key; a
wish to look later never postpones a wish to look sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

_log = logging.getLogger(__name__)

_LEAST_WAIT_S = 0.001
"""A timer may fire up to a tick of its clock before its time; who then waits for the rest, a millionth of a
second, is woken by the same tick again, without end.
"""


class Key(NamedTuple):
    """One LlamaServer."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class RetryLater(Exception):  # noqa: N818 - a wish, not an error
    """Raised by a handler to be called again, no earlier than `after_s` from now, as a failure counts."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay of a key's n-th failure in a row: `first_s` doubled each time up to `most_s`, spread by up to 10
    %.
    """

    first_s: float = 0.5
    most_s: float = 60.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after the n-th failure in a row, n >= 1."""
        exact = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 32))
        return exact * (1 + random.uniform(0, 0.1))  # noqa: S311 - spreads load, guards nothing


class WorkQueue:
    """Calls `handler(key)` from at most `workers` tasks at once.

    A handler returns None, or the seconds after which the key wants to be looked at again. Two looks at one
    key start at least `spacing_s` apart, so that a burst of events about it costs one look.
    """

    def __init__(
        self,
        handler: Callable[[Key], Awaitable[float | None]],
        *,
        monotonic: Callable[[], float],
        workers: int = 8,
        spacing_s: float = 0.2,
        backoff: Backoff = Backoff(),
    ) -> None:
        self._handler = handler
        self._monotonic = monotonic
        self._workers = workers
        self._spacing_s = spacing_s
        self._backoff = backoff
        self._due: dict[Key, float] = {}
        self._since: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._running: set[Key] = set()
        self._started: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Look at `key`, `after_s` seconds from now at the latest."""
        now = self._monotonic()
        earliest = self._started.get(key, now - self._spacing_s) + self._spacing_s
        due = max(now + after_s, earliest)
        known = self._due.get(key)
        if known is not None and known <= due:
            return
        self._due[key] = due
        if after_s == 0:
            self._since.setdefault(key, now)
        if key not in self._running:
            heapq.heappush(self._heap, (due, key))
            self._changed.set()

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a key whose object is gone. A waiting look still happens."""
        self._failures.pop(key, None)
        self._started.pop(key, None)

    def retry_now(self) -> None:
        """What made keys fail is over: look at all that wait for another try, and count from the start."""
        for key in list(self._failures):
            del self._failures[key]
            self.add(key)

    def depth(self) -> int:
        """Keys that are due and wait for a worker."""
        now = self._monotonic()
        return sum(1 for due in self._due.values() if due <= now)

    def oldest_age(self) -> float:
        """Seconds that the longest-waiting due key has waited."""
        now = self._monotonic()
        waits = [now - self._since.get(key, due) for key, due in self._due.items() if due <= now]
        return max(waits, default=0.0)

    async def run(self) -> None:
        """Serve the queue until cancelled; looks under way are cancelled with it."""
        async with asyncio.TaskGroup() as group:
            while True:
                while len(self._running) < self._workers and (key := self._next()) is not None:
                    self._running.add(key)
                    self._started[key] = self._monotonic()
                    group.create_task(self._look(key), name=f"look at {key}")
                await self._wait()

    def _next(self) -> Key | None:
        """The key that is due for the longest time. Keys being looked at are not in the heap."""
        due = self._first_due()
        if due is None or due > self._monotonic():
            return None
        _, key = heapq.heappop(self._heap)
        del self._due[key]
        self._since.pop(key, None)
        return key

    def _first_due(self) -> float | None:
        """When the first key is due; entries that a sooner wish has replaced are dropped on the way."""
        while self._heap and (
            self._due.get(self._heap[0][1]) != self._heap[0][0] or self._heap[0][1] in self._running
        ):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    async def _wait(self) -> None:
        """Until something is added, done, or due."""
        self._changed.clear()
        due = self._first_due()
        full = len(self._running) >= self._workers
        timeout = None if full or due is None else max(_LEAST_WAIT_S, due - self._monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()

    async def _look(self, key: Key) -> None:
        try:
            again = await self._handler(key)
        except RetryLater as wish:
            self._retry(key, wish.after_s)
        except Exception:
            _log.exception("%s: the look failed; it is tried again", key)
            self._retry(key, 0.0)
        else:
            self._failures.pop(key, None)
            if again is not None:
                self.add(key, max(again, self._spacing_s))
        finally:
            self._running.discard(key)
            if key in self._due:
                heapq.heappush(self._heap, (self._due[key], key))
            self._changed.set()

    def _retry(self, key: Key, after_s: float) -> None:
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        self.add(key, max(after_s, self._backoff.delay(failures)))
