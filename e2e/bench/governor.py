"""A token budget for every step instead of one for every tick: the variants that `ours` is measured against.

This file runs inside the engine, beside the tuner, for the bench alone; it is not shipped. The runner writes
the law's plan (the step model and T') into a file; from it a budget is made before each step, where the tuner
asks for the budget in force. `kv` follows only the contexts as they grow between two ticks, `step` gives
prefill exactly what this step's decodes leave.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "LLAMASERVER_BENCH_GOVERNOR"
"""The file that the plan is read from; without it nothing is changed."""
MODULE = "llamaserver_bench_governor"
ENTRY_POINT = "llamaserver_bench_governor"
LOOK_S = 0.5
"""How often the plan is looked for."""


def register() -> None:
    """Entry point of `vllm.general_plugins`."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    from llamaserver_tuner import engine

    govern(engine.EngineTuner, Path(path))


def govern(tuner_class: Any, path: Path) -> None:
    """Make every tuner of the class ask a governor for the budget. Idempotent."""
    if getattr(tuner_class, "_bench_governed", False):
        return
    tuner_class._bench_governed = True
    before: Callable[[Any], None] = tuner_class._enforce
    state: Callable[[Any, float], dict[str, Any]] = tuner_class._state

    def enforce(self: Any) -> None:
        before(self)
        governor = self.__dict__.setdefault("_bench_governor", Governor(path))
        started = time.perf_counter()
        governor.apply(self)
        governor.took_s += time.perf_counter() - started

    def told(self: Any, now: float) -> dict[str, Any]:
        governor = self.__dict__.get("_bench_governor")
        own = {} if governor is None else {"governor_us_per_step": governor.us_per_step}
        return {**state(self, now), **own}

    tuner_class._enforce, tuner_class._state = enforce, told


class Governor:
    """The budget of one engine, step by step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._plan: dict[str, Any] | None = None
        self._looked = 0.0
        self.took_s = 0.0
        self.steps = 0

    @property
    def us_per_step(self) -> float | None:
        """What it cost, in microseconds a governed step."""
        return 1e6 * self.took_s / self.steps if self.steps else None

    def apply(self, tuner: Any) -> None:
        """Set the budget of the step to come, if there is a plan and the operator has the budget in hand."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            self._plan = self._read()
        plan, setpoints = self._plan, tuner.setpoints
        if plan is None or setpoints.budget >= setpoints.limits.start_budget:
            return
        self.steps += 1
        decoding = resident = 0
        running = tuner._scheduler.running
        for request in running:
            computed = request.num_computed_tokens
            resident += computed
            decoding += computed >= request.num_prompt_tokens
        batch = decoding if plan["mode"] == "step" else setpoints.cap
        if plan["mode"] == "kv":
            resident = resident * batch // max(1, len(running))
        spare = plan["step_s"] - plan["a"] - plan["c"] - plan["b"] * batch - plan["g"] * resident
        limits = setpoints.limits
        chunk = max(limits.chunk_reserve + plan["least"], int(spare / plan["d"]))
        budget = batch * limits.tokens_per_seq + chunk
        budget = min(limits.start_budget, max(budget, limits.min_budget(len(running))))
        if budget != tuner.port.budget:
            tuner.port.budget = budget

    def _read(self) -> dict[str, Any] | None:
        try:
            plan = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        return plan if isinstance(plan, dict) and plan.get("mode") else None


def stage(folder: Path) -> Path:
    """Lay this module out in `folder` with the metadata by which vLLM finds it; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{MODULE}.py").write_text(Path(__file__).read_text())
    metadata = folder / f"{MODULE}-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 0\n")
    entry = f"[vllm.general_plugins]\n{ENTRY_POINT} = {MODULE}:register\n"
    (metadata / "entry_points.txt").write_text(entry)
    return folder
