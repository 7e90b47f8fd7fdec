"""The plant as the tuner sees a scheduler, so that all of the tuner's own code runs on it unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from llamaserver.simulate import speech
from llamaserver.simulate.live import LiveEngine
from llamaserver_tuner.engine import APPLY, READ, EngineTuner
from llamaserver_tuner.scheduler import SchedulerPort
from llamaserver_tuner.setpoints import BUDGET, CAP, Limits


class PlantPort(SchedulerPort):
    """What `EngineTuner` reads and sets, as long as it is not attached to vLLM's scheduler."""

    def __init__(self, plant: LiveEngine) -> None:
        profile = plant.profile
        self._plant = plant
        self.limits = Limits(
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.budget,
            start_cap=profile.max_num_seqs,
            start_budget=profile.budget,
            tokens_per_seq=1,
            chunk_reserve=plant.chunk_reserve,
            live={CAP: "", BUDGET: ""},
        )
        self.pipeline_parallel_size = 1

    @property
    def cap(self) -> int:
        """The admission cap in force."""
        return self._plant.cap

    @cap.setter
    def cap(self, value: int) -> None:
        self._plant.cap = value

    @property
    def budget(self) -> int:
        """The token budget of the next step."""
        return min(self.limits.start_budget, self._plant.budget + self._beyond())

    @budget.setter
    def budget(self, value: int) -> None:
        # While a cap drains both the tuner and the plant lift the budget by the sequences beyond it.
        self._plant.budget = value - self._beyond()

    @property
    def running(self) -> int:
        """How many sequences run."""
        return len(self._plant.running)

    def look_again(self) -> None:
        """There is nothing to see that was not known at the start."""

    def owed(self) -> int:
        """No prompt stands before a decode: the one that is being prefilled is always the last."""
        return 0

    def gauges(self) -> dict[str, Any]:
        """What the plant holds now."""
        said = self._said()
        told = ("running", "waiting", "waiting_deferred", "max_model_len")
        kv = {**said["kv"], "capacity_tokens": self._plant.profile.kv_tokens}
        gauges = {name: said[name] for name in told}
        return {**gauges, "waiting_for_streaming_input": 0, "paused": False, "kv": kv}

    def lengths(self) -> dict[str, Any] | None:
        """How long the requests are that run and wait."""
        lengths: dict[str, Any] = self._said()["lengths"]
        return lengths

    def _said(self) -> dict[str, Any]:
        engines: Any = speech.document(self._plant)["engines"]
        said: dict[str, Any] = engines[0]
        return said

    def _beyond(self) -> int:
        return max(0, len(self._plant.running) - self._plant.cap)


class EngineCore:
    """The way that the tuner's `EngineAccess` takes to an engine core, here to a call in this process."""

    def __init__(self, tuner: EngineTuner) -> None:
        self._methods: dict[str, Callable[..., dict[str, Any]]] = {READ: tuner.read, APPLY: tuner.apply}

    async def call_utility_all_async(self, method: str, *args: Any) -> list[str]:
        """The answers of all engines, of which there is one."""
        return [json.dumps(self._methods[method](*args))]


class EngineClient:
    """The part of vLLM's engine client that the tuner looks at."""

    def __init__(self, tuner: EngineTuner) -> None:
        self.engine_core = EngineCore(tuner)
