"""What is remembered of each LlamaServer between looks and ticks. Rebuilt by looking; nothing here is the
only copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.errors import InvalidSpec
from llamaserver.api.server import LlamaServer
from llamaserver.api.status import MAX_DECISIONS, DecisionStatus, Status
from llamaserver.control import Decision, State
from llamaserver.controller.queue import Key
from llamaserver.observe import Memory

IN_FORCE = "InForce"


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
    state: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What one tick saw and did, for status, events and metrics. `at` is monotonic."""

    at: float
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
    generation: int | None = None
    """Of the spec that was decided by; None for one of which only the content is known."""


@dataclass
class Server:
    """One LlamaServer. `spec` is the last one that could be acted upon; `invalid` says that a newer one
    cannot.
    """

    key: Key
    uid: str
    parsed: LlamaServer | None = None
    spec: EffectiveSpec | None = None
    invalid: InvalidSpec | None = None
    generation: int | None = None
    """Of the spec in force; None for one that was only found on the Deployment."""

    memory: Memory = field(default_factory=Memory)
    state: State | None = None
    decided_replicas: int | None = None
    recommended_replicas: int | None = None
    recommended: dict[str, int] = field(default_factory=dict)
    report: Report | None = None
    ticking_since: float | None = None
    decisions: deque[DecisionStatus] = field(default_factory=lambda: deque(maxlen=MAX_DECISIONS))

    apply_problem: tuple[str, str] | None = None
    """Reason and message of a child that could not be made."""
    waits_for: str = ""
    """What has to go before the children can be made."""
    wanted_mark: str = ""
    """What the Deployment has to say it was made from."""
    claim_problem: str = ""
    claim_read: tuple[str, float] | None = None
    """The claim that was last read, and when."""
    rollout_reason: str = ""
    written: Status | None = None
    """The status that was last written or found."""
    written_at: float = float("-inf")
    learned_at: float = float("-inf")

    def running(self) -> dict[str, int]:
        """Requests running by pod, as last read; pods that did not tell are missing."""
        pods = self.report.pods if self.report else ()
        return {pod.name: pod.running for pod in pods if pod.running is not None}


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
