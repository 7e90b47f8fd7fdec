"""The figures of docs/control.md, made again from the plant.

    PYTHONPATH=operator:tests .venv/bin/python tests/control/figures.py [CHAPTER...]

Chapters are held, noise, memory, lengths, shift, disturbed and cost; without any, all of them (some minutes).
Virtual time: the figures do not depend on the machine, `cost` excepted.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from llamaserver.api.enums import ScalingMode, Statistic, TuningMode
from llamaserver.control import Fleet, Limits, Objective, decide
from llamaserver.observe import advance, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.clients import reversals
from llamaserver.simulate.demand import constant
from llamaserver.simulate.lengths import Lengths, chat, unset, up_to_4096, words
from llamaserver.simulate.profiles import CPU_24M, H100_8B, Profile
from llamaserver.simulate.world import World

FIXED = Limits(scaling=ScalingMode.FIXED)
ALONE = replace(FIXED, budget_moves=False)
TAILS = (Statistic.P90, Statistic.P95, Statistic.P99)
SEEDS = (1, 2, 3)
SECONDS = 660.0
Load = tuple[str, Profile, Lengths, int]
CPU: Load = ("CPU 24M", CPU_24M, words, 40)
H100: Load = ("H100 8B", H100_8B, chat, 300)
OBJECTIVES = (
    (CPU, Statistic.MEAN, 0.012),
    (CPU, Statistic.MEAN, 0.016),
    (CPU, Statistic.MEAN, 0.020),
    (CPU, Statistic.P50, 0.020),
    (CPU, Statistic.P90, 0.020),
    (CPU, Statistic.P95, 0.020),
    (CPU, Statistic.P95, 0.030),
    (CPU, Statistic.P95, 0.040),
    (CPU, Statistic.P95, 0.050),
    (CPU, Statistic.P99, 0.050),
    (CPU, Statistic.P99, 0.060),
    (H100, Statistic.MEAN, 0.012),
    (H100, Statistic.MEAN, 0.020),
    (H100, Statistic.P50, 0.012),
    (H100, Statistic.P95, 0.030),
    (H100, Statistic.P99, 0.050),
)


def world(load: Load, objective: Objective, limits: Limits = FIXED, **more: object) -> World:
    _, profile, lengths, streams = load
    begin: Callable[[float], float] = lambda t: streams if t > 10 else 0  # noqa: E731
    return World(objective, limits, profile, lengths, begin, **more)  # type: ignore[arg-type]


def at_cap(load: Load, cap: int, seconds: float = 300.0) -> World:
    made = world(load, Objective(None), replace(FIXED, tuning=TuningMode.OFF))
    made.engines["pod-1"].put(cap, 1e9)
    return made.run(seconds)


def windows_at(made: World, which: Statistic) -> list[float]:
    made.objective = Objective(1.0, which)
    return made.figures(40)


def hindsight(load: Load, which: Statistic, target_s: float) -> tuple[int, float]:
    """The largest fixed cap with at most 5 % of windows missed, and its tokens/s."""
    low, high = 0, load[1].max_num_seqs + 1
    best = 0.0
    while high - low > 1:
        middle = (low + high) // 2
        made = at_cap(load, middle)
        values = windows_at(made, which)
        if sum(v > target_s for v in values) <= 0.05 * len(values):
            low, best = middle, made.tokens_per_s(40)
        else:
            high = middle
    return low, best


def held() -> None:
    print(
        "\n## held: 40 (300) closed-loop streams from t = 10 s, windows of 10 s from t = 25 s to 660 s, 3 "
        "seeds"
    )
    print(
        "| load | objective | ceiling: statistic, tokens/s | best fixed cap, tokens/s | cap alone: missed | "
        "tokens/s | reversals | both knobs: missed | tokens/s | of the best fixed cap | first token, s: cap "
        "alone, both | reversals |"
    )
    print("|" + 12 * "---|")
    for load, which, target_s in OBJECTIVES:
        ceiling = at_cap(load, load[1].max_num_seqs)
        seen = statistics.median(windows_at(ceiling, which))
        cap, best = hindsight(load, which, target_s)
        objective = Objective(target_s, which)
        alone = outcome([world(load, objective, ALONE, seed=s).run(SECONDS) for s in SEEDS])
        both = outcome([world(load, objective, seed=s).run(SECONDS) for s in SEEDS])
        told = f"{alone.missed} | {alone.tokens_per_s:.0f} | {alone.turns} | "
        if which in TAILS:
            share = 100 * both.tokens_per_s / max(1.0, best)
            told += f"{both.missed} | {both.tokens_per_s:.0f} | {share:.0f} % | "
            told += f"{alone.first_token_s:.1f}, {both.first_token_s:.1f} | {both.turns} |"
        else:
            told += f"as alone | | {100 * alone.tokens_per_s / max(1.0, best):.0f} % | | |"
        print(
            f"| {load[0]} | {which} {1e3 * target_s:.0f} ms | {1e3 * seen:.0f} ms, "
            f"{ceiling.tokens_per_s(40):.0f} | {cap}, {best:.0f} | {told}",
            flush=True,
        )


@dataclass(frozen=True)
class Outcome:
    """Means over seeds; reversals of the worst."""

    missed: str
    tokens_per_s: float
    first_token_s: float
    turns: int


def outcome(runs: list[World]) -> Outcome:
    waits = [w.engines["pod-1"].ttft for w in runs]
    return Outcome(
        f"{100 * statistics.mean(w.violated(25) for w in runs):.1f} %",
        statistics.mean(w.tokens_per_s(60) for w in runs),
        statistics.mean(t.total / max(1, t.count) for t in waits),
        max(reversals(w.changes(60)) for w in runs),
    )


def noise() -> None:
    print("\n## noise: reversals of the cap in ten minutes, share of windows missed (3 seeds, worst)")
    print("| load, objective | what is wrong | reversals | missed |\n|---|---|---|---|")
    wrongs: tuple[tuple[str, dict[str, float]], ...] = (
        ("nothing", {}),
        ("10 % noise shared by each second", {"slow_noise": 0.10}),
        ("tick 1 s", {"tick_s": 1.0}),
        ("tick 5 s, 30 % of scrapes lost, 5 % noise", {"tick_s": 5.0, "dropped": 0.3, "slow_noise": 0.05}),
    )
    for load, which, target_s in (
        (CPU, Statistic.MEAN, 0.016),
        (CPU, Statistic.P95, 0.030),
        (H100, Statistic.MEAN, 0.020),
    ):
        for name, more in wrongs:
            runs = [
                world(load, Objective(target_s, which), ALONE, seed=s, **more).run(SECONDS) for s in SEEDS
            ]
            turns = max(reversals(w.changes(60)) for w in runs)
            missed = max(w.violated(40) for w in runs)
            print(
                f"| {load[0]}, {which} {1e3 * target_s:.0f} ms | {name} | {turns} | {100 * missed:.1f} % |",
                flush=True,
            )


def memory() -> None:
    print("\n## memory: caches too small for the load, 300 s")
    print(
        "| load | objective | preemptions without | with | tokens/s without | with | from 60 s "
        "|\n|---|---|---|---|---|---|---|"
    )
    for load, kv, target_s in (
        (CPU, 4000, None),
        (CPU, 4000, 0.050),
        (H100, 60_000, None),
        (H100, 60_000, 0.050),
    ):
        small = (load[0], replace(load[1], kv_tokens=kv), load[2], load[3])
        objective = Objective(target_s, Statistic.MEAN)
        runs = [
            world(small, objective, replace(FIXED, tuning=m), seed=4).run(300)
            for m in (TuningMode.OFF, TuningMode.AUTO)
        ]
        counts = [w.engines["pod-1"].preempted_ever for w in runs]
        tokens = [w.tokens_per_s(60) for w in runs]
        wanted = "none" if target_s is None else f"mean {1e3 * target_s:.0f} ms"
        print(
            f"| {load[0]}, {kv} tokens | {wanted} | {counts[0]} | {counts[1]} | {tokens[0]:.0f} | "
            f"{tokens[1]:.0f} | {100 * tokens[1] / tokens[0]:.0f} % |",
            flush=True,
        )


def lengths() -> None:
    print("\n## lengths: from 60 s on outputs are three to nine times as long; 240 s, no latency objective")
    print("| load | seed | preemptions in 30 s without | with | in all without | with | tokens/s |")
    print("|---|---|---|---|---|---|---|")
    for load, kv, longest in ((CPU, 6000, 900), (H100, 150_000, 1800)):

        def turning(
            rng: random.Random, t: float, load: Load = load, longest: int = longest
        ) -> tuple[int, int]:
            prompt, output = load[2](rng, t)
            return prompt, output if t < 60 else rng.randint(longest // 3, longest)

        small = (load[0], replace(load[1], kv_tokens=kv), turning, load[3])
        for seed in SEEDS:
            counts, tokens = [], []
            for mode in (TuningMode.OFF, TuningMode.AUTO):
                made = world(small, Objective(None), replace(FIXED, tuning=mode), seed=seed)
                seen = [made.run(until).engines["pod-1"].preempted_ever for until in (60, 90, 240)]
                counts.append((seen[1] - seen[0], seen[2] - seen[0]))
                tokens.append(made.tokens_per_s(60))
            (early_off, off), (early_on, on) = counts
            share = 100 * tokens[1] / tokens[0]
            print(
                f"| {load[0]}, {kv} tokens | {seed} | {early_off} | {early_on} | {off} | {on} | "
                f"{share:.0f} % |",
                flush=True,
            )

    print("\noutputs of 410 to 1229 tokens; 200 s, tokens/s from 66 s on")
    print(
        "| load | max_tokens | seed | best fixed cap, tokens/s, preemptions | the law | share | preemptions |"
    )
    print("|---|---|---|---|---|---|---|")
    for load, kv, caps in ((CPU, 12_000, range(11, 24, 3)), (H100, 150_000, range(72, 109, 12))):

        def early(rng: random.Random, t: float, load: Load = load) -> tuple[int, int]:
            return load[2](rng, t)[0], rng.randint(410, 1229)

        small = (load[0], replace(load[1], kv_tokens=kv, max_model_len=8192), early, load[3])
        for seed in SEEDS:
            fixed = []
            for cap in caps:
                made = world(small, Objective(None), replace(FIXED, tuning=TuningMode.OFF), seed=seed)
                made.engines["pod-1"].put(cap, 1e9)
                fixed.append((made.run(200).tokens_per_s(66), cap, made.engines["pod-1"].preempted_ever))
            best, cap, preempted = max(fixed)
            for name, allowed in (("4096", up_to_4096), ("unset", unset)):
                made = world(small, Objective(None), seed=seed, allowed=allowed).run(200)
                tokens_per_s, count = made.tokens_per_s(66), made.engines["pod-1"].preempted_ever
                print(
                    f"| {load[0]}, {kv} tokens | {name} | {seed} | {cap}, {best:.0f}, {preempted} | "
                    f"{tokens_per_s:.0f} | {100 * tokens_per_s / best:.0f} % | {count} |",
                    flush=True,
                )


def shift() -> None:
    print("\n## shift: prompts three times as long from 120 s to 300 s; breach from the ceiling")

    def longer(rng: random.Random, t: float) -> tuple[int, int]:
        prompt, output = words(rng, t)
        return (3 * prompt if 120 < t < 300 else prompt), output

    for which, target_s in ((Statistic.MEAN, 0.020), (Statistic.P95, 0.040)):
        made = world(("", CPU_24M, longer, 40), Objective(target_s, which), ALONE).run(480)
        values = made.figures(20)
        over = [round(20 + 10 * i) for i, v in enumerate(values) if v > target_s]
        print(
            f"{which} {1e3 * target_s:.0f} ms: windows missed begin at {over}; caps "
            f"{[(round(t), c) for t, _, c in made.caps]}"
        )
    for load, which, target_s in ((CPU, Statistic.P95, 0.030), (H100, Statistic.MEAN, 0.020)):
        made = World(
            Objective(target_s, which),
            replace(FIXED, tuning=TuningMode.OFF),
            load[1],
            load[2],
            constant(load[3]),
        )
        made.run(40)
        made.limits = ALONE
        made.run(120)
        values = made.figures(40)
        print(
            f"{load[0]}, {which} {1e3 * target_s:.0f} ms, switched on at the ceiling at 40 s: caps "
            f"{[(round(t - 40), c) for t, _, c in made.caps]}, windows "
            f"{[round(1e3 * v, 1) for v in values]} ms"
        )


def disturbed() -> None:
    print("\n## disturbed: until 150 s steps are held up, by 20 ms on average; objective p95 31 ms")
    print(
        "| share of steps | fixed cap 14: missed, tokens/s | the law: missed, tokens/s | from 300 s | caps |"
    )
    print("|---|---|---|---|---|")

    def brief(rng: random.Random, _: float) -> tuple[int, int]:
        return rng.randint(24, 40), rng.randint(200, 400)

    objective = Objective(0.031, Statistic.P95)
    for stalls in (0.0, 0.05, 0.1, 0.2):
        fixed = world(
            ("", CPU_24M, brief, 40), objective, replace(FIXED, tuning=TuningMode.OFF), stalls=stalls, seed=3
        )
        fixed.engines["pod-1"].put(14, 1e9)
        fixed.run(150)
        law = world(("", CPU_24M, brief, 40), objective, ALONE, stalls=stalls, seed=3).run(150)
        during = f"{100 * law.violated(40):.0f} %, {law.tokens_per_s(40):.0f}"
        law.engines["pod-1"].stalls = 0.0
        law.run(400)
        after = f"{100 * law.violated(300):.0f} %, {law.tokens_per_s(300):.0f}"
        alone = f"{100 * fixed.violated(40):.0f} %, {fixed.tokens_per_s(40):.0f}"
        caps = [(round(t), c) for t, _, c in law.caps]
        print(f"| {100 * stalls:.0f} % | {alone} | {during} | {after} | {caps} |", flush=True)


def cost() -> None:
    print("\n## cost: one pod, one tick, on this machine")
    made = World(Objective(0.030, Statistic.P95), FIXED, streams=constant(40)).run(60)
    engine, state, remembered = made.engines["pod-1"], made.state, made.memory
    spent, bodies = [0.0, 0.0, 0.0], []
    for _ in range(200):
        engine.run_until(engine.now + 2.0)
        bodies.append((engine.now, speech.snapshot(engine)))
    for at, body in bodies:
        marks = [time.perf_counter()]
        sample = parse_snapshot(body, at, "pod-1/0")
        marks.append(time.perf_counter())
        remembered, windows = advance(remembered, {"pod-1": sample}, at)
        marks.append(time.perf_counter())
        state, _ = decide(made.objective, made.limits, state, windows, Fleet(1, 1, 0), at)
        marks.append(time.perf_counter())
        spent = [s + b - a for s, (a, b) in zip(spent, pairwise(marks), strict=True)]
    parse, window, law = (1e3 * s / len(bodies) for s in spent)
    print(
        f"snapshot of {len(bodies[-1][1])} bytes: parse {parse:.2f} ms, window {window:.2f} ms, decide "
        f"{law:.2f} ms"
    )


CHAPTERS = {
    "held": held,
    "noise": noise,
    "memory": memory,
    "lengths": lengths,
    "shift": shift,
    "disturbed": disturbed,
    "cost": cost,
}


def main(names: list[str]) -> None:
    if unknown := set(names) - set(CHAPTERS):
        raise SystemExit(f"unknown chapter {sorted(unknown)}; there are {', '.join(CHAPTERS)}")
    for name in names or CHAPTERS:
        CHAPTERS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
