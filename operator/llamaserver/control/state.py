"""What the control law remembers between ticks, and the small part of it that outlives the operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from llamaserver.api.enums import Binding
from llamaserver.control.answers import Answers, Finished
from llamaserver.control.arrivals import Arrivals
from llamaserver.control.history import History
from llamaserver.control.kv import KvState
from llamaserver.control.line import Line
from llamaserver.control.model import StepModel, remembered
from llamaserver.control.types import Cause, Setpoint
from llamaserver.observe.fleet import FleetWindow


@dataclass(frozen=True, slots=True)
class Learned:
    """What a new operator needs to go on where the last one stopped. Seconds, tokens and ratios; 0 is
    "unknown".

    The step model (a to c, noise), the tail (kappa: the objective's statistic over the mean), the load
    (context, prefill, mixed, prompt, output, stop_ratio), the KV cache (sharing, trust), and the cap that
    held `target_s` at `quantile` (0 for a mean).
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
    tail: float = 0.0
    """Of control/joint.py; 0 where the prefill budget was not moved."""
    cold_start_s: float = 0.0
    stop_ratio: float = 0.0
    per_request: float = 0.0
    """1 where kappa and cap are of an objective of requests, 0 where they are of one of tokens."""

    def to_dict(self) -> dict[str, float]:
        """Every figure by its name; that of the scope only where it is not the usual one."""
        found = {name: float(value) for name, value in asdict(self).items()}
        if not self.per_request:
            del found["per_request"]
        return found

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> Learned:
        """Numbers, or text that is a number. Raises ValueError for anything missing, unknown or not to be
        believed. What an older version did not learn is unknown.
        """
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(raw) - known):
            raise ValueError(f"unknown learned figure {unknown[0]!r}")
        raw = {**_LEARNED_LATER, **raw}
        if missing := sorted(known - set(raw)):
            raise ValueError(f"learned figure {missing[0]!r} is missing")
        values = {name: _number(name, raw[name]) for name in known}
        if values["a_s"] <= 0.0 or not 0.0 < values["noise"] <= 1.0 or not 0.0 < values["trust"] <= 1.0:
            raise ValueError("learned figures out of range: a_s > 0, noise and trust in (0, 1] are needed")
        if values["kappa"] <= 0.0 or values["sharing"] <= 0.0 or not 0.0 <= values["quantile"] < 1.0:
            raise ValueError(
                "learned figures out of range: kappa, sharing > 0, quantile in [0, 1) are needed"
            )
        if values["stop_ratio"] > 1.0 or values["per_request"] > 1.0:
            raise ValueError("learned figures out of range: stop_ratio, per_request in [0, 1] are needed")
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
            seed=self.stop_ratio if self.stop_ratio > 0.0 else None,
        )


_LEARNED_LATER: Mapping[str, object] = {"stop_ratio": 0.0, "tail": 0.0, "per_request": 0.0}
"""Figures that a status may lack, mostly for an older version wrote it, and what stands for them."""


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
    before_kv: int | None = None
    """The cap that the KV ceiling cut; it may be had back at once when that rises again."""
    failed: int | None = None
    """The lowest cap that missed the objective; not tried again before `failed_until`."""
    failed_until: float = -math.inf
    asked: tuple[float | None, str] = (None, "")
    """The objective that all this was learned for."""
    history: History = field(default_factory=History)
    kv: KvState = field(default_factory=KvState)
    context: float = 0.0
    """Resident tokens per decoding sequence, quick to believe a rise."""
    usual_context: float = 0.0
    """The same over the time that it takes to replace those that run."""
    dispersion: float = 1.0
    """How much burstier the tail is than independent steps would be."""
    budget: int | None = None
    """The prefill budget wanted, None for what the engine started with."""
    tail: float | None = None
    """The declared percentile over what the model gives for a full step; see control/joint.py."""
    cut_tail: float | None = None
    """The tail at the last cut that left prefill its share."""
    rare_since: float | None = None
    """Since when prompts are too rare for the percentile to see them."""
    best: int | None = None
    """Where the cap is heading, by the newest estimate; for telling people."""
    advised: Setpoint | None = None
    """Both knobs as they were advised last, for an engine that is only looked at."""
    answers: Answers = field(default_factory=Answers)
    """Its finished requests; followed where the objective is one of requests."""
    kappa: float | None = None
    """The statistic of those over the mean of tokens, as the law works with it."""


@dataclass(frozen=True, slots=True)
class DiagnosisState:
    cause: Cause = Cause.STALE
    since: float = 0.0
    recent: tuple[Cause, ...] = ()
    """What the rules said on the last ticks, newest last."""


@dataclass(frozen=True, slots=True)
class BindingState:
    """The knob named as binding, and how often in a row another one was found."""

    named: Binding | None = None
    other: Binding | None = None
    times: int = 0


@dataclass(frozen=True, slots=True)
class Spell:
    """Something that holds since then, and was last seen to hold then."""

    since: float
    seen: float


LAPSE_S = 8.0
"""A spell outlasts a lapse no longer than this: one request has ended and the next is not admitted yet."""


def spell(before: Spell | None, holds: bool, now: float) -> Spell | None:
    """The spell after one more look."""
    if holds:
        return Spell(now, now) if before is None else Spell(before.since, now)
    return None if before is None or now - before.seen > LAPSE_S else before


@dataclass(frozen=True, slots=True)
class Pace:
    """How a replica's steps compare with what the shared step model gives for their work."""

    at: float
    step_s: float
    """The newest mean step."""
    off: float
    """Logarithm of steps over the model's, smoothed."""
    doubt: float
    """Standard deviation of what the model says there, as a share of it, smoothed."""


@dataclass(frozen=True, slots=True)
class PaceState:
    """Which replica keeps up with the others; see control/straggler.py."""

    paces: Mapping[str, Pace] = field(default_factory=dict)
    slow: Mapping[str, Spell] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImbalanceState:
    """Which replicas have a queue while others have room; see control/imbalance.py."""

    crowded: Mapping[str, Spell] = field(default_factory=dict)
    came: Mapping[str, float] = field(default_factory=dict)
    """Requests that came to each replica since the first of these spells began."""
    roomy: int = 0
    """Replicas with room, and how much, when this was last seen."""
    room: int = 0


@dataclass(frozen=True, slots=True)
class Trend:
    """How the latency of a fleet has gone with its streams; see control/trend.py."""

    line: Line = field(default_factory=Line)
    beside: float = 1.0
    """Running sequences, prefilling ones too, for each stream that decodes."""
    load: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Fading sums: resident token seconds, sequence seconds, prompt tokens computed, tokens generated."""
    asked: tuple[float | None, str, str] = (None, "", "")
    """The objective that what follows is about, and a digest of what engines are started with."""
    live_at: float = -math.inf
    """When the cap of an engine could be moved last."""
    statistic_s: float | None = None
    """Its statistic, and the mean beside it, smoothed."""
    mean_s: float | None = None
    missed: Spell | None = None
    """For how long the latency objective has been missed."""
    starved: Spell | None = None
    """For how long requests have waited for full engines although the objective held."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The demand of one tick, over all replicas that gave figures."""

    at: float
    in_hand: float | None
    """Sequences that ran and waited; None when a replica was out of sight."""
    at_least: float
    """Those of the replicas in sight."""
    arrivals: Arrivals
    finished: int
    """Requests that ended, of replicas that tell."""
    decoded: int
    """Tokens, first ones left out, of the same replicas."""


@dataclass(frozen=True, slots=True)
class DemandState:
    """The slow loop's memory: the demand over its look-back, and its own last moves."""

    seen: tuple[Seen, ...] = ()
    held: Mapping[str, int] = field(default_factory=dict)
    """Requests in hand of each replica when it last gave figures."""
    serves: float | None = None
    """Tokens per second that a replica makes at the objective; None while unknown."""
    fit: float = 1.0
    """What full replicas made over what the step model gives for them."""
    fitted: StepModel | None = None
    """The model that `fit` is of."""
    queue_bad: Spell | None = None
    """For how long the queue objective has been missed."""
    full: Spell | None = None
    """For how long requests have waited although every replica was full at its settled cap."""
    short: Spell | None = None
    """For how long the demand has needed more replicas than there are."""
    evaluated_at: float = -math.inf
    changed_at: float = -math.inf
    risen_at: float = -math.inf
    """When the replicas that start were asked for, the first of them."""
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
    pace: PaceState = field(default_factory=PaceState)
    imbalance: ImbalanceState = field(default_factory=ImbalanceState)
    diagnosis: DiagnosisState = field(default_factory=DiagnosisState)
    binding: BindingState = field(default_factory=BindingState)
    moments: tuple[Moment, ...] = ()
    """The fleet's newest windows: what people judge, and how fast requests leave."""
    finished: tuple[Finished, ...] = ()
    """The requests that an objective of requests is judged by now."""
    relief: float = 1.0
    """How far the ITL target is stretched because the queue has precedence; 1 is not at all."""
    trend: Trend = field(default_factory=Trend)
    """For restarts, where caps cannot be moved."""
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
