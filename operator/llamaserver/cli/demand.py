"""The options by which `simulate` and `plan` are told of a demand and a machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from llamaserver.cli.params import DurationParam, with_options
from llamaserver.control.objective import JUDGED_S
from llamaserver.simulate.demand import Demand
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.outcome import SETTLE_S
from llamaserver.simulate.profiles import PROFILES, Calibrated, parse_profile
from llamaserver.simulate.shapes import OVERLOAD, SHAPES, Size, shaped
from llamaserver.simulate.traces import demand_of, no_prefixes

LEAST_S = SETTLE_S + JUDGED_S
HALF = 0.5
"""Where an open-loop shape begins, over what all replicas do at their ceiling."""


class ProfileParam(click.ParamType[Calibrated]):
    """The name of a profile, or one's own figures."""

    name = "profile"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Calibrated:
        if isinstance(value, Calibrated):
            return value
        try:
            return parse_profile(str(value))
        except SimulationError as error:
            self.fail(str(error), param, ctx)


_OPTIONS = (
    click.option(
        "--profile",
        type=ProfileParam(),
        default="H100-8B",
        show_default=True,
        help=f"The machine and the model of a replica: {', '.join(PROFILES)}; or your own as "
        "a=7ms,b=14us,g=50ns,d=25us,kv_tokens=400000 (seconds per step, sequence, resident token and prefill "
        "token); or one changed, as H100-8B,max_num_seqs=512,budget=2048. A profile "
        "also has c, gpus, knee and max_model_len.",
    ),
    click.option(
        "--trace",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A trace of requests: Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens), Mooncake's JSON "
        "lines, or a CSV of rates (t_s,req_per_s) that is used as a shape.",
    ),
    click.option(
        "--shape",
        type=click.Choice(list(SHAPES)),
        help="Without a trace: steady or mix (clients that ask again when they are answered), poisson, step "
        "or ramp (requests that come by themselves). Default: steady.",
    ),
    click.option(
        "--duration",
        type=DurationParam(),
        default="10m",
        show_default=True,
        help="Virtual time to simulate. A shape is stretched to it; a trace is cut there, if it is so long.",
    ),
    click.option(
        "--start",
        type=DurationParam(),
        help="Where in a trace to begin, as 10m. Default: at its beginning.",
    ),
    click.option(
        "--speed",
        type=click.FloatRange(0.01, 1000),
        default=1.0,
        show_default=True,
        help="Play a trace so many times as fast; how to give it another rate.",
    ),
    click.option(
        "--streams",
        type=click.IntRange(1, 100_000),
        help="Clients of the shapes steady and mix, over all replicas. Default: a quarter more than there "
        "are places (max_num_seqs x replicas).",
    ),
    click.option(
        "--rate",
        type=click.FloatRange(0.001, 100_000),
        help="Requests per second with which the shapes poisson, step and ramp begin, or the mean of a CSV "
        "of rates. Default for the former: half of what the replicas do at their ceiling.",
    ),
    click.option(
        "--input-tokens",
        type=click.FloatRange(1, 1_000_000),
        help="Mean prompt of shapes. Default: 1000 (CPU: 120).",
    ),
    click.option(
        "--output-tokens",
        type=click.FloatRange(2, 1_000_000),
        help="Mean output of shapes. Default: 200 (CPU: 180).",
    ),
)


def demand_options(command: Any) -> Any:
    """Adds the options above to a command."""
    return with_options(command, _OPTIONS)


def _shapes(closed: bool) -> str:
    return ", ".join(name for name, shape in SHAPES.items() if shape.closed == closed)


def routable(given: dict[str, Any]) -> None:
    """Raises click.UsageError where the options ask for clients that stay with their replica."""
    name = given["shape"] or "steady"
    if given["trace"] is None and SHAPES[name].closed:
        raise click.UsageError(
            f"the shape {name} has clients that stay with their replica, whom no router moves: leave "
            "--router out, or give a --trace or a --shape of requests that come by themselves: "
            f"{_shapes(False)}"
        )


def demand_from(given: dict[str, Any], replicas: int, prefixes: bool = False) -> Callable[[int], Demand]:
    """The demand by seed that the options ask for; with `prefixes` one that tells what its prompts share.
    Raises SimulationError and click.UsageError.
    """
    calibrated: Calibrated = given["profile"]
    trace, shape, duration_s = given["trace"], given["shape"], given["duration"]
    if duration_s < LEAST_S:
        raise click.UsageError(
            f"--duration {duration_s:g}s is too short: figures begin at {SETTLE_S:g} s and are of windows of "
            f"{JUDGED_S:g} s; give at least {LEAST_S:g}s"
        )
    if trace is not None and shape is not None:
        raise click.UsageError("--trace and --shape exclude each other: give one of them")
    prompt = given["input_tokens"] or calibrated.prompt
    output = given["output_tokens"] or calibrated.output
    profile = calibrated.profile
    rate = given["rate"]
    streams = given["streams"] or round(OVERLOAD * replicas * profile.max_num_seqs)
    usual = HALF * replicas * profile.ceiling_tokens_per_s(prompt, output) / output
    size = Size(duration_s, streams, rate or usual, prompt, output)
    if trace is None:
        name = shape or "steady"
        if prefixes:
            raise no_prefixes(f"the shape {name}")
        if not SHAPES[name].closed and given["streams"] is not None:
            raise click.UsageError(
                f"the shape {name} has no clients that wait: give --rate, or a --shape that has some: "
                f"{_shapes(True)}"
            )
        if SHAPES[name].closed and rate is not None:
            raise click.UsageError(
                f"the shape {name} has no rate: give --streams, or a --shape that has one: {_shapes(False)}"
            )
        return lambda seed: shaped(name, size, seed)
    return lambda seed: demand_of(
        trace,
        start_s=given["start"] or 0.0,
        duration_s=duration_s,
        speed=given["speed"],
        rate=rate,
        lengths=size.lengths,
        seed=seed,
        prefixes=prefixes,
    )
