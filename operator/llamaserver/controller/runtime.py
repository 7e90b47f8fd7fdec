"""What is remembered of each LlamaServer between looks and ticks. Rebuilt by looking; nothing here is the
only copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.errors import InvalidSpec
from llamaserver.api.server import LlamaServer
from llamaserver.api.status import MAX_DECISIONS, DecisionStatus, RecoveryStatus, RestartStatus, Status
from llamaserver.cluster.kinds import Kind, Object
from llamaserver.control import Decision, Learned, Observed, State
from llamaserver.control.recovery import Replace
from llamaserver.controller.downloads import Told
from llamaserver.controller.queue import Key
from llamaserver.controller.retune import InForce
from llamaserver.controller.steady import Scatters, holds, roughly_holds
from llamaserver.observe import Memory

IN_FORCE = "InForce"
DRAINING = "Draining"
"""More sequences run than a lowered cap allows; none is started until they are fewer."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One of the engines of a pod. `num_seqs` is its cap in force, None where it does not tell."""

    index: int
    num_seqs: int | None
    running: int
    waiting: int
    kv_usage: float


FAR_S, APART_S = 8.0, 30.0
"""For APART_S figures have to be out of their bands before they are written, and for FAR_S if they are far
out: noise comes back, and a burst is within the figures for as long as they look back. With a tick every two
seconds a change that is no matter of opinion is in status within ten.
"""
FIGURES_S = 10.0
"""Nor are they written more often than that."""
LEARNED_S, LEARNED_MOST_S, LEARNED_GROWTH = 60.0, 3600.0, 4.0
"""How often what was learned is written, at most. For its own sake it is written after a pause that grows
from the first to the second: a load that does not change soon has nothing more to teach.
"""


@dataclass(frozen=True, slots=True)
class PodReport:
    """One pod that was asked. `state` is `InForce`, or one CamelCase word for why the cap is not what was
    wanted.
    """

    name: str
    num_seqs: int | None
    num_scheduled_tokens: int | None
    ceiling: int | None
    running: int | None
    waiting: int | None
    state: str
    message: str = ""
    engines: tuple[EngineReport, ...] = ()
    """One by one, where there are several."""
    cause: str = ""
    """What ails this pod and not all of them."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one tick saw and did, for status, events and metrics. `at` and `asked_at` are monotonic."""

    at: float
    asked_at: float
    """When the pods were asked: what they told is no older."""
    decision: Decision
    pods: tuple[PodReport, ...]
    silent: Mapping[str, str]
    """By pod: why it gave no sample this time."""
    unavailable: Mapping[str, str]
    """By pod: `Reason: message` where the running engine cannot be changed."""
    failed: Mapping[str, str]
    """By pod: `Reason: message` where a change was not applied."""
    partial: bool
    """Engines of one pod differ after a change."""
    foreign: str = ""
    """The pod on which another leader's change was seen while this one cannot prove that it leads."""
    every_s: float | None = None
    """How far apart the figures are, where a Prometheus scrapes them."""
    generation: int | None = None
    """Of the spec that was decided by; None for one of which only the content is known."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The eviction that was asked for last: of which pod, and when; monotonic."""

    uid: str
    at: float
    accepted: bool | None
    """None where there was no answer."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A decision of which it is not told yet what came. Times are monotonic seconds."""

    entry: DecisionStatus
    before: Observed
    at: float
    holds_since: float | None = None


@dataclass(frozen=True, slots=True)
class Referent:
    """An object that a spec refers to, as it was read at a time; monotonic."""

    at: float
    known: bool
    """Whether the API server answered."""
    obj: Object | None
    """What is remembered of it; None where it does not exist, or is not known."""


@dataclass
class Server:
    """One LlamaServer. `spec` is the last one that could be acted upon; `invalid` says that a newer one
    cannot, or that what it names is gone.
    """

    key: Key
    uid: str
    parsed: LlamaServer | None = None
    spec: EffectiveSpec | None = None
    invalid: InvalidSpec | None = None
    missing_since: datetime | None = None
    """Since when something that the present spec names is known to be missing."""
    generation: int | None = None
    """Of the spec in force; None for one that was only found on the Deployment."""

    memory: Memory = field(default_factory=Memory)
    state: State | None = None
    decided_replicas: int | None = None
    recommended_replicas: int | None = None
    recommended: dict[str, InForce] = field(default_factory=dict)
    newest: Report | None = None
    """What the last tick found, whether or not it is told yet."""
    report: Report | None = None
    downloads: dict[str, Told] = field(default_factory=dict)
    """What the pods that download their model last answered."""
    ticking_since: float | None = None
    decisions: deque[DecisionStatus] = field(default_factory=lambda: deque(maxlen=MAX_DECISIONS))
    followed: list[Followed] = field(default_factory=list)
    """Of these it is not told yet what came of them."""
    refused: dict[str, set[str]] = field(default_factory=dict)
    """By pod: why its engine refused to be changed since it last was, as told among the decisions."""

    apply_problem: tuple[str, str] | None = None
    """Reason and message of a child that could not be made."""
    waits_for: str = ""
    """What has to go before the children can be made."""
    wanted_mark: str = ""
    """What the Deployment has to say it was made from."""
    settled: str = ""
    """Of which pod template the Deployment's status told last."""
    seen: dict[tuple[Kind, str], Referent] = field(default_factory=dict)
    """What the spec refers to, as it was last read."""
    cold_starts: dict[str, float | None] = field(default_factory=dict)
    """Seconds by pod uid, as each pod told when it was first seen ready: what it tells later may be the end
    of a spell in which it was not.
    """
    shrinks_since: float | None = None
    """When a scale-down that is not done yet was first seen; monotonic."""
    recovery: RecoveryStatus | None = None
    """What was done about engines that hang, as status is to say it."""
    replacing: Replace | None = None
    """The pod that has to go for it, as the present look decided."""
    asked: Asked | None = None
    """The last eviction for it that this replica asked for; None while one is under way."""
    restart: RestartStatus | None = None
    """The last restart for another cap, as status is to say it."""
    chosen: RestartStatus | None = None
    """The restart that engines are started by, which is written; None where that is what the spec says."""
    replaces_pods: bool = False
    """Whether the last write to the Deployment replaces pods."""
    written: Status | None = None
    """The status that was last written or found."""
    written_at: float = float("-inf")
    learned_at: float = float("-inf")
    learned_pause_s: float = LEARNED_S
    composed: Status | None = None
    """The status as it should be by the last look, whether or not it was written."""
    scatters: Scatters = field(default_factory=Scatters)
    bands: Mapping[str, float] = field(default_factory=dict)
    """How far figures may be from those that are written for their scatter."""
    apart_since: float | None = None
    """Since when figures have been out of the bands round those that are written; monotonic."""
    far_since: float | None = None
    """Since when they have been far out."""

    def learned(self, now: float) -> Learned | None:
        """What was learned, when it is time to write it with whatever else is written."""
        if self.state is None or now - self.learned_at < LEARNED_S:
            return None
        return self.state.learned()

    def rewritten_in(self, shown: Status, now: float) -> float | None:
        """After how many seconds of this the figures of `shown` are to be written; None while those that are
        written hold.
        """
        written = self.written or Status()
        if self.apart_since is None:
            # A change that is being judged must not widen the band that it is judged by.
            self.bands = self.scatters.bands()
        if now - self.learned_at < self.learned_pause_s:
            shown = shown.model_copy(update={"model": written.model})
        apart = not holds(written, shown, self.bands)
        far = apart and not roughly_holds(written, shown, self.bands)
        self.apart_since = _since(self.apart_since, apart, now)
        self.far_since = _since(self.far_since, far, now)
        if self.apart_since is None:
            return None
        due = self.apart_since + APART_S
        if self.far_since is not None:
            due = min(due, self.far_since + FAR_S)
        return max(0.0, due - now, self.written_at + FIGURES_S - now)

    def wrote(self, status: Status, now: float) -> None:
        """This is what is written now."""
        before = self.written or Status()
        if status.model != before.model:
            alone = status.model_copy(update={"model": before.model})
            grown = min(LEARNED_GROWTH * self.learned_pause_s, LEARNED_MOST_S)
            self.learned_pause_s = grown if holds(before, alone, self.bands) else LEARNED_S
            self.learned_at = now
        self.written, self.written_at = status, now
        self.apart_since = self.far_since = None

    def loads(self) -> dict[str, int]:
        """Requests running and waiting by pod, as last read; pods that did not tell are missing."""
        pods = self.newest.pods if self.newest else ()
        return {
            pod.name: pod.running + pod.waiting
            for pod in pods
            if pod.running is not None and pod.waiting is not None
        }


def _since(before: float | None, holds_now: bool, now: float) -> float | None:
    """Since when something holds."""
    if not holds_now:
        return None
    return now if before is None else before


class Registry:
    """All LlamaServers that this replica deals with."""

    def __init__(self) -> None:
        self._servers: dict[Key, Server] = {}

    def get(self, key: Key) -> Server | None:
        """The LlamaServer's memory, or None."""
        return self._servers.get(key)

    def obtain(self, key: Key, uid: str) -> Server:
        """The memory of that very incarnation; one of an earlier LlamaServer of this name is dropped."""
        server = self._servers.get(key)
        if server is None or server.uid != uid:
            server = self._servers[key] = Server(key, uid)
        return server

    def drop(self, key: Key) -> Server | None:
        """Forget a LlamaServer that is gone."""
        return self._servers.pop(key, None)

    def known(self) -> list[Key]:
        """Every key known."""
        return list(self._servers)
