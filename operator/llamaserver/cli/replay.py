"""`llamaserver replay`: the law on the history that one's own Prometheus has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from llamaserver.cli.demand import ProfileParam
from llamaserver.cli.history import access_from, asked_from, history_options
from llamaserver.cli.params import OutputParam, cold_start_option, objective_option
from llamaserver.cli.progress import Progress
from llamaserver.control import Objective
from llamaserver.prometheus import Prometheus, PrometheusError, read
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.profiles import Calibrated, assignments
from llamaserver.simulate.replay.fit import FIT, Fitted, fitted
from llamaserver.simulate.replay.history import History
from llamaserver.simulate.replay.page import page
from llamaserver.simulate.replay.replay import Question, replay
from llamaserver.simulate.replay.report import document, text
from llamaserver.simulate.replay.timeline import history

HTML, JSON = "replay.html", "replay.json"
HELP = """Run the operator's control law on the history that your Prometheus has of your vLLM engines.

Reads what vLLM told (requests, lengths, latencies, as histograms), rebuilds the demand, and plays it twice
on simulated engines: as it was, which shows how far the model is to be trusted, and under the law, which
shows what it would have decided and saved. Says what the history cannot tell. Nothing is written to
Prometheus, and no engine is asked. docs/replay.md says how.

\b
Examples:
  kubectl -n monitoring port-forward svc/prometheus 9090 &
  llamaserver replay --prometheus http://localhost:9090 --last 6h
  llamaserver replay --prometheus http://localhost:9090 --model llama-3.1-8b --profile H100-8B --max 4
  llamaserver replay --prometheus https://thanos.example --token-file token \\
      --start 2026-05-01T08:00 --end 2026-05-01T20:00 --objective p99:60ms --output build/replay
"""


@dataclass(frozen=True)
class Fit:
    """A plant is to be fitted, with some figures known."""

    given: Mapping[str, float]


class PlantParam(click.ParamType[Fit | Calibrated]):
    """`fit`, or what --profile takes elsewhere."""

    name = "profile"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fit | Calibrated:
        if isinstance(value, Fit):
            return value
        head, *rest = (part.strip() for part in str(value).split(","))
        if head != FIT:
            return ProfileParam().convert(value, param, ctx)
        try:
            return Fit(assignments(rest))
        except SimulationError as error:
            self.fail(str(error), param, ctx)


@click.command("replay", help=HELP)
@history_options
@objective_option
@click.option(
    "--profile",
    "plant",
    type=PlantParam(),
    default=FIT,
    show_default=True,
    help="The engines to play it on: fitted to the history, with what you know of them "
    "(fit,budget=8192,max_num_seqs=256); or a profile, as `llamaserver simulate --help` lists them.",
)
@click.option(
    "--min", "least", type=click.IntRange(1, 200), help="Fewest replicas that the law may choose. Default: 1."
)
@click.option(
    "--max",
    "most",
    type=click.IntRange(1, 200),
    help="Most replicas that the law may choose. Default: the most that there were.",
)
@cold_start_option
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option(
    "--output",
    type=OutputParam(),
    metavar="DIR",
    help=f"Write {HTML} and {JSON} there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON instead of the text.")
def replay_command(
    objective: Objective,
    plant: Fit | Calibrated,
    least: int | None,
    most: int | None,
    cold_start: float,
    seed: int,
    output: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    access, asked = access_from(given), asked_from(given)
    if least is not None and most is not None and least > most:
        raise click.UsageError(f"--min {least} is more than --max {most}")
    try:
        with Progress() as progress:
            with Prometheus(access) as prometheus:
                reading = read(prometheus, asked, progress.tell)
            told = history(reading.recorded, reading.start, reading.end - reading.start, reading.step)
            on = _plant(told, plant)
            name = f"{reading.models[0] if reading.models else 'vLLM'} at {access.url}"
            question = Question(name, objective, on.calibrated, on.assumed, least, most, cold_start, seed)
            found = replay(told, question, progress.tell)
    except (PrometheusError, SimulationError) as error:
        raise click.ClickException(str(error)) from error
    figures = json.dumps(document(found), indent=1, allow_nan=False)
    click.echo(figures if as_json else text(found))
    if output is not None:
        (output / HTML).write_text(page(found), encoding="utf-8")
        (output / JSON).write_text(figures + "\n", encoding="utf-8")
        click.echo(f"wrote {output / HTML} and {output / JSON}", err=True)


def _plant(told: History, plant: Fit | Calibrated) -> Fitted:
    return fitted(told, plant.given) if isinstance(plant, Fit) else Fitted(plant, ())
