"""The options by which `run` is told of a Prometheus that scrapes engines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from llamaserver.cli.history import Url
from llamaserver.cli.params import with_options

_OPTIONS = (
    click.option(
        "--prometheus-url",
        type=Url("give a bearer token with --prometheus-token-file"),
        help="Address of a Prometheus (or Thanos, Mimir) that scrapes engines: for LlamaServers with "
        "spec.metrics.source: Prometheus.",
    ),
    click.option(
        "--prometheus-token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with a bearer token for it, read anew for each request.",
    ),
    click.option(
        "--prometheus-ca-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Certificate of the authority that signed Prometheus's.",
    ),
)


def prometheus_options(command: Any) -> Any:
    """Adds the options above to a command."""
    return with_options(command, _OPTIONS)


def check_prometheus(given: Mapping[str, Any]) -> None:
    """Raises click.UsageError for a file that is for a Prometheus that nobody names."""
    for option in ("--prometheus-token-file", "--prometheus-ca-file"):
        if given[option.strip("-").replace("-", "_")] is not None and given["prometheus_url"] is None:
            raise click.UsageError(f"{option} is for a Prometheus: name that with --prometheus-url")
