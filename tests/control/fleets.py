"""A fleet of replicas without their steps: what the slow loop sees of it, in a hundredth of the time.

Replicas hold up to `cap` sequences each; a step with B of them takes a + s B seconds, and each step ends a
sequence with a chance of 1 / `tokens`. Requests come by themselves, or from clients that wait for their
answers, and go to the replica with the fewest in hand. The fast loop is taken to rest at `cap`; what is
believed of a step may be wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from llamaserver.control import Fleet, Limits, Objective
from llamaserver.control.facts import Facts
from llamaserver.control.kv import KvState
from llamaserver.control.model import StepModel, remembered
from llamaserver.control.pods import PodFacts, Work
from llamaserver.control.replicas import Answer, decide_replicas
from llamaserver.control.state import DemandState
from llamaserver.control.types import Observed
from llamaserver.observe import NoWindow, Sample, Unusable, Window
from llamaserver.observe.distribution import EMPTY
from llamaserver.observe.types import EngineState, Source

A_S, S_S = 0.010, 0.0005
KNOWN = {
    *("pod", "at", "dt", "last", "itl", "generation_tokens", "finished", "arrived", "preemptions"),
    *("running", "waiting", "waiting_deferred", "kv_usage"),
}
UNKNOWN = Observed(None, None, None, None, None, None, None, None, None)


def poisson(rng: random.Random, mean: float) -> int:
    if mean > 50.0:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    count, left = 0, math.exp(-mean)
    product = rng.random()
    while product > left:
        count, product = count + 1, product * rng.random()
    return count


@dataclass
class Pod:
    running: int = 0
    waiting: int = 0
    arrived: int = 0
    finished: int = 0
    decoded: float = 0.0
    since: float = 0.0
    """When it was last seen."""

    @property
    def in_hand(self) -> int:
        return self.running + self.waiting


@dataclass
class Replicas:
    """`rate` per second by time, or `clients`; `slope_error` is the believed over the true slope at
    the start.
    """

    rate: Callable[[float], float] = lambda _: 0.0
    clients: Callable[[float], int] = lambda _: 0
    limits: Limits = field(default_factory=lambda: Limits(replicas_max=10))
    objective: Objective = field(default_factory=lambda: Objective(0.050))
    cap: int = 80
    best: int | None = None
    """What the objective would want where caps are not moved; None for `cap`."""
    on_their_way: int = 0
    """So many of those that run are told as waiting: each has just come, and the next step takes it in."""
    tokens: float = 200.0
    count: int = 1
    tick_s: float = 2.0
    cold_start_s: float = 60.0
    noise: float = 0.03
    slope_error: float = 1.0
    refit_s: float = 130.0
    """How long the step model takes to be fitted anew; for ever is a model that stays wrong."""
    dropped: float = 0.0
    tells_arrivals: bool = True
    model: bool = True
    rolling: Callable[[float], bool] = lambda _: False
    """Whether pods are being replaced at a time."""
    seed: int = 1
    state: DemandState = field(default_factory=DemandState)
    scales: list[tuple[float, int]] = field(default_factory=list)
    answers: list[tuple[float, Answer]] = field(default_factory=list)
    waited: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng, self.now, self.serial = random.Random(self.seed), 0.0, 0
        self.pods: dict[str, Pod] = {}
        self.starting: list[float] = []
        self.replicas = self.count
        for _ in range(self.count):
            self._start()

    @property
    def serves(self) -> float:
        """Requests per second of a full replica."""
        return self.cap / (A_S + S_S * self.cap) / self.tokens

    def _start(self) -> None:
        self.serial += 1
        self.pods[f"pod-{self.serial:03}"] = Pod(since=math.inf)

    def run(self, until: float) -> Replicas:
        while self.now < until - 1e-9:
            self.tick()
        return self

    def tick(self) -> None:
        self.now += self.tick_s
        for _ in [t for t in self.starting if t <= self.now]:
            self._start()
        self.starting = [t for t in self.starting if t > self.now]
        parts = max(1, round(self.tick_s / 0.5))
        for _ in range(parts):
            self._serve(self.tick_s / parts)
        self.waited.append((self.now, sum(p.waiting for p in self.pods.values())))
        answer = decide_replicas(self.state, self.facts())
        self.state = answer.state
        self.answers.append((self.now, answer))
        if answer.wanted is not None and answer.wanted != self.replicas:
            self._scale(answer.wanted)

    def _serve(self, dt: float) -> None:
        coming = poisson(self.rng, self.rate(self.now) * dt)
        for _ in range(coming + max(0, self.clients(self.now) - self._in_hand())):
            self._submit()
        for pod in self.pods.values():
            step_s = (A_S + S_S * pod.running) * max(0.5, self.rng.gauss(1.0, self.noise))
            done = min(pod.running, poisson(self.rng, pod.running * dt / step_s / self.tokens))
            pod.decoded += pod.running * dt / step_s
            pod.running, pod.finished = pod.running - done, pod.finished + done
        for _ in range(self.clients(self.now) - self._in_hand()):
            self._submit()
        for pod in self.pods.values():
            admitted = min(pod.waiting, self.cap - pod.running)
            pod.running, pod.waiting = pod.running + admitted, pod.waiting - admitted

    def _in_hand(self) -> int:
        return sum(p.in_hand for p in self.pods.values())

    def _submit(self) -> None:
        pod = min(self.pods.values(), key=lambda p: p.in_hand)
        pod.waiting, pod.arrived = pod.waiting + 1, pod.arrived + 1

    def _scale(self, wanted: int) -> None:
        self.scales.append((self.now, wanted))
        while len(self.pods) + len(self.starting) < wanted:
            self.starting.append(self.now + self.cold_start_s)
        while len(self.pods) + len(self.starting) > wanted and self.starting:
            self.starting.pop()
        while len(self.pods) > wanted:
            leaving = self.pods.popitem()[1]
            for _ in range(leaving.waiting):
                self._submit()
        self.replicas = wanted

    def facts(self) -> Facts:
        """What the slow loop would be shown now. Counters that were read begin anew."""
        seen: list[PodFacts] = []
        blind: list[NoWindow] = []
        for name, pod in self.pods.items():
            if pod.since == math.inf:
                pod.arrived = pod.finished = 0
                pod.decoded, pod.since = 0.0, self.now
                blind.append(NoWindow(name, self.now, Unusable.FIRST, "the first answer", None, self.now))
            elif self.rng.random() < self.dropped:
                blind.append(NoWindow(name, self.now, Unusable.UNREACHABLE, "no answer", None, pod.since))
            else:
                seen.append(self._pod(name, pod))
                pod.arrived = pod.finished = 0
                pod.decoded, pod.since = 0.0, self.now
        return Facts(
            objective=self.objective,
            limits=self.limits,
            fleet=Fleet(
                self.replicas,
                len(self.pods),
                len(self.starting),
                self.cold_start_s,
                rolling=self.rolling(self.now),
            ),
            model=self._believed() if self.model else None,
            pods=seen,
            blind=blind,
            observed=replace(UNKNOWN, itl_met=True),
            queue_now_s=None,
            now=self.now,
        )

    def _believed(self) -> StepModel:
        error = self.slope_error ** math.exp(-self.now / self.refit_s)
        model = remembered(A_S, error * S_S, 0.0, 0.0, 0.0, 0.03)
        sure = tuple(tuple(1e-4 * v for v in row) for row in model.cov)
        return replace(model, cov=sure, blocks=9)

    def _pod(self, name: str, pod: Pod) -> PodFacts:
        waiting = pod.waiting + min(self.on_their_way, pod.running)
        running = pod.in_hand - waiting
        engine = EngineState(
            *(0, running, waiting, 0, 0.3, None, 0), max_num_active_seqs=self.cap, max_num_seqs=256
        )
        itl = replace(EMPTY, count=round(pod.decoded), sum_s=1.0)
        sample = Sample(
            self.now, Source.TUNER, name, (engine,), itl, None, None, None, None, None, 0, None, None
        )
        dt = self.now - pod.since
        return PodFacts(
            name=name,
            window=_window(name, self.now, dt, sample, itl, pod, self.tells_arrivals),
            settable=True,
            cap=self.cap,
            best=self.best or self.cap,
            low=1,
            high=256,
            kv_ceiling=None,
            kv=KvState(),
            running=running,
            limited=False,
            draining=False,
            predictor=None,
            record=None,
            recent=(),
            budget=None,
            advised=None,
            work=Work(1000.0, 0.0, 0.0),
        )


def _window(name: str, at: float, dt: float, last: Sample, itl: object, pod: Pod, tells: bool) -> Window:
    unknown = {f.name: None for f in fields(Window) if f.name not in KNOWN}
    (engine,) = last.engines
    return Window(
        pod=name,
        at=at,
        dt=dt,
        last=last,
        itl=itl,  # type: ignore[arg-type]
        generation_tokens=0,
        finished=pod.finished,
        arrived=pod.arrived if tells else None,
        preemptions=0,
        running=engine.running,
        waiting=engine.waiting,
        waiting_deferred=0,
        kv_usage=0.3,
        **unknown,  # type: ignore[arg-type]
    )
