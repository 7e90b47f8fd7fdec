"""The operator without Kubernetes: its own observation, law and client, ticking against one engine."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.engine import POD, client
from bench.variants import StepPlan, Variant, step_plan
from llamaserver.api.enums import ScalingMode
from llamaserver.control import Decision, Fleet, Limits, Objective, decide, initial
from llamaserver.controller import retune
from llamaserver.controller.tick import TickTimes
from llamaserver.engine import Applied, SigningKey, Target
from llamaserver.observe import Memory, Sample, advance

TIMES = TickTimes()
LIMITS = Limits(scaling=ScalingMode.FIXED)
FLEET = Fleet(replicas=1, ready=1, pending=0)


class Clock:
    """Monotonic seconds that stand still while the operator is not running.

    Policies take turns on one engine. To the operator its own turns are one run without gaps: what it learned
    in one is no older in the next than it would be if nobody else had been there.
    """

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    def now(self) -> float:
        """The present reading."""
        return self._before if self._since is None else self._before + time.monotonic() - self._since

    def pause(self) -> None:
        """Stand still."""
        self._before, self._since = self.now(), None

    def go_on(self) -> None:
        """Run again, from where it stood."""
        self.pause()
        self._since = time.monotonic()


class Ours:
    """One operator with one objective. Use as an async context manager; `running` is one turn of it."""

    def __init__(
        self,
        key: SigningKey,
        target: Target,
        objective: Objective,
        variant: Variant,
        plan: Path | None = None,
    ) -> None:
        """`plan` is the file that a governor in the engine reads."""
        self.variant = variant
        self._plan = plan
        self._target = target
        self._clock = Clock()
        self._client = client(key, self._clock.now)
        self._limits = replace(LIMITS, budget_moves=variant.budget_moves)
        self._objective = objective
        self._state = initial(None, self._clock.now())
        self._memory = Memory()
        self._task: asyncio.Task[None] | None = None
        self.refused: list[str] = []
        """What came of changes that were not applied."""
        self.decision: Decision | None = None

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self._client.__aexit__(kind, error, trace)

    def start(self) -> None:
        """Begin a turn. What others did to the engine since the last one is not looked at."""
        self._clock.go_on()
        self._memory = Memory()
        self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """End the turn; what was set stays until somebody sets something else. Raises what a tick raised."""
        task, self._task = self._task, None
        if task is None:
            return
        self._clock.pause()
        self._govern(None)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _loop(self) -> None:
        while True:
            started = time.monotonic()
            await self.tick()
            await asyncio.sleep(max(0.0, TIMES.every_s - (time.monotonic() - started)))

    async def tick(self) -> None:
        """Scrape, conclude, decide, change: what the operator does every two seconds, for one pod."""
        result = await self._client.scrape(self._target, TIMES.scrape_s)
        now = self._clock.now()
        self._memory, windows = advance(self._memory, {POD: result}, now)
        self._state, decision = decide(self._objective, self._limits, self._state, windows, FLEET, now)
        self.decision = decision
        if self.variant.governor:
            self._govern(step_plan(self._state, decision))
        if not isinstance(result, Sample):
            return
        setpoints = {pod: self.variant.realise(setpoint) for pod, setpoint in decision.setpoints.items()}
        for change in retune.due(setpoints, {POD: result}, TIMES.lease_s):
            answer = await self._client.put(
                self._target, change.setpoint, change.generation, TIMES.lease_s, TIMES.put_s
            )
            if not isinstance(answer, Applied):
                self.refused.append(answer.message)

    def _govern(self, plan: StepPlan | None) -> None:
        """Hand the plan to the governor in the engine; None sends it to sleep."""
        if self._plan is None:
            return
        beside = self._plan.with_suffix(".new")
        beside.write_text(json.dumps({} if plan is None else plan.of(self.variant.governor)))
        beside.rename(self._plan)
