"""A few threads for calls that block, which the process does not wait for when it exits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class DaemonThreads(Generic[T]):
    """Makes calls in the order in which they came, so many at a time. The interpreter joins the threads of a
    ThreadPoolExecutor before it ends, and so waits for whatever they wait for.
    """

    def __init__(self, most: int, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[T], Callable[[], T]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True) for n in range(most)
        ]
        self._started = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The future of what it returns. One that is cancelled before its turn is not called."""
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """The threads end after the calls that they are at, and nobody waits for that."""
        with contextlib.suppress(Empty):
            while True:
                if (waiting := self._calls.get_nowait()) is not None:
                    waiting[0].cancel()
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while self._make_next():
            pass

    def _make_next(self) -> bool:
        """A function of its own, so that an idle thread keeps no result alive."""
        if (waiting := self._calls.get()) is None:
            return False
        future, call = waiting
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)
        return True
