"""What an engine said, and what can be concluded from two of its statements.

A `Sample` holds cumulative figures and gauges at one moment. A `Window` is the exact difference of two
samples of the same incarnation. Neither knows anything of Kubernetes. Times are seconds of the operator's
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Where a sample came from, best first."""

    TUNER = "Tuner"
    TUNER_AND_METRICS = "TunerAndMetrics"
    """Engines and steps from the tuner, figures of requests from /metrics."""
    METRICS = "Metrics"
    PROMETHEUS = "Prometheus"
    """The figures of /metrics, as a Prometheus has them."""


class Unusable(StrEnum):
    """Why a pod gave no window this time. Never to be read as zero load."""

    FIRST = "First"
    """Nothing recent enough to compare this sample with."""
    STALE = "Stale"
    """It answers, has work, and none of its counters moved."""
    UNREACHABLE = "Unreachable"
    NOT_SCRAPED = "NotScraped"
    """The Prometheus that is asked for it has nothing, or nothing newer than is known."""
    ENGINE_SILENT = "EngineSilent"
    """The front end answers and its engine core does not."""
    RESTARTED = "Restarted"
    LYING = "Lying"
    """Figures that cannot be: NaN, negative, or at odds with each other."""
    MISSING = "MissingFamily"
    UNKNOWN_SCHEMA = "UnknownSchema"


class Doubt(StrEnum):
    """Why what looks like an engine that hangs may be none: nothing is done to a pod on such figures."""

    METRICS = "Metrics"
    """/metrics alone may show requests that were aborted long ago."""
    PROMETHEUS = "Prometheus"
    """The same figures, and older ones."""
    STEPS_UNKNOWN = "StepsUnknown"
    """The tuner does not count the scheduler's steps, and the front end's counters speak in their place."""
    PAUSE_UNKNOWN = "PauseUnknown"
    """The tuner does not tell whether the engine was told to pause."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A cumulative distribution of durations in seconds.

    `edges[i]` is the upper edge of `counts[i]` (not cumulative over buckets); the last edge is +inf. Exact
    digests and Prometheus histograms both take this form, so they subtract, add and answer quantiles alike.
    """

    count: int
    sum_s: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    exact: bool
    """True for the tuner's digest (relative error at most 2 %), False for a histogram with coarse buckets."""


@dataclass(frozen=True, slots=True)
class StepMoments:
    """Exact sums over engine steps for a least-squares fit of the step's duration.

    B decoding sequences, K resident KV tokens, P prefill tokens (all counts), y duration in microseconds.
    """

    n: int = 0
    B: int = 0
    K: int = 0
    P: int = 0
    y: int = 0
    BB: int = 0
    BK: int = 0
    BP: int = 0
    By: int = 0
    KK: int = 0
    KP: int = 0
    Ky: int = 0
    PP: int = 0
    Py: int = 0
    yy: int = 0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sums of tokens over some requests that are in an engine now."""

    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    """So far."""
    max_tokens: int = 0
    """What they may generate at most."""


@dataclass(frozen=True, slots=True)
class Load:
    """How long the requests are that an engine runs (all of them) and that wait (those in front).

    `bounded` ones may generate less than the model's length, so their `max_tokens` says something.
    """

    running: Lengths
    running_unbounded: Lengths
    waiting: Lengths
    waiting_unbounded: Lengths


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine core (data-parallel rank) of a pod: gauges, what is in force, its step sums."""

    engine: int
    running: int
    """What the cap counts: sequences that run, and sessions paused for more input, which keep their place."""
    waiting: int
    waiting_deferred: int
    kv_usage: float
    """Share of KV blocks in use, 0 to 1."""
    kv_capacity_tokens: int | None
    preemptions: int
    max_num_seqs: int | None = None
    """The ceiling the engine started with. None when only /metrics is there."""
    max_num_batched_tokens: int | None = None
    start_num_active_seqs: int | None = None
    max_num_active_seqs: int | None = None
    """The cap in force, read back from the scheduler."""
    max_num_scheduled_tokens: int | None = None
    """The token budget in force, read back from the scheduler at this moment: at least the one wanted."""
    min_num_scheduled_tokens: int | None = None
    live_cap: str = "NoTuner"
    """Empty when the cap can be set live, else a CamelCase reason."""
    live_budget: str = "NoTuner"
    start_num_scheduled_tokens: int | None = None
    """The token budget the engine started with: the upper bound of what can be set."""
    wanted_num_scheduled_tokens: int | None = None
    """The budget that was asked for. Where a lowered one would starve somebody, the tuner lifts the one in
    force above it, step by step: while a lowered cap drains, and while a prompt stands before a decode.
    """
    tokens_per_seq: int | None = None
    """What one decoding sequence takes from the budget: 1, and its speculative tokens."""
    chunk_reserve: int | None = None
    """Tokens beyond the decodes' own without which prefill could not get on."""
    max_model_len: int | None = None
    """The longest that a sequence can get, prompt and answer, in tokens."""
    generation: int = 0
    lease_expires_in_s: float | None = None
    decode_steps: StepMoments | None = None
    mixed_steps: StepMoments | None = None
    load: Load | None = None
    """None where the tuner does not tell it."""
    parked: int = 0
    """Of `running`: sessions paused for more input, which make no steps."""
    paused: bool | None = None
    """Somebody told the engine to stand still (vLLM's /pause and /sleep); None where that is not known."""
    skipped_steps: int = 0
    """Steps that were made and are not among the step sums."""
    generation_tokens: int | None = None
    """Cumulative tokens that it has generated, as its front end counts; None where the pod's engines are not
    told apart there.
    """
    step_tokens: int | None = None
    """Cumulative tokens that its steps worked on, of prompts and generated, by the same count."""

    @property
    def kept_num_scheduled_tokens(self) -> int | None:
        """The budget that the engine keeps to: the one wanted where it can be moved and is told, else the one
        in force.
        """
        wanted = None if self.live_budget else self.wanted_num_scheduled_tokens
        return self.max_num_scheduled_tokens if wanted is None else wanted

    @property
    def movable(self) -> int:
        """Requests that get on in an engine that works: neither parked, nor deferred, nor known to be told
        to wait.
        """
        return 0 if self.paused else max(0, self.running - self.parked) + self.waiting_for_room

    @property
    def waiting_for_room(self) -> int:
        """Without those that wait for something else than the scheduler's room."""
        return max(0, self.waiting - self.waiting_deferred)


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything one pod said at one moment. Cumulative counts start at the incarnation's start."""

    at: float
    source: Source
    incarnation: str
    """Changes when the engine restarts: pod uid, container restart count and, from the tuner, the boot id."""
    engines: tuple[EngineState, ...]
    itl: Distribution
    tpot: Distribution | None
    ttft: Distribution | None
    queue: Distribution | None
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    generation_tokens: int
    finished: int | None
    engine_steps: int | None
    """Cumulative count of steps that produced output, or None when unknown."""
    arrived: int | None = None
    finished_prompt_tokens: int | None = None
    finished_generation_tokens: int | None = None
    """Tokens of finished requests alone: divided by `finished`, their mean lengths."""
    bounded_max_tokens: int | None = None
    bounded_generation_tokens: int | None = None
    """Of finished requests whose `max_tokens` said something: what they were allowed and what they made."""
    unpaced: int | None = None
    """Finished requests of at most one token that `tpot` counts as 0 s; None where it counts none of them."""
    clock_s: float | None = None
    """The engine's own monotonic clock, which times a window better than when the answer arrived."""
    every_s: float | None = None
    """How far apart samples of this source are, in seconds; None where it tells whenever it is asked."""
    writable: bool = False
    """True when the pod's tuner takes signed changes now."""
    reason: str = "NoTuner"
    message: str = ""
    version: str = ""
    """vLLM's version, where the pod says it."""
    boot_id: str = ""
    """The tuner's name for this start of the server, which a change must carry; empty without a tuner."""
    notes: tuple[str, ...] = ()
    """What was odd but harmless, for status and logs."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A scrape that gave nothing to work with."""

    at: float
    why: Unusable
    message: str
    incarnation: str = ""
    """As far as it is known without the tuner's answer: pod uid and container restart count; else empty."""


@dataclass(frozen=True, slots=True)
class Still:
    """An engine has work and does not get on, as answers of its pod testify: answers that are missing are
    none.
    """

    since: float
    """When it last got on, or the first answer that testifies to this."""
    until: float
    """The newest answer that testifies to it: nothing is known of later."""
    witnessed: bool
    """It was seen to get on, or to have nothing to do, before `since`; else perhaps not."""
    answers: int
    """How many testify to it. One that is handed out again is not another."""
    running: int
    waiting: int
    """What is in hand, without what waits for something outside of the scheduler."""
    silent: bool
    """The front end answers, and the engine core does not."""
    doubt: Doubt | None
    """None where it is the scheduler's own account, and complete."""
    incarnation: str
    engine: int
    """Its index in the pod."""


@dataclass(frozen=True, slots=True)
class Window:
    """Exact deltas between two samples of one incarnation, plus the gauges at the window's end.

    `dt` is in seconds. `itl`, `ttft`, `queue`, `tpot` hold only what happened inside the window; `tpot` has
    one value for each request that finished and had more than one token.
    """

    pod: str
    at: float
    dt: float
    last: Sample
    itl: Distribution
    tpot: Distribution | None
    ttft: Distribution | None
    queue: Distribution | None
    steps: int | None
    decode_steps: StepMoments | None
    mixed_steps: StepMoments | None
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    generation_tokens: int
    finished: int | None
    arrived: int | None
    finished_prompt_tokens: int | None
    finished_generation_tokens: int | None
    bounded_max_tokens: int | None
    bounded_generation_tokens: int | None
    preemptions: int
    running: int
    waiting: int
    waiting_deferred: int
    kv_usage: float
    still: Still | None = None
    """Of the engine that has stood still longest although it has work; figures of others may have moved."""

    @property
    def waiting_for_room(self) -> int:
        """Without those that wait for something else than the scheduler's room."""
        return max(0, self.waiting - self.waiting_deferred)


@dataclass(frozen=True, slots=True)
class NoWindow:
    """A pod that gave no usable window, and why. `last` is its newest usable sample, if any."""

    pod: str
    at: float
    why: Unusable
    message: str
    last: Sample | None
    since: float
    """When this pod last gave something usable, or was first asked: how long nothing has been known."""
    still: Still | None = None
    """As in `Window`; None also where this very answer is missing."""


Windows = Mapping[str, Window | NoWindow]
"""By pod name. A pod that was asked and is not in here does not exist."""
