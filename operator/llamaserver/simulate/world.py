"""The closed loop in virtual time: engines, parser, windows, control law, and what is applied in between.

This stands for the shell around the core: it scrapes, renews leases, starts and stops replicas. What decides
is `observe.advance` and `control.decide`, as in the operator, or a rule to compare them with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from llamaserver.api.enums import ScalingMode
from llamaserver.control import Decision, Fleet, Learned, Limits, Objective, Setpoint, decide, initial
from llamaserver.control.answers import enough
from llamaserver.control.objective import JUDGED_S
from llamaserver.observe import (
    Failure,
    Memory,
    Sample,
    Unusable,
    Window,
    Windows,
    advance,
    parse_exposition,
    parse_snapshot,
)
from llamaserver.simulate import speech
from llamaserver.simulate.clients import Token, statistic, windows
from llamaserver.simulate.demand import Request, nothing
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.lengths import Allowed, Lengths, to_the_end, words
from llamaserver.simulate.prefixes import CachingEngine
from llamaserver.simulate.profiles import CPU_24M, Profile
from llamaserver.simulate.routers import LEAST_LOADED, ROUTERS
from llamaserver.simulate.rules import CapRule, ReplicaRule, fleet_seen, seen
from llamaserver.simulate.sequence import Sequence

LEASE_S = 120.0


def untouched(sample: Sample) -> Sample:
    return sample


@dataclass(frozen=True, slots=True)
class Orders:
    """What a tick wants done: setpoints by pod, and replicas (None: no opinion)."""

    setpoints: Mapping[str, Setpoint]
    replicas: int | None


class Fault(Protocol):
    """Something that goes wrong from `at` until `until`, in seconds."""

    @property
    def at(self) -> float: ...

    @property
    def until(self) -> float: ...

    def begin(self, world: World) -> None: ...

    def end(self, world: World) -> None: ...


View = Callable[[str, Engine, float], Sample | Failure]
"""How one pod is seen instead of as it is: by its name, itself and the time."""


@dataclass
class World:
    """One LlamaServer. `streams` and `rate` are functions of time, over all replicas together; `requests`
    come in the order of their times, each to the replica that `router` chooses.
    """

    objective: Objective
    limits: Limits = field(default_factory=Limits)
    profile: Profile = CPU_24M
    lengths: Lengths = words
    streams: Callable[[float], float] = nothing
    rate: Callable[[float], float] = nothing
    requests: Iterable[Request] = ()
    allowed: Allowed = to_the_end
    seed: int = 1
    tick_s: float = 2.0
    step_noise: float = 0.04
    slow_noise: float = 0.0
    stalls: float = 0.0
    chunk_reserve: int = 0
    live_budget: str = ""
    """Why the prefill budget cannot be moved; empty when it can."""
    dropped: float = 0.0
    """Share of scrapes that fail."""
    text: bool = False
    """True: the pods have no tuner and are read by their /metrics."""
    cold_start_s: float = 60.0
    learned: Learned | None = None
    replicas: int = 1
    caps_by: CapRule | None = None
    """Who sets caps and budgets; None is the law."""
    replicas_by: ReplicaRule | None = None
    """Who sets the number of replicas; None is the law, or nobody where the law does not set the caps."""
    faults: Iterable[Fault] = ()
    prefix_cache: bool = False
    """Whether engines keep and share the blocks of prompts, as far as `requests` tell them."""
    shown: Callable[[Sample], Sample] = untouched
    """What is made of a sample before anybody sees it."""
    router: str = LEAST_LOADED
    """One of ROUTERS."""

    def __post_init__(self) -> None:
        self.rng = random.Random(1000 + self.seed)
        self.now = 0.0
        self.memory = Memory()
        self.state = initial(self.learned, 0.0)
        self.routing = ROUTERS[self.router].make(self.seed)
        self.engines: dict[str, Engine] = {}
        self.draining: list[Engine] = []
        """Engines that serve what they have begun and get nothing new."""
        self.retired: list[Engine] = []
        self.starting: list[float] = []
        self.restarting: dict[str, tuple[float, Engine]] = {}
        """Pods whose engine starts again, and when it serves."""
        self.first_replicas = self.replicas
        self.replica_s = 0.0
        """Seconds of replicas so far, those that start or drain included."""
        self.serial = 0
        self.coming = iter(self.requests)
        self.next = next(self.coming, None)
        self.decisions: list[tuple[float, Decision]] = []
        self.caps: list[tuple[float, str, int]] = []
        self.budgets: list[tuple[float, str, int]] = []
        self.scales: list[tuple[float, int]] = []
        self.windows: Windows = {}
        self.unreachable: set[str] = set()
        self.cap_rules: dict[str, CapRule] = {}
        self.views: dict[str, View] = {}
        self.starts_s: float | None = None
        """How long a replica takes to start, where it is not `cold_start_s`."""
        self.to_begin = sorted(self.faults, key=lambda f: f.at)
        self.to_end: list[Fault] = []
        self.homeless: list[Sequence] = []
        """Requests that no replica is there for."""
        self.broken = 0
        """Requests that had begun when their replica was killed."""
        for _ in range(self.replicas):
            self._start()

    def _start(self) -> None:
        self.serial += 1
        kind = CachingEngine if self.prefix_cache else Engine
        engine = kind(
            self.profile,
            self.lengths,
            allowed=self.allowed,
            seed=self.seed * 100 + self.serial,
            start=self.now,
            step_noise=self.step_noise,
            slow_noise=self.slow_noise,
            stalls=self.stalls,
            live_budget=self.live_budget,
            chunk_reserve=self.chunk_reserve,
        )
        self.engines[f"pod-{self.serial}"] = engine

    def run(self, until: float) -> World:
        while self.now < until - 1e-9:
            self.tick()
        return self

    def tick(self) -> Orders:
        """Lets everything run for one tick, then looks, decides and applies."""
        self.now += self.tick_s
        for _ in [t for t in self.starting if t <= self.now]:
            self._start()
        self.starting = [t for t in self.starting if t > self.now]
        self._come_back()
        self._faults()
        self._load()
        for engine in (*self.engines.values(), *self.draining):
            engine.run_until(self.now)
        self.retired += [e for e in self.draining if e.idle]
        self.draining = [e for e in self.draining if not e.idle]
        self.replica_s += self.tick_s * (self._ordered + len(self.draining))
        results = {name: self._scrape(name, engine) for name, engine in self.engines.items()}
        nobody = Failure(self.now, Unusable.UNREACHABLE, "nobody listens")
        results |= dict.fromkeys(self.restarting, nobody)
        self.memory, self.windows = advance(self.memory, results, self.now)
        coming = len(self.starting) + len(self.restarting)
        fleet = Fleet(self.replicas, len(self.engines), coming, self.cold_start_s, settled=self.settled)
        orders = self._decide(fleet)
        self._apply(orders)
        return orders

    @property
    def settled(self) -> bool:
        """Whether no replica comes or goes."""
        return not self.starting and not self.restarting and not self.draining

    @property
    def _ordered(self) -> int:
        """Replicas that serve or will."""
        return len(self.engines) + len(self.starting) + len(self.restarting)

    def _faults(self) -> None:
        for fault in [f for f in self.to_end if f.until <= self.now]:
            fault.end(self)
            self.to_end.remove(fault)
        while self.to_begin and self.to_begin[0].at <= self.now:
            fault = self.to_begin.pop(0)
            fault.begin(self)
            self.to_end.append(fault)

    def kill(self, name: str) -> None:
        """Ends a replica at once. Its clients ask again elsewhere and another one is started in its place."""
        self.retired.append(self._broken_off(name))
        self.starting.append(self.now + self._start_s)

    def restart(self, name: str) -> None:
        """Ends the engine of a pod at once, as when its container ends. Its clients ask again elsewhere.
        The same pod serves again after a start, as it is started: what was set and counted is gone.
        """
        self.restarting[name] = (self.now + self._start_s, self._broken_off(name))

    def _come_back(self) -> None:
        for name in [n for n, (at, _) in self.restarting.items() if at <= self.now]:
            engine = self.restarting.pop(name)[1]
            engine.now = self.now
            self.engines[name] = engine

    def _broken_off(self, name: str) -> Engine:
        """The engine of this pod, without all that it had in hand."""
        dead = self.engines.pop(name)
        self.broken += sum(s.admitted for s in (*dead.running, *dead.waiting))
        self.homeless += [s for s in (*dead.running, *dead.waiting, *dead.coming) if not s.stream]
        dead.reset()
        dead.close()
        return dead

    @property
    def _start_s(self) -> float:
        return self.cold_start_s if self.starts_s is None else self.starts_s

    def _load(self) -> None:
        if not self.engines:
            return
        while self.homeless:
            self._send_again(self.homeless.pop(0))
        count = max(1, len(self.engines))
        streams = int(self.streams(self.now))
        for i, engine in enumerate(self.engines.values()):
            engine.load(streams=streams // count + (i < streams % count), rate=self.rate(self.now) / count)
        while self.next is not None and self.next.at <= self.now:
            new = self.next
            to = self.routing.choose(self.engines, new.hash_ids)
            to.submit(new.at, new.prompt, new.output, new.hash_ids)
            self.next = next(self.coming, None)

    def _send_again(self, s: Sequence) -> None:
        """Asks for the same elsewhere; it is as old as it was."""
        to = self.routing.choose(self.engines, s.hash_ids)
        to.submit(s.arrived, s.prompt, s.output, s.hash_ids)

    def _scrape(self, name: str, engine: Engine) -> Sample | Failure:
        if name in self.unreachable or self.rng.random() < self.dropped:
            return Failure(self.now, Unusable.UNREACHABLE, "no answer within the deadline")
        if name in self.views:
            return self.views[name](name, engine, self.now)
        if self.text:
            return parse_exposition(speech.metrics(engine), self.now, f"{name}/0")
        found = parse_snapshot(speech.snapshot(engine), self.now, f"{name}/0")
        return self.shown(found) if isinstance(found, Sample) else found

    def _decide(self, fleet: Fleet) -> Orders:
        setpoints, replicas = self._law(fleet) if self.caps_by is None else (self._ruled(), None)
        if self.replicas_by is not None:
            self.replicas_by, wanted = self.replicas_by.step(
                fleet_seen(self.windows, fleet, self.now, self.objective.itl_s)
            )
            low, high = self.limits.replicas_min, self.limits.replicas_max
            replicas = None if wanted is None else min(max(wanted, low), high)
        return Orders(setpoints, replicas)

    def _law(self, fleet: Fleet) -> tuple[Mapping[str, Setpoint], int | None]:
        limits = self.limits
        if self.replicas_by is not None:
            limits = replace(limits, scaling=ScalingMode.EXTERNAL)
        self.state, decision = decide(self.objective, limits, self.state, self.windows, fleet, self.now)
        self.decisions.append((self.now, decision))
        return decision.setpoints, decision.replicas

    def _ruled(self) -> Mapping[str, Setpoint]:
        """Each pod by its own copy of the rule, from the one it began with."""
        assert self.caps_by is not None
        setpoints: dict[str, Setpoint] = {}
        for name, window in self.windows.items():
            rule = self.cap_rules.get(name, self.caps_by)
            if isinstance(window, Window):
                rule, setpoints[name] = rule.step(seen(window, self.objective))
            self.cap_rules[name] = rule
        return setpoints

    def _apply(self, orders: Orders) -> None:
        for name, setpoint in orders.setpoints.items():
            engine, cap = self.engines[name], setpoint.max_num_active_seqs
            budget = setpoint.max_num_scheduled_tokens
            assert name not in self.unreachable
            if cap != engine.cap or (budget or engine.profile.budget) != engine.budget:
                before = engine.cap, engine.budget
                engine.put(cap, LEASE_S, budget)
                if before[0] != engine.cap:
                    self.caps.append((self.now, name, engine.cap))
                if before[1] != engine.budget:
                    self.budgets.append((self.now, name, engine.budget))
            else:
                engine.lease_until = self.now + LEASE_S
        if orders.replicas is not None and orders.replicas != self.replicas:
            self._scale(orders.replicas)

    def _scale(self, wanted: int) -> None:
        self.scales.append((self.now, wanted))
        while self._ordered < wanted:
            self.starting.append(self.now + self._start_s)
        while self._ordered > wanted and self.starting:
            self.starting.pop()
        while self._ordered > wanted and self.restarting:
            self.retired.append(self.restarting.popitem()[1][1])
        while len(self.engines) > wanted:
            leaving = self.engines.popitem()[1]
            self.draining.append(leaving)
            for s in leaving.close():
                self._send_again(s)
        self.replicas = wanted

    # --- what came of it ------------------------------------------------------------------------------------
    def ever(self) -> Iterable[Engine]:
        """All engines that served in this run."""
        again = (engine for _, engine in self.restarting.values())
        return (*self.engines.values(), *again, *self.draining, *self.retired)

    def tokens(self, start: float) -> list[Token]:
        """All tokens but first ones after `start`, as their clients saw them."""
        return [token for e in self.ever() for token in (*e.log, *e.gaps) if token[0] > start and token[2]]

    def answers(self, start: float) -> list[Token]:
        """All requests that ended after `start`, by their time per output token."""
        return [answer for e in self.ever() for answer in e.answers if answer[0] > start]

    def judged(self, start: float, seconds: float = JUDGED_S) -> list[tuple[float, float]]:
        """(end of the window, the objective's statistic) over consecutive windows of all pods, as their
        clients see it. Windows of requests last until there are enough of them.
        """
        which = self.objective.itl_statistic
        if self.objective.of_requests:
            found = windows(self.answers(start), start, seconds, enough(which))
        else:
            found = windows(self.tokens(start), start, seconds)
        return [(at, statistic(window, which)) for at, window in found]

    def figures(self, start: float, seconds: float = JUDGED_S) -> list[float]:
        """The same without the times."""
        return [value for _, value in self.judged(start, seconds)]

    def violated(self, start: float) -> float:
        """Share of 10-s windows after `start` in which the objective was missed."""
        values, target = self.figures(start), self.objective.itl_s
        assert target is not None
        return sum(v > target for v in values) / max(1, len(values))

    def tokens_per_s(self, start: float) -> float:
        return sum(n for e in self.ever() for t, _, n in e.log if t > start) / (self.now - start)

    def changes(self, start: float, pod: str = "pod-1") -> list[int]:
        """Caps from `start` on, the one in force then first."""
        before = [c for t, p, c in self.caps if p == pod and t <= start]
        return [*before[-1:], *(c for t, p, c in self.caps if p == pod and t > start)]

    def causes(self, start: float = 0.0) -> list[str]:
        return [d.diagnosis.cause.value for t, d in self.decisions if t > start]
