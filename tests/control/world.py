"""The closed loop in virtual time: plant, parser, windows, control law, and what is applied in between.

Only this file stands for the shell around the core: it scrapes, renews leases, starts and stops replicas.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from control.plant import CPU_24M, Engine, Lengths, Profile, words
from llamaserver.api.enums import Statistic
from llamaserver.control import Decision, Fleet, Learned, Limits, Objective, decide, initial
from llamaserver.observe import (
    Failure,
    Memory,
    Sample,
    Unusable,
    Windows,
    advance,
    parse_exposition,
    parse_snapshot,
)

QUANTILE = {Statistic.P50: 0.5, Statistic.P90: 0.9, Statistic.P95: 0.95, Statistic.P99: 0.99}


def constant(value: float) -> Callable[[float], float]:
    return lambda _: value


nothing = constant(0)


@dataclass
class World:
    """One LlamaServer. `streams` and `rate` are functions of time, over all replicas together."""

    objective: Objective
    limits: Limits = field(default_factory=Limits)
    profile: Profile = CPU_24M
    lengths: Lengths = words
    streams: Callable[[float], float] = nothing
    rate: Callable[[float], float] = nothing
    seed: int = 1
    tick_s: float = 2.0
    step_noise: float = 0.04
    slow_noise: float = 0.0
    stalls: float = 0.0
    dropped: float = 0.0
    """Share of scrapes that fail."""
    text: bool = False
    """True: the pods have no tuner and are read by their /metrics."""
    cold_start_s: float = 60.0
    learned: Learned | None = None
    replicas: int = 1

    def __post_init__(self) -> None:
        self.rng = random.Random(1000 + self.seed)
        self.now = 0.0
        self.memory = Memory()
        self.state = initial(self.learned, 0.0)
        self.engines: dict[str, Engine] = {}
        self.retired: list[Engine] = []
        self.starting: list[float] = []
        self.serial = 0
        self.decisions: list[tuple[float, Decision]] = []
        self.caps: list[tuple[float, str, int]] = []
        self.scales: list[tuple[float, int]] = []
        self.windows: Windows = {}
        self.unreachable: set[str] = set()
        for _ in range(self.replicas):
            self._start()

    def _start(self) -> None:
        self.serial += 1
        engine = Engine(
            self.profile,
            self.lengths,
            seed=self.seed * 100 + self.serial,
            start=self.now,
            step_noise=self.step_noise,
            slow_noise=self.slow_noise,
            stalls=self.stalls,
        )
        self.engines[f"pod-{self.serial}"] = engine

    def run(self, until: float) -> World:
        while self.now < until - 1e-9:
            self.tick()
        return self

    def tick(self) -> Decision:
        self.now += self.tick_s
        for _ in [t for t in self.starting if t <= self.now]:
            self._start()
        self.starting = [t for t in self.starting if t > self.now]
        count = max(1, len(self.engines))
        streams = int(self.streams(self.now))
        for i, engine in enumerate(self.engines.values()):
            engine.load(streams=streams // count + (i < streams % count), rate=self.rate(self.now) / count)
            engine.run_until(self.now)
        results = {name: self._scrape(name, engine) for name, engine in self.engines.items()}
        self.memory, self.windows = advance(self.memory, results, self.now)
        fleet = Fleet(self.replicas, len(self.engines), len(self.starting), self.cold_start_s)
        self.state, decision = decide(self.objective, self.limits, self.state, self.windows, fleet, self.now)
        self.decisions.append((self.now, decision))
        self._apply(decision)
        return decision

    def _scrape(self, name: str, engine: Engine) -> Sample | Failure:
        if name in self.unreachable or self.rng.random() < self.dropped:
            return Failure(self.now, Unusable.UNREACHABLE, "no answer within the deadline")
        if self.text:
            return parse_exposition(engine.metrics(), self.now, f"{name}/0")
        return parse_snapshot(engine.snapshot(), self.now, f"{name}/0")

    def _apply(self, decision: Decision) -> None:
        for name, setpoint in decision.setpoints.items():
            engine, cap = self.engines[name], setpoint.max_num_active_seqs
            assert name not in self.unreachable
            if cap != engine.cap:
                engine.put(cap)
                self.caps.append((self.now, name, engine.cap))
            else:
                engine.lease_until = self.now + 120.0
        wanted = decision.replicas
        if wanted is not None and wanted != self.replicas:
            self.scales.append((self.now, wanted))
            while len(self.engines) + len(self.starting) < wanted:
                self.starting.append(self.now + self.cold_start_s)
            while len(self.engines) + len(self.starting) > wanted:
                self.retired.append(self.engines.popitem()[1])
            self.replicas = wanted

    # --- what came of it ------------------------------------------------------------------------------------
    def figures(self, start: float, seconds: float = 10.0) -> list[float]:
        """The objective's statistic over consecutive windows of all pods, as their clients see it."""
        log = sorted(
            (t, y, b) for e in (*self.engines.values(), *self.retired) for t, y, b in e.log if t > start and b
        )
        values: list[float] = []
        at, window = start, list[tuple[float, int]]()
        for t, y, b in log:
            while t > at + seconds:
                if window:
                    values.append(statistic(window, self.objective.itl_statistic))
                at, window = at + seconds, []
            window.append((y, b))
        return values

    def violated(self, start: float) -> float:
        """Share of 10-s windows after `start` in which the objective was missed."""
        values, target = self.figures(start), self.objective.itl_s
        assert target is not None
        return sum(v > target for v in values) / max(1, len(values))

    def tokens_per_s(self, start: float) -> float:
        engines = (*self.engines.values(), *self.retired)
        return sum(b for e in engines for t, _, b in e.log if t > start) / (self.now - start)

    def changes(self, start: float, pod: str = "pod-1") -> list[int]:
        """Caps from `start` on, the one in force then first."""
        before = [c for t, p, c in self.caps if p == pod and t <= start]
        return [*before[-1:], *(c for t, p, c in self.caps if p == pod and t > start)]

    def causes(self, start: float = 0.0) -> list[str]:
        return [d.diagnosis.cause.value for t, d in self.decisions if t > start]


def reversals(values: Sequence[float]) -> int:
    """How often a sequence of settings turned from rising to falling or back."""
    signs = [b > a for a, b in itertools.pairwise(values) if a != b]
    return sum(a != b for a, b in itertools.pairwise(signs))


def statistic(window: Sequence[tuple[float, int]], which: Statistic) -> float:
    """Token-weighted mean or quantile of (seconds, tokens)."""
    tokens = sum(b for _, b in window)
    if which not in QUANTILE:
        return sum(y * b for y, b in window) / tokens
    rank, seen = QUANTILE[which] * tokens, 0
    for y, b in sorted(window):
        seen += b
        if seen >= rank:
            return y
    return max(y for y, _ in window)
