"""`llamaserver plan`: what can be promised, and what to write into the resource."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from llamaserver.api.duration import format_duration
from llamaserver.cli.demand import demand_from, demand_options
from llamaserver.cli.params import ObjectiveParam, cold_start_option
from llamaserver.cli.progress import Progress
from llamaserver.cli.snippet import snippet
from llamaserver.control import Objective
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.planning import Plan, manifest
from llamaserver.simulate.planning import plan as planned
from llamaserver.simulate.profiles import Calibrated
from llamaserver.simulate.report.data import figures
from llamaserver.simulate.report.table import refusals

HELP = """Say what inter-token latency can be promised on a machine with a traffic, and what it costs.

Runs the operator's control law on one saturated replica for objectives from strict to loose, proposes the
strictest that keeps nine tenths of the throughput (or takes yours), sizes the fleet for the traffic, tries
it, and prints a LlamaServer to paste. docs/simulate.md says how far the model is to be trusted.

\b
Examples:
  llamaserver plan --profile A100-8B --shape ramp --rate 4
  llamaserver plan --profile H100-70B-TP4 --trace AzureLLMInferenceTrace_conv.csv --objective p99:60ms
  llamaserver plan --profile H100-8B --shape poisson --rate 30 --input-tokens 3000 --output-tokens 300
"""


@click.command("plan", help=HELP)
@demand_options
@click.option(
    "--objective",
    type=ObjectiveParam(),
    help="Plan for this objective, as p95:40ms. Default: the strictest p95 that keeps nine tenths of the "
    "throughput.",
)
@cold_start_option
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def plan(objective: Objective | None, cold_start: float, seed: int, as_json: bool, **given: Any) -> None:
    if objective is not None and objective.itl_s is None:
        raise click.UsageError("a plan without a latency objective promises nothing: give one, as p95:40ms")
    wanted = objective or Objective(None)
    calibrated: Calibrated = given["profile"]
    try:
        demand = demand_from(given, 1)(seed)
        with Progress() as progress:
            found = planned(
                calibrated,
                demand,
                wanted.itl_statistic,
                wanted.itl_s,
                scope=wanted.itl_scope,
                seed=seed,
                cold_start_s=cold_start,
                tell=progress.tell,
            )
    except SimulationError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(_document(found), indent=1) if as_json else _text(found, demand.name))


def _document(found: Plan) -> dict[str, Any]:
    profile = found.calibrated.profile
    return {
        "profile": {"name": found.calibrated.name, "source": found.calibrated.source},
        "statistic": found.named,
        "by_itself": {"statistic_s": found.ceiling_s, **figures(found.ceiling)},
        "reachable_s": found.reachable_s,
        "objectives": [
            {
                "target_s": p.objective.itl_s,
                "held": p.held,
                "cap": p.cap,
                "budget": p.budget,
                "gpu_hours_per_million_tokens": p.gpu_hours_per_million_tokens(profile),
                **figures(p.outcome),
            }
            for p in found.points
        ],
        "fleet": {"min": found.replicas_min, "max": found.replicas_max, **figures(found.tried)},
        "manifest": manifest(found),
    }


def _text(found: Plan, demand: str) -> str:
    tried = found.tried
    refused = refusals([tried], found.started.longest)
    waits = f"p50 {_told(tried.ttft_p50_s)}, p95 {_told(tried.ttft_p95_s)}"
    return "\n".join(
        (
            f"{demand}; {found.calibrated.name}",
            "",
            "One saturated replica under the law, for each objective:",
            *_rows(found),
            f"By itself, with every place taken: {found.named} {_told(found.ceiling_s)}, "
            f"{found.ceiling.tokens_per_s:.0f} tokens/s.",
            f"The strictest {found.named} that was found to hold: {_told(found.reachable_s)}.",
            "",
            f"The traffic itself on {found.replicas_min} to {found.replicas_max} replicas: "
            f"{100 * tried.violated_window_share:.1f} % of windows missed, "
            f"{tried.tokens_per_s:.0f} tokens/s, {tried.gpu_hours:.2f} GPU-hours.",
            f"Time to the first token: {waits}.",
            *([refused] if refused else []),
            "",
            snippet(found),
        )
    )


def _rows(found: Plan) -> list[str]:
    """The objectives, strictest first; the one that is planned for is marked."""
    profile = found.calibrated.profile
    head = ("", f"{found.named} at most", "held", "tokens/s", "GPU-h/M tokens", "cap", "budget")
    body = [
        (
            ">" if p is found.chosen else "",
            _told(p.objective.itl_s),
            "yes" if p.held else "no",
            f"{p.outcome.tokens_per_s:.0f}",
            f"{p.gpu_hours_per_million_tokens(profile):.3f}",
            str(p.cap),
            str(p.budget),
        )
        for p in found.points
    ]
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    return ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in (head, *body)]


def _told(seconds: float | None) -> str:
    return format_duration(seconds) if seconds is not None and math.isfinite(seconds) else "unknown"
