"""spec.metrics: where the operator learns what the engines do."""

from __future__ import annotations

from pydantic import Field

from llamaserver.api.base import Group
from llamaserver.api.enums import MetricsSource


class MetricsSpec(Group):
    """Where the figures of the engines come from."""

    source: MetricsSource | None = Field(
        default=None,
        description="Engine: the operator asks each engine itself, every few seconds. Prometheus: for "
        "engines that it cannot reach, it asks the Prometheus that it was told of (--prometheus-url; "
        "prometheus.url of the chart), which has to scrape them and keep the labels namespace and pod. "
        "Nothing is moved in running engines then; diagnosis and replicas go on, as slowly as engines are "
        "scraped. Default: Engine. A change takes effect at the next tick, without a restart.",
    )
