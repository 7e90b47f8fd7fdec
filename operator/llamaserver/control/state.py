"""What the control law remembers between ticks, and the small part of it that outlives the operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from llamaserver.control.history import History
from llamaserver.control.kv import KvState
from llamaserver.control.model import StepModel, remembered
from llamaserver.control.types import Cause
from llamaserver.observe.fleet import FleetWindow


@dataclass(frozen=True, slots=True)
class Learned:
    """What a new operator needs to go on where the last one stopped. Seconds, tokens and ratios; 0 is
    "unknown".

    The step model (a to c, noise), the tail (kappa: the objective's statistic over the mean), the load
    (context, prefill, mixed, prompt, output), the KV cache (sharing, trust), and the cap that held `target_s`
    at `quantile` (0 for a mean).
    """

    a_s: float
    b_s: float
    g_s: float
    d_s: float
    c_s: float = 0.0
    noise: float = 0.03
    kappa: float = 1.0
    context: float = 0.0
    prefill: float = 0.0
    mixed: float = 0.0
    prompt: float = 0.0
    output: float = 0.0
    sharing: float = 1.0
    trust: float = 1.0
    cap: float = 0.0
    target_s: float = 0.0
    quantile: float = 0.0
    cold_start_s: float = 0.0

    def to_dict(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> Learned:
        """Numbers, or text that is a number. Raises ValueError for anything missing, unknown or not to be
        believed.
        """
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(raw) - known):
            raise ValueError(f"unknown learned figure {unknown[0]!r}")
        if missing := sorted(known - set(raw)):
            raise ValueError(f"learned figure {missing[0]!r} is missing")
        values = {name: _number(name, raw[name]) for name in known}
        if values["a_s"] <= 0.0 or not 0.0 < values["noise"] <= 1.0 or not 0.0 < values["trust"] <= 1.0:
            raise ValueError("learned figures out of range: a_s > 0, noise and trust in (0, 1] are needed")
        if values["kappa"] <= 0.0 or values["sharing"] <= 0.0 or not 0.0 <= values["quantile"] < 1.0:
            raise ValueError(
                "learned figures out of range: kappa, sharing > 0, quantile in [0, 1) are needed"
            )
        return cls(**values)

    def model(self) -> StepModel:
        return remembered(self.a_s, self.b_s, self.g_s, self.d_s, self.c_s, self.noise)

    def kv(self) -> KvState:
        known = self.prompt > 0.0 or self.output > 0.0
        return KvState(
            prompt=self.prompt if known else None,
            output=self.output if known else None,
            sharing=self.sharing,
            trust=self.trust,
        )


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"learned figure {name} is no number: {str(value)[:20]!r}")
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"learned figure {name} is no number: {str(value)[:20]!r}") from error
    # c_s, the price of carrying prefill, may be a little below zero; nothing else may.
    if not math.isfinite(number) or (number < 0.0 and name != "c_s") or abs(number) > 1e9:
        raise ValueError(f"learned figure {name} is out of range: {number}")
    return number


@dataclass(frozen=True, slots=True)
class PodState:
    """One engine pod."""

    incarnation: str
    cap: int | None = None
    """The cap wanted, None while it cannot be known or set."""
    changed_at: float = -math.inf
    raised_at: float = -math.inf
    cut_at: float = -math.inf
    patience_s: float = 0.0
    """How long after a cut no raise is tried; grows when a raise had to be taken back."""
    failed: int | None = None
    """The lowest cap that missed the objective; not tried again before `failed_until`."""
    failed_until: float = -math.inf
    asked: tuple[float | None, str] = (None, "")
    """The objective that all this was learned for."""
    history: History = field(default_factory=History)
    kv: KvState = field(default_factory=KvState)
    context: float = 0.0
    """Resident tokens per decoding sequence, quick to believe a rise."""
    dispersion: float = 1.0
    """How much burstier the tail is than independent steps would be."""
    best: int | None = None
    """Where the cap is heading, by the newest estimate; for telling people."""


@dataclass(frozen=True, slots=True)
class DiagnosisState:
    cause: Cause = Cause.STALE
    since: float = 0.0
    recent: tuple[Cause, ...] = ()
    """What the rules said on the last ticks, newest last."""


@dataclass(frozen=True, slots=True)
class Spell:
    """Something that holds since then, and was last seen to hold then."""

    since: float
    seen: float


@dataclass(frozen=True, slots=True)
class DemandState:
    """The slow loop's memory: (time, sequences in demand) over its look-back, and its own last moves."""

    seen: tuple[tuple[float, float], ...] = ()
    queue_bad: Spell | None = None
    """For how long the queue objective has been missed."""
    full: Spell | None = None
    """For how long requests have waited although every replica was full at its settled cap."""
    evaluated_at: float = -math.inf
    changed_at: float = -math.inf
    wanted: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """The fleet's window of one tick, kept because statistics are judged over several of them."""

    at: float
    fleet: FleetWindow
    seconds: float


@dataclass(frozen=True, slots=True)
class State:
    """Everything the control law remembers of one LlamaServer between ticks."""

    seed: Learned | None
    model: StepModel | None
    ticked_at: float
    pods: Mapping[str, PodState] = field(default_factory=dict)
    demand: DemandState = field(default_factory=DemandState)
    diagnosis: DiagnosisState = field(default_factory=DiagnosisState)
    moments: tuple[Moment, ...] = ()
    """The fleet's newest windows: what people judge, and how fast requests leave."""
    relief: float = 1.0
    """How far the ITL target is stretched because the queue has precedence; 1 is not at all."""
    kappa: float = 1.0
    newest: Learned | None = None

    def learned(self) -> Learned | None:
        """What is worth keeping in status; None until a model was learned."""
        return self.newest


def initial(learned: Learned | None, now: float) -> State:
    """The state of an operator that just started, with what the last one left behind."""
    return State(
        seed=learned,
        model=None if learned is None else learned.model(),
        ticked_at=now,
        diagnosis=DiagnosisState(since=now),
        kappa=1.0 if learned is None else learned.kappa,
        newest=learned,
    )
