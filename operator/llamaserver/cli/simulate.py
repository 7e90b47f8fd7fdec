"""`llamaserver simulate`: the law beside what else could be done, on a demand of one's choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from llamaserver.cli.demand import demand_from, demand_options, routable
from llamaserver.cli.params import OutputParam, cold_start_option, objective_option
from llamaserver.cli.progress import Progress
from llamaserver.control import Objective
from llamaserver.simulate.compare import Scenario, compare
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.policies import SAYS, SCALERS_SAY, USUAL, policies
from llamaserver.simulate.profiles import Calibrated
from llamaserver.simulate.report import document, page, table
from llamaserver.simulate.report.data import routed, said
from llamaserver.simulate.report.table import hits, refusals
from llamaserver.simulate.routers import LEAST_LOADED, PREFIX, ROUTERS
from llamaserver.simulate.rules.foresight import Foresight

HTML, JSON = "simulate.html", "simulate.json"
_POLICIES = "\n".join(f"    {name:16} {says}" for name, says in SAYS.items())
_SCALERS = "\n".join(f"    +{name:15} {says}" for name, says in SCALERS_SAY.items())
_ROUTERS = "\n".join(f"    {name:16} {routing.says}" for name, routing in ROUTERS.items())
HELP = f"""Run the operator's control law on a simulated fleet, beside what else could be done.

The law is the code that the operator runs; the engines are a step-level model of vLLM with the timing of a
profile. Prints a table; with --output also a page with plots and the figures as JSON. docs/simulate.md says
how the model works and how far it is to be trusted.

\b
Examples:
  llamaserver simulate
  llamaserver simulate --profile A100-8B --shape mix --objective p99:60ms
  llamaserver simulate --trace AzureLLMInferenceTrace_conv.csv --speed 3 --output build/azure
  llamaserver simulate --shape step --max 6 --policies llamaserver,default+hpa,aimd+keda,default+wva

\b
Policies (--policies takes names with commas between them, or all):
{_POLICIES}
\b
Any of them with somebody else's replicas, between --min and --max:
{_SCALERS}
\b
Routers (--router), which say where each request goes:
{_ROUTERS}
"""


@click.command("simulate", help=HELP)
@demand_options
@objective_option
@click.option(
    "--policies", "names", default=",".join(USUAL), show_default=True, help="What to compare, see above."
)
@click.option("--replicas", type=click.IntRange(1, 200), help="Replicas to begin with. Default: --min.")
@click.option(
    "--min",
    "least",
    type=click.IntRange(1, 200),
    help="Fewest replicas of who scales. Default: --replicas, else 1.",
)
@click.option(
    "--max",
    "most",
    type=click.IntRange(1, 200),
    help="Most replicas of who scales. Default: --min, so that nobody scales.",
)
@cold_start_option
@click.option(
    "--seed",
    "seeds",
    type=click.IntRange(0),
    multiple=True,
    default=(1,),
    show_default=True,
    help="May be given several times: figures are then means.",
)
@click.option(
    "--prefix-cache",
    is_flag=True,
    help="Let engines keep the blocks of prompts and share them, as vLLM does by default. Needs a trace that "
    "tells them: Mooncake's hash_ids.",
)
@click.option(
    "--router",
    type=click.Choice(list(ROUTERS)),
    default=LEAST_LOADED,
    show_default=True,
    help="Which of the replicas that serve a request goes to, see above.",
)
@click.option(
    "--output",
    type=OutputParam(),
    metavar="DIR",
    help=f"Write {HTML} and {JSON} there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON instead of the table.")
def simulate(
    objective: Objective,
    names: str,
    replicas: int | None,
    least: int | None,
    most: int | None,
    cold_start: float,
    seeds: tuple[int, ...],
    prefix_cache: bool,
    router: str,
    output: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    least = least or replicas or 1
    most = most or max(least, replicas or 1)
    replicas = replicas or least
    if not least <= replicas <= most:
        raise click.UsageError(
            f"--min {least}, --replicas {replicas}, --max {most}: each has to be at least the one before"
        )
    calibrated: Calibrated = given["profile"]
    if router != LEAST_LOADED:
        routable(given)
    try:
        chosen = policies(names)
        if least == most and (other := [p.name for p in chosen if p.replicas is not None]):
            raise click.UsageError(f"{other[0]} scales, and there is nothing to scale: give --max")
        if prefix_cache and (oracles := [p.name for p in chosen if isinstance(p.replicas, Foresight)]):
            raise click.UsageError(
                f"{oracles[0]} plans by what a replica serves of prompts that share nothing: leave it or "
                "--prefix-cache out"
            )
        scenario = Scenario(
            demand_from(given, replicas, prefix_cache or router == PREFIX),
            calibrated.profile,
            objective,
            replicas,
            least,
            most,
            cold_start,
            tuple(dict.fromkeys(seeds)),
            prefix_cache=prefix_cache,
            router=router,
        )
        with Progress() as progress:
            results = compare(scenario, chosen, progress.tell)
    except SimulationError as error:
        raise click.ClickException(str(error)) from error
    found = document(scenario, calibrated, results)
    if output is not None:
        (output / HTML).write_text(page(scenario, calibrated, results), encoding="utf-8")
        (output / JSON).write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(found, indent=1, allow_nan=False))
    else:
        what = f"{found['demand']['name']}; {calibrated.name}; {said(objective)}{routed(scenario)}"
        click.echo(f"{what}\n\n{table(results)}")
        for note in (refusals((r.mean for r in results), scenario.profile.longest), hits(scenario, results)):
            if note:
                click.echo(f"\n{note}")
    if output is not None:
        click.echo(f"wrote {output / HTML} and {output / JSON}", err=True)
