"""The options by which `replay` is told of a Prometheus, of engines and of a time."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from llamaserver.cli.params import DurationParam, with_options
from llamaserver.prometheus import Access, Asked, PrometheusError, read_token

LAST_S = 3600.0


class Moment(click.ParamType[float]):
    """A time: ISO 8601 (UTC unless it says otherwise), seconds since the epoch, or `now`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        if text == "now":
            return time.time()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r} is no time; write it as 2026-05-01T10:00, as seconds since 1970, or now",
                param,
                ctx,
            )
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


class Url(click.ParamType[str]):
    """The address of a Prometheus. `instead` says how to identify oneself without a password in it."""

    name = "url"

    def __init__(
        self,
        instead: str = "put `Basic ...` into an environment variable and give --header "
        "Authorization=VARIABLE",
    ) -> None:
        self._instead = instead

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        parts = urlsplit(str(value))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            self.fail(f"{value!r} is no address; write it as http://localhost:9090", param, ctx)
        if parts.password is not None or parts.username is not None:
            self.fail(f"a password in an address is seen by others; {self._instead}", param, ctx)
        return str(value).rstrip("/")


_OPTIONS = (
    click.option(
        "--prometheus",
        "url",
        type=Url(),
        required=True,
        help="Address of the Prometheus (or Thanos, Mimir), as http://localhost:9090.",
    ),
    click.option(
        "--model", help="Only engines that serve this model (model_name). Needed where there are several."
    ),
    click.option(
        "--selector",
        default="",
        help='Only series that match, in PromQL: \'namespace="chat",pod=~"llama.*"\'.',
    ),
    click.option(
        "--last",
        type=DurationParam(),
        help=f"So much time until now, or until --end. Default: {LAST_S / 3600:g}h.",
    ),
    click.option("--start", type=Moment(), help="From when on, instead of --last: 2026-05-01T10:00 (UTC)."),
    click.option("--end", type=Moment(), default="now", show_default=True, help="Until when."),
    click.option(
        "--step",
        type=DurationParam(),
        help="Distance of the points to read, in whole seconds. Default: how often engines were scraped.",
    ),
    click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with a bearer token for Prometheus.",
    ),
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="NAME=VARIABLE",
        help="A header for Prometheus, its value from the environment variable that is named: with "
        "TENANT=team-a exported, X-Scope-OrgID=TENANT. May be given several times.",
    ),
    click.option(
        "--ca-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Certificate of the authority that signed Prometheus's.",
    ),
    click.option("--insecure-skip-verify", is_flag=True, help="Trust any certificate."),
    click.option(
        "--timeout",
        type=DurationParam(),
        default="30s",
        show_default=True,
        help="How long to wait for one answer.",
    ),
)


def history_options(command: Any) -> Any:
    """Adds the options above to a command."""
    return with_options(command, _OPTIONS)


def access_from(given: Mapping[str, Any]) -> Access:
    """How to reach Prometheus. Raises click.UsageError."""
    headers: dict[str, str] = {}
    for pair in given["headers"]:
        name, _, variable = pair.partition("=")
        if variable and variable not in os.environ:
            raise click.UsageError(
                f"--header {name}: the environment variable {variable} is not set; its value is read there, "
                "so that it is not on the command line"
            )
        if not re.fullmatch(r"[A-Za-z0-9-]+", name) or not variable:
            raise click.UsageError(
                f"--header {name}=...: write it as NAME=VARIABLE, where VARIABLE is an environment variable "
                "that holds the value"
            )
        value = os.environ[variable].strip()
        if not value or not value.isascii() or not value.isprintable():
            raise click.UsageError(
                f"--header {name}: what {variable} holds is no value of a header; it has to be one line of "
                "printable ASCII"
            )
        headers[name] = value
    if (file := given["token_file"]) is not None:
        try:
            headers["Authorization"] = f"Bearer {read_token(file, '--token-file')}"
        except PrometheusError as error:
            raise click.UsageError(str(error)) from error
    if given["ca_file"] is not None and given["insecure_skip_verify"]:
        raise click.UsageError("--ca-file and --insecure-skip-verify exclude each other: give one of them")
    return Access(
        given["url"], headers, given["ca_file"], not given["insecure_skip_verify"], float(given["timeout"])
    )


def asked_from(given: Mapping[str, Any]) -> Asked:
    """Which engines, and when. Raises click.UsageError."""
    start, end, last, step = given["start"], given["end"], given["last"], given["step"]
    if start is not None and last is not None:
        raise click.UsageError("--start and --last exclude each other: give one of them")
    start = start if start is not None else end - (last or LAST_S)
    if end > time.time() + 1.0:
        raise click.UsageError("--end is in the future, of which there is no history: choose an earlier one")
    if start >= end:
        raise click.UsageError("--start is not before --end: choose an earlier one, or give --last")
    if step is not None and step != math.floor(step):
        raise click.UsageError(f"--step {step:g}s is no whole number of seconds: give one")
    whole = None if step is None else round(step)
    return Asked(math.floor(start), math.floor(end), given["model"], given["selector"], whole)
