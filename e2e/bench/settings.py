"""What the bench can be told."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import QUANTILES, STATISTIC
from bench.plan import Wanted, is_long
from bench.scenarios import SCENARIOS, STREAMS, USUAL, Scenario
from bench.variants import VARIANTS
from harness.loopback import CEILING, START_BUDGET

REPOSITORY = Path(__file__).resolve().parents[2]
FIXED = ("default", "best_cap", "best_pair")
POLICIES = (*FIXED, *VARIANTS)
MINUTES, MINUTES_LONG, MOST_MINUTES = 7.5, 15.0, 60.0
"""For a scenario with one window a repeat, for one with several; and by default never more in all."""
LEAST_WINDOW_S = 2.0

DESCRIPTION = f"""\
The operator's law on a real vLLM, beside the default and the best fixed settings found in hindsight.

For every scenario: starts `vllm serve` on loopback with the tuner in it (a small random Llama on the CPU, at
most {CEILING} sequences, at most {START_BUDGET} tokens a step), loads it with {STREAMS} closed-loop streams
from a process of its own, makes an objective from what the default does (p95 between two tokens at most the
geometric mean of the default's p50 and p95, unless the scenario says otherwise), tries fixed settings of cap
and token budget, and then lets the policies take turns. Nothing is restarted in between: policies change by
signed writes to the running engine. Writes engine.json and engine.html.
"""

EPILOGUE = """\
policies:
  default         what the engine was started with
  best_cap        the fixed cap with most tokens/s of all tried that hold the objective; start budget
  best_pair       the same over pairs of cap and token budget
{variants}

scenarios:
{scenarios}

examples:
  make bench-engine                                                     # everything, an hour on two cores
  make bench-engine BENCH="--scenarios chat_mix --repeats 2"            # eight minutes
  make bench-engine BENCH="--policies default ours --minutes 15"        # no fixed settings are tried
  make bench-engine BENCH=--markdown                                    # the last result as a table

Ctrl-C ends the server and the load; what was measured until then is written, and marked as incomplete.
Whatever else runs on the machine is part of what is measured: leave it alone. docs/bench-engine.md says how
each number is made.
"""


@dataclass(frozen=True)
class Settings:
    """One run."""

    wanted: Wanted
    output: Path
    python: Path | None
    """The engine's interpreter; None for the project's own, which is installed when it is missing."""
    model: Path | None
    """Folder of a model; None for the project's own, made when it is missing."""
    markdown: bool


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Settings from the command line."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {args.repeats}")
    if args.window < LEAST_WINDOW_S or args.settle < 0:
        parser.error(f"--window must be at least {LEAST_WINDOW_S:g} s, and --settle not negative")
    return Settings(
        wanted=_wanted(args),
        output=args.output.resolve(),
        python=args.vllm_python,
        model=args.model,
        markdown=args.markdown,
    )


def _wanted(args: argparse.Namespace) -> Wanted:
    """What is measured, each scenario and policy once and policies in their usual order."""
    scenarios = tuple(SCENARIOS[name] for name in dict.fromkeys(args.scenarios))
    policies = tuple(name for name in POLICIES if name in args.policies)
    return Wanted(
        scenarios=scenarios,
        policies=policies,
        variants=tuple(name for name in VARIANTS if name in policies),
        repeats=args.repeats,
        window_s=args.window,
        settle_s=args.settle,
        minutes=_minutes(scenarios) if args.minutes is None else args.minutes,
        statistic=args.statistic,
    )


def _minutes(scenarios: Sequence[Scenario]) -> float:
    """For everything, where nothing is said."""
    return min(MOST_MINUTES, sum(MINUTES_LONG if is_long(s) else MINUTES for s in scenarios))


def _parser() -> argparse.ArgumentParser:
    lists = {
        "variants": "\n".join(f"  {v.name:15} {v.says}" for v in VARIANTS.values()),
        "scenarios": "\n".join(
            f"  {s.name:19} {s.says}{'; only when asked for' if s.extra else ''}" for s in SCENARIOS.values()
        ),
    }
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=DESCRIPTION,
        epilog=EPILOGUE.format(**lists),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(parser)
    _add_how_long(parser)
    _add_where(parser)
    return parser


def _add_what(parser: argparse.ArgumentParser) -> None:
    """Scenarios and policies."""
    parser.add_argument(
        "--scenarios",
        nargs="+",
        choices=sorted(SCENARIOS),
        default=[scenario.name for scenario in USUAL],
        metavar="NAME",
        help="default: all but those that are only measured when asked for, in the order below",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        choices=POLICIES,
        default=[*FIXED, "ours"],
        metavar="NAME",
        help="default: default best_cap best_pair ours. The default is always measured, for the objective; "
        "without best_cap and best_pair no fixed settings are tried",
    )
    parser.add_argument(
        "--statistic",
        choices=QUANTILES,
        default=STATISTIC,
        help="of the time between two tokens, that the objective is about (default %(default)s)",
    )


def _add_how_long(parser: argparse.ArgumentParser) -> None:
    """Repeats and times."""
    parser.add_argument(
        "--repeats",
        type=int,
        default=4,
        help="of every policy; medians are told; half of them where one is long (default %(default)s)",
    )
    parser.add_argument(
        "--window",
        type=float,
        default=10.0,
        help="seconds that a repeat is judged over (default %(default)s)",
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=3.0,
        help="seconds after a change that are not judged; scenarios with long answers take a multiple "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="for everything: how many fixed settings are tried follows from it "
        f"(default {MINUTES:g} a scenario, {MINUTES_LONG:g} for a long one, {MOST_MINUTES:g} at most)",
    )


def _add_where(parser: argparse.ArgumentParser) -> None:
    """What it runs with and what it leaves."""
    parser.add_argument(
        "--output", type=Path, default=REPOSITORY / "build" / "bench", help="folder (default build/bench)"
    )
    parser.add_argument(
        "--vllm-python",
        type=Path,
        help="interpreter of an environment with vLLM (default: the project's own, installed when missing)",
    )
    parser.add_argument(
        "--model", type=Path, help="folder of a model (default: the one of images/engine-cpu/make_model.py)"
    )
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="measure nothing: print the results in the output folder as a table, and draw its page again",
    )
