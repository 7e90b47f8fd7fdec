"""Starts that were ended from outside: what the startup probe leaves in a pod's status.

The kubelet ends a container that has not answered within `spec.startup.timeout`, and leaves no word of why
but an Event. In the status there is a life that was told to end or killed, that is as long as the timeout,
and in which the pod was never ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from llamaserver.api.effective import TRACE_VARIABLE, EffectiveSpec
from llamaserver.controller.lastwords import cause_of_death, last_words
from llamaserver.controller.moments import moment
from llamaserver.desired.probes import STARTUP_PERIOD_S

LOOPS: Final = 2
"""Restarts from which on a container that ends early is taken to end again and again."""
_FROM_OUTSIDE: Final = {130, 137, 143}
"""Exit codes of who is told to end, or killed: SIGINT (what vLLM makes of a SIGTERM before it serves),
SIGKILL and SIGTERM.
"""
_JITTER_S: Final = STARTUP_PERIOD_S + 1
"""The first probe comes up to a period after the start, and times in a status are whole seconds."""


@dataclass(frozen=True, slots=True)
class CutShort:
    """The last life of an engine that was ended from outside before its pod was ready."""

    lasted_s: float
    restarts: int
    said: str
    """The end of its log, or nothing."""

    @property
    def again(self) -> bool:
        """Whether it is likely to go on like this: the first try may have left weights in a cache."""
        return self.restarts >= LOOPS


def cut_short(engine: dict[str, Any], unready: datetime | None) -> CutShort | None:
    """What the status of the engine's container tells, in a pod that is not ready since `unready`.

    None where it ended by itself, for want of memory, or with words that name another cause; and where the
    pod was ready in that life, so that it was not the startup probe.
    """
    ended = last_end(engine)
    began, over = moment(ended.get("startedAt")), moment(ended.get("finishedAt"))
    if began is None or over is None or unready is None or unready > began:
        return None
    said = str(ended.get("message") or "").strip()
    if ended.get("exitCode") not in _FROM_OUTSIDE or ended.get("reason") == "OOMKilled":
        return None
    if cause_of_death(said) is not None:
        return None
    return CutShort((over - began).total_seconds(), int(engine.get("restartCount") or 0), said)


def last_end(container: dict[str, Any]) -> dict[str, Any]:
    """How the last life of a container ended, empty where none has."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    ended: dict[str, Any] = state.get("terminated") or last.get("terminated") or {}
    return ended


def out_of_time(cut: CutShort, spec: EffectiveSpec, patience_s: float) -> bool:
    """Whether a life lasted as long as one that the startup probe ends: the timeout, and at most what the
    container is then given to end, which `patience_s` covers.
    """
    allowed = spec.startup_timeout.seconds
    return allowed - _JITTER_S <= cut.lasted_s <= allowed + patience_s


def describe(pod: str, cut: CutShort, spec: EffectiveSpec) -> str:
    """That a start took too long, and what to do about it."""
    which = f"it has been ended {cut.restarts} times" if cut.again else "it is tried once more"
    faster = "weights in spec.model.cache, more CPU and memory in spec.engine.resources"
    if spec.traces_calls:
        faster = f"without {TRACE_VARIABLE} in spec.engine.env, which makes minutes of it an hour"
    words = f". It said last: {last_words(cut.said)}" if cut.said else ""
    return (
        f"the engine of pod {pod} was not up within spec.startup.timeout ({spec.startup_timeout}), {which}: "
        f"raise spec.startup.timeout, or let it start faster ({faster}){words}"
    )
