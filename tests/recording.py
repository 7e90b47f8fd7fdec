"""A simulated fleet as a Prometheus would have seen it: scraped at an even distance, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from llamaserver.control import Objective
from llamaserver.observe.series import SCRAPED_AT, Series
from llamaserver.simulate import speech
from llamaserver.simulate.demand import Request
from llamaserver.simulate.profiles import CPU_24M, Profile
from llamaserver.simulate.rules.caps import Static
from llamaserver.simulate.world import World

EPOCH = 1_780_000_000
"""When recordings begin unless told."""


@dataclass
class Recording:
    """(seconds since the epoch, pod, what its /metrics said), in the order of time."""

    scrapes: list[tuple[float, str, str]]
    world: World | None = None

    def lines(self) -> Iterator[str]:
        """As OpenMetrics with times, for `promtool tsdb create-blocks-from openmetrics`."""
        for at, pod, text in self.scrapes:
            target = f'instance="{pod}:8000",namespace="chat",pod="{pod}"'
            for line in text.splitlines():
                labels, _, value = line.rpartition(" ")
                yield (
                    f"{labels[:-1]},{target}}} {value} {at:g}"
                    if at < 1e5
                    else (f"{labels[:-1]},{target}}} {value} {at:.3f}")
                )
        yield "# EOF"

    def series(self) -> dict[str, list[Series]]:
        """As `llamaserver.prometheus.read` gives it, with a point at every scrape."""
        found: dict[tuple[str, frozenset[tuple[str, str]]], list[tuple[float, float]]] = {}
        for at, pod, text in self.scrapes:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = {**sample.labels, "pod": pod, "instance": f"{pod}:8000"}
                    key = (sample.name.removeprefix("vllm:"), frozenset(labels.items()))
                    found.setdefault(key, []).append((at, float(sample.value)))
            stamp = (SCRAPED_AT, frozenset({"pod": pod, "instance": f"{pod}:8000"}.items()))
            found.setdefault(stamp, []).append((at, at))
        by_name: dict[str, list[Series]] = {}
        for (name, labels), points in found.items():
            by_name.setdefault(name, []).append(Series(dict(labels), points))
        return by_name


def record(
    requests: list[Request],
    until: float,
    *,
    every: float = 10.0,
    profile: Profile = CPU_24M,
    replicas: int = 1,
    began: float = EPOCH,
    meddle: Callable[[World], None] = lambda _: None,
    static: Static | None = None,
) -> Recording:
    """Runs engines as vLLM starts them on `requests`; `meddle` is called before each tick."""
    world = World(
        Objective(None), profile=profile, requests=requests, replicas=replicas, caps_by=static or Static()
    )
    found = Recording([], world)
    _scrape(found, world, began)
    while world.now < until - 1e-9:
        meddle(world)
        world.tick()
        if world.now % every < 1e-9:
            _scrape(found, world, began)
    return found


def _scrape(found: Recording, world: World, began: float) -> None:
    found.scrapes += [(began + world.now, name, speech.metrics(e)) for name, e in world.engines.items()]
