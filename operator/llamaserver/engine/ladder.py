"""What can be done with one engine now: change it live, or not, and why not."""

from __future__ import annotations

from dataclasses import dataclass

from llamaserver.observe import Sample, Source


@dataclass(frozen=True, slots=True)
class Live:
    """The cap can be changed while the engine runs. `budget` says whether the prefill budget can be, too."""

    budget: bool


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The engine keeps what it was started with. `reason` is CamelCase, as the tuner or we name it."""

    reason: str
    message: str = ""


Capability = Live | Unavailable


def capability(sample: Sample | None) -> Capability:
    """The rung of the ladder that a pod's newest sample allows."""
    if sample is None:
        return Unavailable("NotSeen", "the engine has not answered yet")
    if sample.source in (Source.METRICS, Source.PROMETHEUS):
        return Unavailable(sample.reason or "NoTuner", sample.message or "the engine serves /metrics alone")
    if not sample.writable:
        return Unavailable(sample.reason or "NotWritable", sample.message)
    if not sample.engines:
        return Unavailable("EngineUnreachable", sample.message)
    for engine in sample.engines:
        if engine.live_cap:
            return Unavailable(engine.live_cap, f"engine {engine.engine} cannot change its cap live")
    return Live(budget=all(not engine.live_budget for engine in sample.engines))
