"""The law beside other policies, scenario by scenario: the figures of docs/benchmarks.md.

    PYTHONPATH=operator:tests .venv/bin/python tests/control/bench.py [NAME...] [--policies A,B] [--seeds 1,2]

NAME is a scenario, or how some begin (S3, S8), `diagnosis`, `plant` or `validity`; without any, all of them.
What was there before of other names, policies and seeds stays, and --missing with --within goes on in parts.
Writes control.json and control.html into build/bench:

- `scenarios.<S>.<policy>.<figure>`: `mean` and `ci95` over the seeds; `runs.<S>.<policy>` has each seed's;
- `scenarios.<S>.targets`: what the law was to reach there, and whether it did, see targets.py;
- `diagnosis.accuracy`, `.confusion`: see diagnosing.py; `validity`: see tests/simulate/anchors.py;
- `plant.cpu_s_per_900s`: processor seconds of 900 s of a saturated engine on the machine that ran this.

What needs public data wants LLAMASERVER_DATA, the folder that has traces/ and calibration/; without it that
is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from control.ablations import chosen
from control.benchpage import markdown, page
from control.diagnosing import diagnosis
from control.scenarios import CASES, SEEDS, Case, traces
from control.targets import reached
from llamaserver.simulate.compare import Scenario, compare
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.outcome import FIGURES
from llamaserver.simulate.policies import Policy
from llamaserver.simulate.profiles import PROFILES
from llamaserver.simulate.report import table
from llamaserver.simulate.report.data import figures, interval, setting
from llamaserver.simulate.shapes import lognormal
from simulate import anchors

OUTPUT = Path("build/bench/control.json")
H100 = PROFILES["H100-8B"]
AFTER_STEP = ("recovery_s", "queue_recovery_s")
"""Figures that a run lacks in which nothing was to recover."""
Json = dict[str, Any]
KNOWN = (*CASES, "diagnosis", "plant", "validity")


def measured(case: Case, policies: Sequence[Policy], seeds: Sequence[int]) -> tuple[Json, str]:
    """Each policy's figures by seed, and a table for people."""
    scenario = Scenario(
        case.demand,
        H100.profile,
        case.objective,
        replicas=case.replicas,
        replicas_max=case.replicas_max,
        cold_start_s=case.cold_start_s,
        seeds=tuple(seeds),
        faults=case.faults,
    )
    runs: Json = {}
    results = []
    for policy in policies:
        began = time.process_time()
        (result,) = compare(scenario, [policy])
        results.append(result)
        by_seed = {str(s): figures(o) for s, o in zip(seeds, result.outcomes, strict=True)}
        cpu_s = round(time.process_time() - began, 2)
        runs[policy.name] = {"setting": setting(result), "cpu_s": cpu_s, "seeds": by_seed}
    return runs, table(results)


def merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> Json:
    """Runs of one scenario with newer ones in the place of the same."""
    both: Json = dict(before)
    for name, run in now.items():
        seeds = {**both.get(name, {}).get("seeds", {}), **run["seeds"]}
        both[name] = {**run, "seeds": dict(sorted(seeds.items(), key=lambda item: int(item[0])))}
    return both


def summary(case: Case, runs: Mapping[str, Any]) -> Json:
    """Mean and interval of each figure over the seeds; None where a seed has none, as in runs of before there
    was such a figure. A figure of AFTER_STEP is that of the `seeds` which have it, of all `of`.
    """
    cpu_s = round(sum(run["cpu_s"] for run in runs.values()), 1)
    told: Json = {"says": case.says, "cpu_s": cpu_s, "duration_s": case.demand(SEEDS[0]).duration_s}
    for name, run in runs.items():
        told[name] = {}
        for figure in FIGURES:
            values = [seed.get(figure) for seed in run["seeds"].values()]
            known = [v for v in values if v is not None]
            some = figure in AFTER_STEP and all(figure in seed for seed in run["seeds"].values())
            whole = bool(known) and (some or len(known) == len(values))
            mean, ci95 = (fmean(known), interval(known)) if whole else (None, None)
            told[name][figure] = {"mean": mean, "ci95": ci95}
            if some:
                told[name][figure] |= {"seeds": len(known), "of": len(values)}
    told["targets"] = reached(case.targets, {name: told[name] for name in runs})
    return told


def plant() -> Json:
    """What it costs to simulate one saturated H100 for 900 s."""
    engine = Engine(H100.profile, lognormal(1000, 200))
    engine.load(streams=320)
    began = time.process_time()
    engine.run_until(900.0)
    return {"cpu_s_per_900s": round(time.process_time() - began, 3), "steps": engine.decodes}


def meant(names: Sequence[str]) -> list[str]:
    """Each name, or all of those that begin with it: S3 is S3x1, S3x2 and S3x4. Without any, all there are.
    Raises ValueError, with the names there are.
    """
    if not names:
        return list(KNOWN)
    found: list[str] = []
    for name in names:
        some = [name] if name in KNOWN else [k for k in KNOWN if name and k.startswith(name)]
        if not some:
            raise ValueError(
                f"unknown name {name!r}; there are {', '.join(KNOWN)}, or how some of them begin"
            )
        found += some
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Asked:
    """What is to be run: `policies` instead of the scenario's own, `missing` for only what is not there yet,
    and nothing new once `until`, on the clock of time.monotonic, has passed.
    """

    names: Sequence[str]
    policies: str = ""
    seeds: Sequence[int] = SEEDS
    missing: bool = False
    until: float = math.inf

    def lacks(self, runs: Mapping[str, Any], policy: Policy) -> bool:
        there = runs.get(policy.name, {}).get("seeds", {})
        return not self.missing or any(str(seed) not in there for seed in self.seeds)


def run_all(result: Json, asked: Asked) -> None:
    for name in asked.names:
        if time.monotonic() >= asked.until:
            return
        if name in CASES:
            run_case(result, name, asked)
        elif asked.missing and name in result:
            continue
        elif name == "validity" and (lacks := anchors.missing()):
            print(f"validity is left out: {', '.join(map(str, lacks))} not found; see LLAMASERVER_DATA")
        else:
            found = {"diagnosis": lambda: diagnosis(asked.seeds), "plant": plant, "validity": anchors.errors}
            result[name] = found[name]()
            write(result)


def run_case(result: Json, name: str, asked: Asked) -> None:
    """One scenario, policy by policy; what is done is kept."""
    case = CASES[name]
    if case.trace and not (traces() / case.trace).is_file():
        print(f"{name} is left out: LLAMASERVER_DATA names no folder with traces/{case.trace}")
        return
    print(f"\n## {name}: {case.says}", flush=True)
    for policy in chosen(asked.policies or case.names):
        before = result["runs"].get(name, {})
        if not asked.lacks(before, policy):
            continue
        if time.monotonic() >= asked.until:
            print("the time is up; --missing goes on from here")
            return
        runs, told = measured(case, [policy], asked.seeds)
        print(told.splitlines()[-1], flush=True)
        result["runs"][name] = merged(before, runs)
        result["scenarios"][name] = summary(case, result["runs"][name])
        write(result)


def write(result: Json) -> None:
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    OUTPUT.with_suffix(".html").write_text(page(result))


def main() -> None:
    parser = argparse.ArgumentParser(description="The law beside other policies, in simulation.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="scenarios, as S3x2 or S3 for all of those; diagnosis, plant or validity",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print what is there as Markdown; run nothing"
    )
    parser.add_argument("--policies", default="", help="instead of those that the scenario names")
    parser.add_argument("--missing", action="store_true", help="only what is not there yet")
    parser.add_argument(
        "--within", type=float, default=math.inf, help="begin nothing new after these seconds"
    )
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="default: %(default)s")
    asked = parser.parse_args()
    try:
        names = meant(asked.names)
    except ValueError as error:
        parser.error(str(error))
    try:
        seeds = [int(seed) for seed in asked.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {asked.seeds!r}: write whole numbers with commas between them")
    empty: Json = {"seeds": list(SEEDS), "scenarios": {}, "runs": {}}
    result = {**empty, **json.loads(OUTPUT.read_text())} if OUTPUT.exists() else empty
    if asked.markdown:
        print(markdown(result))
        return
    until = time.monotonic() + asked.within
    run_all(result, Asked(names, asked.policies, seeds, asked.missing, until))


if __name__ == "__main__":
    main()
