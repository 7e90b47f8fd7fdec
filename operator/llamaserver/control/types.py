"""The words of the control law: what is wanted, what bounds it, what was decided and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llamaserver.api.effective import named
from llamaserver.api.enums import Binding, LatencyScope, Precedence, ScalingMode, Statistic, TuningMode
from llamaserver.control.line import Load
from llamaserver.observe.types import Doubt


class Cause(StrEnum):
    """The one illness named for a LlamaServer at a time. CamelCase reasons are API: see
    docs/status-reference.md.
    """

    HEALTHY = "Healthy"
    STALE = "Stale"
    KV_PRESSURE = "KVPressure"
    PREFILL_INTERFERENCE = "PrefillInterference"
    DISTURBED = "Disturbed"
    STRAGGLER = "Straggler"
    OVER_BATCHED = "OverBatched"
    SLO_INFEASIBLE = "SLOInfeasible"
    CAP_LIMITED = "CapLimited"
    AT_CAPACITY = "AtCapacity"
    ROUTING_IMBALANCE = "RoutingImbalance"
    ADMISSION_ELSEWHERE = "AdmissionElsewhere"
    CAPACITY_EXHAUSTED = "CapacityExhausted"
    STALLED = "Stalled"
    IDLE = "Idle"


@dataclass(frozen=True, slots=True)
class Objective:
    """Targets in seconds. None for `itl_s` is the batch objective: as much throughput as memory and the
    plateau allow.
    """

    itl_s: float | None = None
    itl_statistic: Statistic = Statistic.P95
    queue_s: float | None = None
    queue_statistic: Statistic = Statistic.P95
    precedence: Precedence = Precedence.INTER_TOKEN_LATENCY
    itl_scope: LatencyScope = LatencyScope.TOKEN

    @property
    def of_requests(self) -> bool:
        """Whether the latency is that of whole answers, each by its time per output token."""
        return self.itl_scope is LatencyScope.REQUEST

    @property
    def itl_named(self) -> str:
        """The statistic of the latency as people read it."""
        return named(self.itl_statistic, self.itl_scope)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user allows. `cap_max` None means the engine's own ceiling."""

    cap_min: int = 1
    cap_max: int | None = None
    tuning: TuningMode = TuningMode.AUTO
    scaling: ScalingMode = ScalingMode.AUTO
    replicas_min: int = 1
    replicas_max: int = 1
    suspended: bool = False
    budget_moves: bool = True
    """Whether the prefill budget may be moved, too."""
    ceiling: int | None = None
    """What the spec starts engines with (maxNumSeqs): used where a pod does not tell it itself."""
    started: int | None = None
    """What engines are started with, where restarts for another cap are allowed; None where they are not."""
    rolling: str = ""
    """Digest of what else they are started with: with others, what was measured for restarts is forgotten."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas as Kubernetes sees them, for the slow loop."""

    replicas: int
    """Replicas asked of the Deployment now."""
    ready: int
    pending: int
    cold_start_s: float | None = None
    """From scheduled to ready, as measured on this fleet; None while unknown."""
    settled: bool = True
    """Every pod is started with what is declared now, and serves; none comes or goes."""
    rolling: bool = False
    """Pods are being replaced because what they are started with has changed."""


@dataclass(frozen=True, slots=True)
class Setpoint:
    """What one engine pod should run with. None leaves that knob at its start value."""

    max_num_active_seqs: int | None
    max_num_scheduled_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rule of the chain, asked and answered; kept so that a decision can be explained."""

    rule: str
    fired: bool
    reason: str
    evidence: Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True)
class StalledEngine:
    """An engine that has not got on for longer than any step of it may take: one with work, by the newest
    figures of its pod, or a core that is silent behind a server that answers.
    """

    pod: str
    incarnation: str
    still_s: float
    """As far as answers testify to it."""
    grace_s: float
    """Longer than any step of this engine may take, as far as its steps are known."""
    answers: int
    """How many testify to it."""
    running: int
    waiting: int
    silent: bool
    """The front end answers, and the engine core does not."""
    doubt: Doubt | None
    """Why it may be none that hangs; None where the scheduler's own account says it."""
    witnessed: bool
    """It was seen to get on, or to have nothing to do, before. Else it may have stood still for longer."""
    engine: int | None = None
    """Which of a pod's engines, where it has several and they answer one by one."""

    @property
    def worked(self) -> bool:
        """Whether it is known to have requests in hand; of a core that is silent, when it last spoke."""
        return self.running + self.waiting > 0


@dataclass(frozen=True, slots=True)
class Straggler:
    """A replica whose steps take longer than the others' for the same work, and has for long enough to be
    told.
    """

    pod: str
    step_s: float
    """Its mean step, by the newest figures."""
    ratio: float
    """Its steps over what the others take for the same work."""
    since: float
    slow: tuple[str, ...]
    """All that are slow like this, the one above first."""
    fit: int
    """Replicas that are as fast as each other."""
    lost: float
    """What is lost by the slow ones, in replicas: each makes 1 / ratio of the tokens it should."""

    @property
    def expected_s(self) -> float:
        """What the same step takes by the others' measure."""
        return self.step_s / self.ratio


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Requests go to replicas that are full, and wait there, while others have the room for all of them."""

    since: Mapping[str, float]
    """When each of the crowded replicas began to be one, the first of them first."""
    waiting: int
    """In the whole fleet."""
    roomy: int
    """Replicas with room."""
    room: int
    """Requests that these could take."""
    filled: float
    """Sequences in hand over places, of all replicas."""
    share: float
    """Part of the requests that came since then, to those that are crowded now."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one tick makes of it, for the choice of a restart."""

    live: bool
    """Some engine's cap can be moved while it runs."""
    live_ago_s: float
    """How long ago one last could be, where one may be again; infinite where none ever could, or what keeps
    every engine from it is here to stay.
    """
    started: int
    """--max-num-seqs of the engines."""
    wanted: int | None
    """The number that would just hold the objective; None where that is not known, for this reason."""
    reason: str
    running: int
    """Sequences that the fullest engine runs."""
    missed_s: float
    starved_s: float
    load: Load
    seen: str
    """The latency, in words."""
    cold_start_s: float | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause, in words people can act on. `advice` is empty when nothing needs doing by hand."""

    cause: Cause
    message: str
    advice: str
    evidence: Mapping[str, float | int | str]
    since: float
    """Monotonic seconds at which this cause began to hold."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The fleet's figures over the last usable windows, as status shows them. None means not known now."""

    itl_s: float | None
    """The declared statistic of the inter-token latency, of tokens or of the requests that finished."""
    itl_mean_s: float | None
    queue_s: float | None
    running: int | None
    waiting: int | None
    kv_usage: float | None
    preemptions_per_minute: float | None
    tokens_per_s: float | None
    slo_met: bool | None
    """Whether every declared objective is met: False when one is missed, None when none is declared or one
    is not known now.
    """
    itl_met: bool | None = None
    queue_met: bool | None = None
    """Each objective by itself; None when it is not declared or not known now."""
    itl_relation: str = "="
    """How `itl_s` is to be read: "=", or "<=" and ">=" where coarse buckets only give a bound."""
    itl_lacks: str = ""
    """Why `itl_s` is not known although tokens are made: what engines do not tell, or how few requests have
    finished.
    """


@dataclass(frozen=True, slots=True)
class Decision:
    """All that one tick concluded. Applying it is somebody else's work."""

    setpoints: Mapping[str, Setpoint]
    """By pod name; only pods whose tuner can be written and whose value is known. Complete: renew these
    leases.
    """
    replicas: int | None
    """Replicas to be applied, or None for no opinion (hold)."""
    recommended_replicas: int | None
    """Replicas that the demand wants, whoever owns the number: what to apply, what mode Recommend would, or
    the present number on hold. None in the modes Fixed and External.
    """
    replicas_reason: str
    observed: Observed
    diagnosis: Diagnosis
    trail: tuple[Verdict, ...]
    binding: Binding | None = None
    """Which knob holds requests back; None while not known."""
    prefill_budget: str = ""
    """`Live`, or why the prefill budget stays at its start value, in one word; "" where none is known."""
    stalled: tuple[StalledEngine, ...] = ()
    """The longest first."""
    moving: frozenset[str] = frozenset()
    """Pods of which every engine was seen to get on, or to have nothing to do, by this tick's figures."""
    ailing: Mapping[str, Cause] = field(default_factory=dict)
    """By pod: what ails this one and not all of them, whatever cause is named for the fleet."""
    restart: Found | None = None
    """What a restart for another cap would be chosen by; None where none is allowed or nothing is known."""
