"""What the policies of the benchmark meet: S0 to S8 of docs/benchmarks.md.

Seeds are not those of the tests, by which the law was designed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from control.targets import Target
from llamaserver.api.enums import Statistic
from llamaserver.control import Objective
from llamaserver.simulate.demand import Demand, Request
from llamaserver.simulate.faults import (
    EngineRestarted,
    PodKilled,
    Silent,
    SlowStart,
    Stale,
    Straggler,
    TunerLost,
)
from llamaserver.simulate.shapes import Size, lognormal, poisson, shaped
from llamaserver.simulate.traces import cut, from_rates, read_rates, read_requests
from llamaserver.simulate.world import Fault

SEEDS = (11, 12, 13, 14, 15)
ONE = "default,best-cap,aimd,gradient2,alg2,mindie,llamaserver-cap,llamaserver"
PAIR = ",best-pair"
"""A search of some seventy runs, so only where a load that changes asks much of a setting that stays."""
ABLATED_ONE = ",no-fast-loop,no-feed-forward,no-kv-ceiling"
FLEET = (
    "default+hpa,default+keda,default+wva,default+wva-queueing,default+dynamo-load,default+dynamo-throughput,"
    "default+apa,default+kpa,aimd+hpa,llamaserver+hpa,llamaserver-cap,llamaserver"
)
ABLATED_FLEET = ABLATED_ONE + ",no-slow-loop"
ORACLE = "llamaserver+oracle"
"""The law's caps and budgets with the replicas of who knows the demand: what its GPU-seconds are held
against.
"""
FEW = f"default+hpa,default+wva,aimd+hpa,llamaserver+hpa,{ORACLE},llamaserver"
P95_30, P95_60 = Objective(0.030, Statistic.P95), Objective(0.060, Statistic.P95)
P99_60 = Objective(0.060, Statistic.P99)
BROKEN_S = (120.0, 240.0)
"""When a fault of S8 begins and ends."""


def traces() -> Path:
    return Path(os.environ.get("LLAMASERVER_DATA", "")) / "traces"


@dataclass(frozen=True)
class Case:
    """One scenario; `trace` is the file that it needs."""

    says: str
    demand: Callable[[int], Demand]
    objective: Objective = P95_30
    names: str = ONE
    replicas: int = 1
    replicas_max: int = 1
    cold_start_s: float = 60.0
    trace: str = ""
    faults: tuple[Fault, ...] = ()
    targets: tuple[Target, ...] = ()


def regret(most: float) -> Target:
    return Target(f"GPU-seconds over those of {ORACLE}", "gpu_seconds", most, beside=ORACLE)


RECOVERED = Target("seconds from the step until the latency is held", "recovery_s", 10.0)


def recovered(cold_start_s: float) -> tuple[Target, Target]:
    queue = "seconds from the step until the queue is as before"
    return RECOVERED, Target(queue, "queue_recovery_s", cold_start_s + 60.0)


UNERRING = Target("actions in the wrong direction", "wrong_actions", 0.0)
STEADY = (
    Target("replica reversals", "replica_reversals", 0.0),
    Target("cap reversals per ten minutes of a replica", "cap_reversals_per_10min", 2.0),
)


@cache
def _requests(path: Path) -> Sequence[Request]:
    return read_requests(path)


def played(name: str, speed: float, duration_s: float) -> Callable[[int], Demand]:
    """A trace from a place that the seed chooses."""

    def demand(seed: int) -> Demand:
        requests = _requests(traces() / name)
        room = max(0.0, requests[-1].at - duration_s * speed)
        made = cut(requests, random.Random(seed).uniform(0.0, room), duration_s, speed)
        return Demand(name, duration_s, made, source=name)

    return demand


def turning(seed: int) -> Demand:
    """Conversations, and from the middle on code: prompts twice as long, outputs an eighth."""
    first = played("azure2023_conv.csv", 3.0, 300.0)(seed)
    then = played("azure2023_code.csv", 3.0, 300.0)(seed)
    later = [Request(r.at + 300.0, r.prompt, r.output) for r in then.requests]
    return Demand("conversations, then code", 600.0, [*first.requests, *later], source=first.source)


def fortnight(seed: int) -> Demand:
    """Fourteen days of rates in twenty minutes: a day takes 86 s."""
    points = read_rates(traces() / "servegen_m-small_rate_10min.csv")
    made = from_rates(points, 1200.0, 20.0, lognormal(1000, 200), seed)
    return Demand("fourteen days of ServeGen", 1200.0, made, source="ServeGen")


def rates(
    levels: Sequence[float], seconds: float, prompt: float, output: float, step_s: float | None = None
) -> Callable[[int], Demand]:
    """Poisson arrivals at one rate after another, each for so many seconds. `step_s` is when they step up,
    where that is what the scenario is about.
    """

    def demand(seed: int) -> Demand:
        whole = seconds * len(levels)

        def rate(t: float) -> float:
            return levels[min(len(levels) - 1, int(t / seconds))]

        made = list(poisson(rate, max(levels), whole, lognormal(prompt, output), random.Random(seed)))
        return Demand(f"{prompt:g}/{output:g}", whole, made, step_s=step_s)

    return demand


def together(*parts: Callable[[int], Demand], name: str) -> Callable[[int], Demand]:
    """Several demands at once; each draws from its own seed, so that none follows the other."""

    def demand(seed: int) -> Demand:
        made = [part(1000 * i + seed) for i, part in enumerate(parts)]
        requests = sorted((r for one in made for r in one.requests), key=lambda r: r.at)
        return Demand(name, max(one.duration_s for one in made), requests)

    return demand


def shape(name: str, rate: float) -> Callable[[int], Demand]:
    return lambda seed: shaped(name, Size(600.0, 320, rate, 1000, 200), seed)


def azure(speed: float) -> Case:
    times = {1.0: "as it was", 2.0: "twice as fast", 4.0: "four times as fast"}[speed]
    demand = played("azure2023_conv.csv", speed, 600.0)
    return Case(f"Azure's conversations, {times}, one replica", demand, trace="azure2023_conv.csv")


def broken(says: str, *faults: Fault) -> Case:
    """Three replicas, half full; something breaks while the rate grows by more than half for two minutes."""
    return Case(
        says,
        rates((20.0, 32.0, 20.0), 120.0, 1000, 200, step_s=120.0),
        names="llamaserver",
        replicas=3,
        replicas_max=6,
        faults=faults,
        targets=(UNERRING, *recovered(60.0)),
    )


def starting(seconds: float) -> Case:
    """Three times the rate, and replicas that take `seconds` to start where 60 s are known."""
    return Case(
        f"three times the rate, and replicas that take {seconds:g} s to start instead of 60 s",
        rates((8.0, 24.0, 24.0, 24.0), 120.0, 1000, 200, step_s=120.0),
        names="llamaserver",
        replicas_max=6,
        faults=(SlowStart(0.0, 480.0, seconds),),
        targets=(UNERRING, *recovered(seconds)),
    )


BURSTS = (15.0, 2.0, 10.0, 15.0, 5.0, 2.0)

CASES = {
    "S0": Case(
        "a steady rate, three replicas to begin with, 1 to 6",
        rates((48.0,), 600.0, 1000, 200),
        names="default+hpa,aimd+hpa,llamaserver",
        replicas=3,
        replicas_max=6,
        targets=STEADY,
    ),
    "S1": Case(
        "a step to four times the rate, one replica",
        shape("step", 6.0),
        names=ONE + PAIR + ABLATED_ONE,
        targets=(RECOVERED,),
    ),
    "S1f": Case(
        "a step to four times the rate, 1 to 6 replicas",
        shape("step", 12.0),
        names=FEW,
        replicas_max=6,
        targets=(regret(1.8), *recovered(60.0)),
    ),
    "S2": Case(
        "a ramp to four times the rate, 1 to 6 replicas",
        shape("ramp", 12.0),
        names=f"{FLEET},{ORACLE}{ABLATED_FLEET}",
        replicas_max=6,
        targets=(regret(1.5),),
    ),
    "S3x1": azure(1.0),
    "S3x2": azure(2.0),
    "S3x4": azure(4.0),
    "S4": Case(
        "Azure's conversations, then code, three times as fast, one replica",
        turning,
        names=ONE + PAIR,
        trace="azure2023_code.csv",
    ),
    "S5": Case(
        "Mooncake's conversations, half as fast: long prompts, one replica",
        played("mooncake_fast25_conversation.jsonl", 0.5, 600.0),
        P95_60,
        names=ONE + ABLATED_ONE,
        trace="mooncake_fast25_conversation.jsonl",
    ),
    "S5p99": Case(
        "6 requests/s of 1000 tokens and one of 16000 every two seconds, 200 out, p99 60 ms, one replica",
        together(
            rates((6.0,), 600.0, 1000, 200), rates((0.5,), 600.0, 16000, 200), name="short and long prompts"
        ),
        P99_60,
        names="default,best-cap,aimd,llamaserver-cap,llamaserver" + PAIR,
    ),
    "S6": Case(
        "fourteen days in twenty minutes, 1 to 8 replicas",
        fortnight,
        names=f"{FLEET},{ORACLE}",
        replicas_max=8,
        trace="servegen_m-small_rate_10min.csv",
    ),
    "S7a": Case("4000 tokens in, 1000 out, 4 requests/s, one replica", rates((4.0,), 600.0, 4000, 1000)),
    "S7b": Case("1000 in, 4000 out, 1 request/s, one replica", rates((1.0,), 600.0, 1000, 4000)),
    "S7c": Case("1000 in, 1000 out, 6 requests/s, one replica", rates((6.0,), 600.0, 1000, 1000)),
    "S7d": Case(
        "bursts of 15, 2, 10, 15, 5 and 2 requests/s, one replica",
        rates(BURSTS, 150.0, 1000, 200),
    ),
    "S7df": Case(
        "three times these bursts, 1 to 6 replicas",
        rates([3 * rate for rate in BURSTS], 150.0, 1000, 200),
        names=FEW,
        replicas_max=6,
    ),
    # What is told without a lag is the truth; so the same two minutes are looked at as beside.
    "S8-none": broken("nothing breaks", Stale(*BROKEN_S, lag_s=0.0)),
    "S8-killed": broken("a replica is killed", PodKilled(*BROKEN_S)),
    "S8-restarted": broken("an engine restarts in its pod", EngineRestarted(*BROKEN_S)),
    "S8-silent": broken("a replica cannot be asked for two minutes", Silent(*BROKEN_S)),
    "S8-stale": broken("a replica tells the same for two minutes", Stale(*BROKEN_S)),
    "S8-late": broken("a replica tells what was 20 s ago, for two minutes", Stale(*BROKEN_S, lag_s=20.0)),
    "S8-tuner": broken("a replica loses its tuner for two minutes", TunerLost(*BROKEN_S)),
    "S8-straggler": broken("a replica's steps take 1.6 times as long for two minutes", Straggler(*BROKEN_S)),
    "S8-start30": starting(30.0),
    "S8-start300": starting(300.0),
}
