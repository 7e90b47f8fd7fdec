"""Whether a status that was written still holds, so that a load that does not change costs no writes. Pure.

A figure is written anew when it has left a band round the written value: 10 %, or three times what it
scatters by itself where that is more. Requests that come by themselves make a number of four now two and now
seven; four streams are four, and a fifth is told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llamaserver.api.conditions import Condition, ConditionType
from llamaserver.api.status import DiagnosisStatus, EngineTuning, ObservedStatus, Status, TuningStatus

SHARE = 0.1
"""A figure holds while it is no further than this share from what is written."""
DEVIATIONS = 3.0
"""Or no further than so many standard deviations about its own level."""
FAR = 2.0
"""So many times as far off a figure cannot wait."""
MODEL_SHARE, LOAD_SHARE = 0.2, 0.5
"""How far what was learned may be from what a new leader is to start from: what takes long to learn, and what
it finds out anew within the first seconds.
"""

LEVEL_S, SCATTER_S = 30.0, 600.0
"""How fast the level of a figure follows it, and how long its scatter about that level is remembered: what
lasts longer than that is a change of the load, and no scatter.
"""

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_FIGURE = re.compile(r"[<>=]*(\d+(?:\.\d+)?)(ms|s|m|h)?")
_NUMBER = re.compile(r"(?<![\w.:/-])\d+(?:\.\d+)?(?: ?(?:ms|s|m|h)\b)?(?![\w/-]|[.:]\d)")
"""A number by itself, with its unit of time: not the digits of a name, an image or a date."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """How far one figure strays from its level: fading sums of squares and of their weights."""

    level: float
    squares: float = 0.0
    weight: float = 0.0

    def then(self, value: float, seconds: float) -> Scatter:
        """With one more value, so many seconds after the last one."""
        kept = math.exp(-seconds / SCATTER_S)
        return Scatter(
            level=value + (self.level - value) * math.exp(-seconds / LEVEL_S),
            squares=self.squares * kept + (1.0 - kept) * (value - self.level) ** 2,
            weight=self.weight * kept + (1.0 - kept),
        )

    @property
    def deviation(self) -> float:
        """Standard deviation, in the figure's unit; 0 while nothing is known."""
        return math.sqrt(self.squares / self.weight) if self.weight > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Scatters:
    """Those of all figures, by the field of status that has them. `at` is monotonic."""

    at: float = -math.inf
    known: Mapping[str, Scatter] = field(default_factory=dict)

    def then(self, observed: ObservedStatus | None, now: float) -> Scatters:
        """With the figures of one more tick. What is not known now is remembered."""
        found = dict(self.known)
        for name, value in _figures(observed).items():
            before = found.get(name)
            found[name] = Scatter(value) if before is None else before.then(value, max(0.0, now - self.at))
        return Scatters(now, found)

    def bands(self) -> dict[str, float]:
        """How far each figure may be from what is written for its scatter alone."""
        return {name: DEVIATIONS * scatter.deviation for name, scatter in self.known.items()}


def holds(written: Status, now: Status, bands: Mapping[str, float]) -> bool:
    """Whether `written` still says what `now` does, as nearly as anybody needs to know. `bands` says how far
    a figure may be off where that is more than SHARE.
    """
    return (
        roughly_holds(written, now, bands, times=1.0)
        and _model_holds(written.model, now.model, _running(now))
        and _diagnosis_holds(written.diagnosis, now.diagnosis)
        and _same_words(_reasons(written), _reasons(now))
    )


def roughly_holds(written: Status, now: Status, bands: Mapping[str, float], times: float = FAR) -> bool:
    """Whether what is off in `written` can wait: words, what was learned, and figures that are within so many
    times their bands.
    """
    return (
        _observed_holds(written.observed, now.observed, bands, times)
        and _conditions_hold(written.conditions or (), now.conditions or ())
        and _rest(written) == _rest(now)
    )


def near(written: float, now: float, *, share: float = SHARE, band: float = 0.0) -> bool:
    """Whether `now` is no further from what is written than `share` of the larger of both, or than `band`."""
    return abs(now - written) <= max(share * max(abs(written), abs(now)), band) + 1e-9


def same_words(written: str, now: str) -> bool:
    """Whether two texts differ in nothing but their figures."""
    return written == now or _NUMBER.sub("#", written) == _NUMBER.sub("#", now)


def _same_words(written: Iterable[str | None], now: Iterable[str | None]) -> bool:
    return all(same_words(a or "", b or "") for a, b in zip(written, now, strict=True))


def _figures(observed: ObservedStatus | None) -> dict[str, float]:
    """The figures that are known, as they are written: seconds, counts, rates and shares."""
    told = {} if observed is None else observed.model_dump(exclude_none=True, by_alias=False)
    return {name: _figure(value) for name, value in told.items()}


def _figure(value: str | int) -> float:
    found = _FIGURE.fullmatch(str(value))
    return math.nan if found is None else float(found[1]) * _SECONDS.get(found[2] or "", 1.0)


def _observed_holds(
    written: ObservedStatus | None, now: ObservedStatus | None, bands: Mapping[str, float], times: float
) -> bool:
    """That a figure became known or unknown is a change; `<=` before the same figure is none."""
    if written == now:
        return True
    before, after = _figures(written), _figures(now)
    return before.keys() == after.keys() and all(
        near(before[name], after[name], share=times * SHARE, band=times * bands.get(name, 0.0))
        for name in before
    )


_SLOW = frozenset(("kappa", "cap", "target_s", "quantile", "cold_start_s"))
"""Of what was learned: what is measured over minutes, or is known for certain."""
_STEP = frozenset(("a_s", "b_s", "c_s", "d_s", "g_s"))
"""The coefficients of a step's time. Where the load is always the same some grow at the cost of others, and
the steps stay as long: so they are judged by those.
"""


def _model_holds(written: Mapping[str, str] | None, now: Mapping[str, str] | None, running: float) -> bool:
    if written is None or now is None or written == now:
        return written == now
    if written.keys() != now.keys():
        return False
    before, after = ({name: float(value) for name, value in told.items()} for told in (written, now))
    return all(
        near(before[name], after[name], share=MODEL_SHARE if name in _SLOW else LOAD_SHARE)
        for name in before.keys() - _STEP
    ) and all(
        near(was, is_, share=MODEL_SHARE)
        for was, is_ in zip(_steps(before, after, running), _steps(after, after, running), strict=True)
    )


def _steps(model: Mapping[str, float], load: Mapping[str, float], running: float) -> tuple[float, float]:
    """Seconds that a step of so many decodes takes by the model, and one with a prompt of the load beside."""
    a, b, c, d, g = (model.get(f"{name}_s", 0.0) for name in "abcdg")
    decodes = a + (b + g * load.get("context", 0.0)) * max(1.0, running)
    return decodes, decodes + c + d * load.get("prompt", 0.0)


def _running(status: Status) -> float:
    return float((status.observed and status.observed.running) or 0)


def _diagnosis_holds(written: DiagnosisStatus | None, now: DiagnosisStatus | None) -> bool:
    """The figures in its words and its evidence are those that it was last written with."""
    if written is None or now is None or written == now:
        return written == now
    return (written.cause, written.since) == (now.cause, now.since) and _same_words(
        (written.message, written.advice), (now.message, now.advice)
    )


_TOLD_BY_FIGURES = (ConditionType.SLO_MET, ConditionType.STALLED)
"""Conditions whose message repeats the diagnosis."""


def _conditions_hold(written: tuple[Condition, ...], now: tuple[Condition, ...]) -> bool:
    return len(written) == len(now) and all(map(_condition_holds, written, now))


def _condition_holds(written: Condition, now: Condition) -> bool:
    if written == now:
        return True
    told = written.type in _TOLD_BY_FIGURES and same_words(written.message, now.message)
    return told and written.model_copy(update={"message": now.message}) == now


def _reasons(status: Status) -> tuple[str | None, ...]:
    """Words with figures in them that say why something is not done."""
    return tuple(
        None if group is None else group.reason for group in (status.scaling, status.restart, status.recovery)
    )


def _rest(status: Status) -> Status:
    """Everything that has to be told as it is."""
    judged: dict[str, object] = dict.fromkeys(("observed", "diagnosis", "model", "conditions"))
    for name in ("scaling", "restart", "recovery"):
        group = getattr(status, name)
        judged[name] = None if group is None else group.model_copy(update={"reason": None})
    judged["tuning"] = None if status.tuning is None else _without_load(status.tuning)
    return status.model_copy(update=judged)


def _without_load(tuning: TuningStatus) -> TuningStatus:
    """The load of each engine is a detail of the fleet's figures: it is as old as they are."""
    pods = tuple(
        pod.model_copy(update={"engines": pod.engines and tuple(map(_cap_alone, pod.engines))})
        for pod in tuning.pods or ()
    )
    return tuning.model_copy(update={"pods": pods or None})


def _cap_alone(engine: EngineTuning) -> EngineTuning:
    return engine.model_copy(update={"running": None, "waiting": None, "kv_cache_usage": None})
