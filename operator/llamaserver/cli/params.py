"""Kinds of values that options take."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from llamaserver.api.duration import parse_duration
from llamaserver.api.enums import LatencyScope, Statistic
from llamaserver.control import Objective


def with_options(command: Any, options: Sequence[Callable[[Any], Any]]) -> Any:
    """The command with these options, which `--help` shows in this order."""
    for option in reversed(options):
        command = option(command)
    return command


class DurationParam(click.ParamType[float]):
    """A duration with its unit, such as 2s, 500ms or 2m; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Seconds(DurationParam):
    """The same for options whose name tells the unit, where a bare number is one of seconds."""

    def __init__(self, most: float | None = None) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        bare = text.replace(".", "", 1).isdigit()
        seconds = float(text) if bare else super().convert(text, param, ctx)
        if seconds <= 0:
            self.fail("must be more than zero", param, ctx)
        if self._most is not None and seconds > self._most:
            self.fail(f"must be at most {self._most:g}s", param, ctx)
        return seconds


_REQUEST = "request"


class ObjectiveParam(click.ParamType[Objective]):
    """A latency objective such as p95:40ms, or p95/request:40ms where it is of requests and not of tokens; or
    `none` for as much throughput as there is.
    """

    name = "statistic:duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Objective:
        if isinstance(value, Objective):
            return value
        if value == "none":
            return Objective(None)
        what, _, target = str(value).partition(":")
        statistic, of, scope = what.partition("/")
        known = [s.value for s in Statistic]
        if statistic not in known or scope != (_REQUEST if of else "") or not target:
            self.fail(
                f"{value!r} is no objective; write one of {', '.join(known)} and a duration, as p95:40ms, "
                "or as p95/request:40ms for the time per output token of requests",
                param,
                ctx,
            )
        try:
            seconds = parse_duration(target)
            of_what = LatencyScope.REQUEST if of else LatencyScope.TOKEN
            return Objective(seconds, Statistic(statistic), itl_scope=of_what)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class OutputParam(click.ParamType[Path]):
    """A folder to write into. It is made at once, so that a run of minutes does not end in an error."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        folder = Path(value)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.fail(f"{folder} cannot be made ({error.strerror}): give a folder to write into", param, ctx)
        if not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"nothing may be written into {folder}: give another folder", param, ctx)
        return folder


cold_start_option = click.option(
    "--cold-start",
    type=DurationParam(),
    default="60s",
    show_default=True,
    help="From asking for a replica to its first token.",
)

objective_option = click.option(
    "--objective",
    type=ObjectiveParam(),
    default="p95:30ms",
    show_default=True,
    help="The latency between two tokens to hold: mean, p50, p90, p95 or p99, and a duration; "
    "p95/request:30ms for that of requests, each by its time per output token; or none.",
)
