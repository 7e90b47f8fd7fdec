"""Where a tick has its figures from: the engines themselves, or a Prometheus that scrapes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.enums import MetricsSource
from llamaserver.controller.options import Options
from llamaserver.controller.queue import Key
from llamaserver.engine import EngineClient, Target
from llamaserver.observe import Failure, Sample, Unusable
from llamaserver.prometheus import CURES, DEADLINE_S, Access, Prometheus, PrometheusSource

NO_PROMETHEUS = (
    "spec.metrics.source is Prometheus, but the operator was told of none: give it --prometheus-url "
    "(prometheus.url of the chart)"
)


class Figures:
    """Asks whom a LlamaServer's spec names. `every_s` and `scrape_s` are the tick's, in seconds."""

    def __init__(
        self,
        engines: EngineClient,
        prometheus: PrometheusSource | None,
        *,
        monotonic: Callable[[], float],
        every_s: float,
        scrape_s: float,
    ) -> None:
        self._engines = engines
        self._prometheus = prometheus
        self._monotonic = monotonic
        self._every_s = every_s
        self._scrape_s = scrape_s

    async def read(
        self, key: Key, spec: EffectiveSpec, targets: Mapping[str, Target]
    ) -> Mapping[str, Sample | Failure] | None:
        """What is known of each pod now; None where that is what was known at the last tick."""
        if spec.metrics_source is not MetricsSource.PROMETHEUS:
            return await self._scrape(targets)
        if self._prometheus is None:
            return dict.fromkeys(targets, Failure(self._monotonic(), Unusable.UNREACHABLE, NO_PROMETHEUS))
        lives = {name: target.incarnation for name, target in targets.items()}
        return await self._prometheus.read(str(key), key.namespace, lives, self._every_s)

    def pause_s(self, key: Key, spec: EffectiveSpec | None, took: float) -> float:
        """Seconds from a tick that took so long to the next: no sooner than there can be something new."""
        by_prometheus = spec is not None and spec.metrics_source is MetricsSource.PROMETHEUS
        if by_prometheus and self._prometheus is not None:
            return self._prometheus.wait_s(str(key), self._every_s)
        return max(self._every_s - took, self._every_s / 10)

    def forget(self, key: Key) -> None:
        """The LlamaServer is gone."""
        if self._prometheus is not None:
            self._prometheus.forget(str(key))

    async def _scrape(self, targets: Mapping[str, Target]) -> dict[str, Sample | Failure]:
        answers = await asyncio.gather(
            *(self._engines.scrape(target, self._scrape_s) for target in targets.values())
        )
        return dict(zip(targets, answers, strict=True))


def prometheus_of(options: Options, monotonic: Callable[[], float]) -> PrometheusSource | None:
    """The Prometheus that the operator was told of. Raises PrometheusError where the library is missing."""
    if options.prometheus_url is None:
        return None
    access = Access(
        options.prometheus_url,
        ca_file=options.prometheus_ca_file,
        token_file=options.prometheus_token_file,
        timeout_s=DEADLINE_S,
        retries=0,
        cures=CURES,
    )
    return PrometheusSource(Prometheus(access).samples, monotonic=monotonic, wall=time.time)
