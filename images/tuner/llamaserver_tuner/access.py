"""The way from the API server to its engine cores.

vLLM's plugin contract offers no call to the scheduler, so this uses
`engine_client.engine_core.call_utility_all_async`, an internal of vLLM's `AsyncMPClient`. Where a release
lacks it the reason is `NoEngineAccess`. It is the only file that knows about it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from llamaserver_tuner.engine import APPLY, READ

READ_TIMEOUT_S = 1.0
"""How long a reader waits for the engines before it gets the last reading instead."""
MAX_AGE_S = 10.0
"""The oldest reading that is still given out. A step of seconds is slow; a longer silence is an engine that
hangs."""
APPLY_TIMEOUT_S = 5.0
PLUGIN_RETRY_S = 60.0
"""vLLM logs a traceback for every call of an unknown method, so a missing engine plugin is not asked for
often."""


class UnansweredError(Exception):
    """The engines did not answer. `reason` is CamelCase and part of the contract."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of every engine, and how many seconds ago they answered."""

    engines: list[dict[str, Any]]
    age_s: float


class EngineAccess:
    """Reads and changes all engines behind one vLLM `EngineClient`."""

    def __init__(self, engine_client: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = engine_client
        self._clock = clock
        self._reading: asyncio.Task[list[dict[str, Any]]] | None = None
        self._applying: asyncio.Task[list[dict[str, Any]]] | None = None
        self._last: tuple[float, list[dict[str, Any]]] | None = None
        self._plugin_missing_until = 0.0

    async def read(self) -> Reading:
        """Return the state of every engine, or raise UnansweredError.

        At most one reading is under way, and all who ask wait for it, so an engine that hangs finds one
        message in its socket when it wakes up, not one for every scrape. An engine answers between two
        steps: where these take longer than a second, the last completed reading is returned with its age.
        """
        if self._reading is None or self._reading.done():
            self._reading = self._start(READ)
            self._reading.add_done_callback(self._keep)
        try:
            return Reading(await self._wait(self._reading, READ_TIMEOUT_S, "EngineUnreachable"), 0.0)
        except UnansweredError as error:
            if error.reason != "EngineUnreachable" or self._last is None:
                raise
            at, engines = self._last
            age_s = self._clock() - at
            if age_s >= MAX_AGE_S:
                raise
            return Reading(engines, age_s)

    def _keep(self, done: asyncio.Task[list[dict[str, Any]]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._last = self._clock(), done.result()

    def _update(self, done: asyncio.Task[list[dict[str, Any]]]) -> None:
        """Bring the kept reading up to what a change read back, so that an aged one shows no older state.

        The engine core takes messages in turn, so what it read before the change is here already.
        """
        if self._last is None or done.cancelled() or done.exception() is not None:
            return
        at, engines = self._last
        answers = {state["engine"]: state for state in done.result() if "retunes" in state}
        changed = [{**engine, **answers.get(engine["engine"], {})} for engine in engines]
        for engine in changed:
            engine.pop("error", None)
        self._last = at, changed

    async def apply(self, body: str, not_after: float) -> list[dict[str, Any]]:
        """Hand a change to every engine and return the answers, or raise UnansweredError after five
        seconds."""
        if self._applying is not None and not self._applying.done():
            raise UnansweredError("EngineTimeout", "the engine has not answered an earlier change yet")
        self._applying = self._start(APPLY, body, not_after)
        self._applying.add_done_callback(self._update)
        return await self._wait(self._applying, APPLY_TIMEOUT_S, "EngineTimeout")

    def _start(self, method: str, *args: Any) -> asyncio.Task[list[dict[str, Any]]]:
        task = asyncio.ensure_future(self._call(method, *args))
        # Somebody else may have stopped waiting for it: its exception counts as seen.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _wait(
        self, task: asyncio.Task[list[dict[str, Any]]], seconds: float, reason: str
    ) -> list[dict[str, Any]]:
        # wait() neither cancels the task at its end nor with the caller's own cancellation.
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise UnansweredError(reason, f"the engine core did not answer within {seconds:.0f} s")
        return task.result()

    async def _call(self, method: str, *args: Any) -> list[dict[str, Any]]:
        if self._client is None:
            raise UnansweredError("NoEngine", "this server has no engine")
        call: Callable[..., Awaitable[list[str]]] | None = getattr(
            getattr(self._client, "engine_core", None), "call_utility_all_async", None
        )
        if call is None:
            raise UnansweredError(
                "NoEngineAccess", "this release of vLLM gives plugins no way to its engine cores"
            )
        if self._clock() < self._plugin_missing_until:
            raise UnansweredError("EnginePluginMissing", _PLUGIN_MISSING)
        try:
            return [json.loads(answer) for answer in await call(method, *args)]
        except Exception as error:
            raise self._explain(method, error) from error

    def _explain(self, method: str, error: Exception) -> UnansweredError:
        message = str(error)
        if f"no attribute '{method}'" in message:
            self._plugin_missing_until = self._clock() + PLUGIN_RETRY_S
            return UnansweredError("EnginePluginMissing", _PLUGIN_MISSING)
        if "shutting down" in message:
            return UnansweredError("ShuttingDown", "the engine is shutting down")
        if getattr(self._client, "errored", False) or type(error).__name__ == "EngineDeadError":
            return UnansweredError("EngineDead", "the engine core is dead")
        return UnansweredError("EngineError", message or type(error).__name__)


_PLUGIN_MISSING = "the engine core has not loaded llamaserver_tuner_engine; name it in VLLM_PLUGINS"
