"""The governor that the bench compares with: a budget for every step, within the tuner's bounds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.governor import Governor, govern
from bench.variants import StepPlan
from llamaserver_tuner.setpoints import BUDGET, CAP, Limits, Setpoints

LIMITS = Limits(32, 2048, 32, 2048, tokens_per_seq=1, chunk_reserve=0, live={CAP: "", BUDGET: ""})
PLAN = StepPlan(step_s=0.030, a=0.006, b=0.0005, g=1e-6, d=0.0002, c=0.002, least=8)


def request(prompt: int, computed: int) -> Any:
    return SimpleNamespace(num_prompt_tokens=prompt, num_computed_tokens=computed)


@dataclass
class Tuner:
    """As much of an engine's tuner as the governor touches."""

    running: list[Any]
    setpoints: Setpoints = field(default_factory=lambda: Setpoints(LIMITS))
    port: Any = field(default_factory=lambda: SimpleNamespace(budget=2048))

    @property
    def _scheduler(self) -> Any:
        return SimpleNamespace(running=self.running)


def governed(tmp_path: Path, mode: str, running: list[Any], budget: int = 60) -> tuple[Governor, int]:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN.of(mode)))
    tuner = Tuner(running)
    tuner.setpoints.cap, tuner.setpoints.budget = 20, budget
    governor = Governor(path)
    governor.apply(tuner)
    return governor, tuner.port.budget


def test_prefill_gets_what_the_steps_decodes_leave(tmp_path: Path) -> None:
    ten = [request(100, 200) for _ in range(10)] + [request(500, 40)]
    # (30 - 6 - 2 - 10 * 0.5 - 2040 * 0.001) ms / 0.2 ms = 74.8 tokens beside the ten decodes
    assert governed(tmp_path, "step", ten)[1] == 10 + 74


def test_contexts_alone_are_followed_at_the_cap(tmp_path: Path) -> None:
    ten = [request(100, 200) for _ in range(10)]
    # (30 - 6 - 2 - 20 * 0.5 - 4000 * 0.001) ms / 0.2 ms = 40 tokens beside the cap's twenty decodes
    assert governed(tmp_path, "kv", ten)[1] == pytest.approx(20 + 40, abs=1)


def test_nobody_starves_when_the_decodes_leave_nothing(tmp_path: Path) -> None:
    many = [request(10, 900) for _ in range(32)]
    assert governed(tmp_path, "step", many)[1] == 32 + PLAN.least


def test_without_a_budget_of_the_operator_nothing_is_touched(tmp_path: Path) -> None:
    governor, budget = governed(tmp_path, "step", [request(10, 20)], budget=2048)
    assert budget == 2048
    assert governor.us_per_step is None


def test_a_tuner_class_is_governed_once_and_tells_what_it_costs(tmp_path: Path) -> None:
    class Class:
        def __init__(self) -> None:
            self.__dict__.update(vars(Tuner([request(10, 20)])))
            self._scheduler = SimpleNamespace(running=self.running)
            self.setpoints.budget = 100

        def _enforce(self) -> None:
            self.port.budget = self.setpoints.budget

        def _state(self, now: float) -> dict[str, Any]:
            return {"now": now}

    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN.of("step")))
    govern(Class, path)
    govern(Class, path)
    tuner = Class()
    tuner._enforce()
    assert tuner.port.budget != 100
    assert tuner._state(1.0)["governor_us_per_step"] > 0
    path.write_text("{}")
    tuner._bench_governor._looked = 0.0
    tuner._enforce()
    assert tuner.port.budget == 100
