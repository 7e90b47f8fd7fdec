"""A fleet that only a Prometheus reaches, in virtual time: replicas are decided, engines are left alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llamaserver.api import effective, parse
from llamaserver.api.names import child_labels
from llamaserver.cluster.kinds import DEPLOYMENT, POD
from llamaserver.control import Cause, Objective
from llamaserver.controller import Options
from llamaserver.controller.cache import Cache
from llamaserver.controller.figures import NO_PROMETHEUS, Figures, prometheus_of
from llamaserver.controller.mandate import Mandate
from llamaserver.controller.queue import Key
from llamaserver.controller.runtime import Server
from llamaserver.controller.tick import Ticker, TickTimes
from llamaserver.engine import Target
from llamaserver.observe import Failure, Unusable
from llamaserver.observe.series import Series
from llamaserver.prometheus import PrometheusError, PrometheusSource
from llamaserver.simulate import speech
from llamaserver.simulate.profiles import CPU_24M, slower
from llamaserver.simulate.rules.caps import Static
from llamaserver.simulate.world import World
from llamaserver.telemetry import Metrics
from observe.samples import scraped

KEY = Key("ns", "chat")
EPOCH = 1_780_000_000.0
MACHINE = replace(slower(CPU_24M, 5.0), max_num_seqs=12)


class Unreachable:
    """Engines that nobody can reach, nor is to try."""

    async def scrape(self, target: Any, deadline_s: float) -> Failure:
        raise AssertionError("an engine was asked")

    async def put(self, *_: Any) -> None:
        raise AssertionError("an engine was changed")

    def forget(self, pod: str) -> None:
        pass


class Day:
    """Engines in virtual time, a Prometheus that scrapes them, and the fast loop on its figures."""

    def __init__(self, every_s: float, streams: float) -> None:
        self.every_s = every_s
        self.world = World(
            Objective(None),
            profile=MACHINE,
            streams=lambda _: streams,
            tick_s=every_s,
            caps_by=Static(),
            cold_start_s=30.0,
        )
        self.scrapes: list[tuple[float, str, str]] = []
        self.silent = False
        self.now = 0.0
        self.server = Server(KEY, "uid")
        self.server.spec = spec(source="Prometheus")
        self.cache = Cache(lambda: 0.0)
        source = PrometheusSource(self.ask, monotonic=lambda: self.now, wall=lambda: EPOCH + self.now)
        self.source = source
        self.ticker = Ticker(
            cache=self.cache,
            engines=Unreachable(),  # type: ignore[arg-type]
            mandate=Mandate(lambda: True, lambda: True),
            queue=SimpleNamespace(add=lambda *_, **__: None),  # type: ignore[arg-type]
            metrics=Metrics(),
            monotonic=lambda: self.now,
            wall=lambda: datetime.fromtimestamp(EPOCH + self.now, UTC),
            times=TickTimes(),
            prometheus=source,
        )

    def ask(self, query: str, within_s: float) -> Sequence[Series]:
        if self.silent:
            raise PrometheusError("Prometheus http://p cannot be reached (refused)")
        back_s = int(re.findall(r"\[(\d+)s\]$", query)[0])
        texts: dict[str, dict[float, str]] = {}
        for at, pod, text in self.scrapes:
            if at > self.now - back_s:
                texts.setdefault(pod, {})[EPOCH + at] = text
        found = [one for pod, some in texts.items() for one in scraped(some, pod)]
        return [one for one in found if re.fullmatch(_metrics(query), one.labels["__name__"])]

    async def run(self, until: float) -> None:
        while self.now < until:
            if self.world.now <= self.now:
                self.world.tick()
                self.scrapes += [
                    (self.world.now, pod, speech.metrics(e)) for pod, e in self.world.engines.items()
                ]
            self.now = max(self.now, self.world.now + 0.5)
            self._show_pods()
            await self.ticker.tick(self.server)
            wanted = self.server.decided_replicas
            if wanted is not None and wanted != self.world.replicas:
                self.world._scale(wanted)
            wait_s = self.ticker._figures.pause_s(KEY, self.server.spec, 0.0)
            self.now = min(self.now + wait_s, self.world.now + self.every_s)

    def _show_pods(self) -> None:
        metadata = {"namespace": "ns", "name": "chat", "uid": "d", "labels": child_labels("chat")}
        self.cache.put(DEPLOYMENT, {"metadata": metadata, "spec": {"replicas": self.world.replicas}})
        gone = {obj["metadata"]["name"] for obj in self.cache.pods(KEY)} - self.world.engines.keys()
        for name in gone:
            self.cache.drop(POD, "ns", name)
        for name in self.world.engines:
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            status = {"phase": "Running", "podIP": "192.0.2.1", "conditions": [ready]}
            pod = {**metadata, "name": name, "uid": name, "resourceVersion": "1"}
            self.cache.put(POD, {"metadata": pod, "status": status})


def _metrics(query: str) -> str:
    return re.findall(r'__name__=~"([^"]+)"', query)[0]


def spec(source: str | None = None) -> Any:
    content: dict[str, Any] = {
        "model": {"uri": "hf://org/model"},
        "engine": {"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 12},
        "slo": {"interTokenLatency": {"target": "80ms", "statistic": "mean"}},
        "scaling": {"minReplicas": 1, "maxReplicas": 6},
    }
    if source is not None:
        content["metrics"] = {"source": source}
    server = {
        "apiVersion": "llamaserver.dev/v1alpha1",
        "kind": "LlamaServer",
        "metadata": {"namespace": "ns", "name": "chat"},
        "spec": content,
    }
    return effective(parse(server).spec)


async def test_replicas_follow_a_demand_that_only_prometheus_tells() -> None:
    day = Day(every_s=15.0, streams=30)
    await day.run(600.0)
    assert day.world.replicas in (3, 4), "30 streams, 12 to a replica"
    assert day.world.scales[0][0] <= 120
    report = day.server.report
    assert report is not None
    assert (report.silent, report.every_s) == ({}, 15.0)
    assert {pod.state for pod in report.pods} == {"FromPrometheus"}
    assert len(report.pods) == day.world.replicas
    assert report.decision.observed.itl_s is not None
    assert report.decision.diagnosis.cause is not Cause.STALE
    day.source.close()


async def test_a_prometheus_that_falls_silent_holds_replicas_and_says_so() -> None:
    day = Day(every_s=15.0, streams=30)
    await day.run(600.0)
    before = list(day.world.scales)
    day.silent = True
    day.world.streams = lambda _: 0
    await day.run(1500.0)
    assert day.world.scales == before, "no figures are no lack of demand"
    report = day.server.report
    assert report is not None
    assert report.pods == ()
    assert report.decision.diagnosis.cause is Cause.STALE
    said = set(report.silent.values())
    assert len(said) == 1
    assert re.search(r"cannot be reached \(refused\); the newest figures are \d+ s old$", said.pop())
    day.silent = False
    await day.run(3000.0)
    assert day.world.replicas == 1, "and then it is one"
    day.source.close()


async def test_without_a_prometheus_the_source_is_told_to_be_missing() -> None:
    figures = Figures(
        Unreachable(),  # type: ignore[arg-type]
        None,
        monotonic=lambda: 7.0,
        every_s=2.0,
        scrape_s=1.5,
    )
    target = Target("chat-0", "uid", 0, "192.0.2.1", 8000)
    found = await figures.read(KEY, spec(source="Prometheus"), {"chat-0": target})
    assert found == {"chat-0": Failure(7.0, Unusable.UNREACHABLE, NO_PROMETHEUS)}
    assert figures.pause_s(KEY, spec(source="Prometheus"), took=0.5) == 1.5
    figures.forget(KEY)


def test_the_operator_knows_no_prometheus_unless_it_is_told_of_one() -> None:
    assert prometheus_of(Options(), lambda: 0.0) is None


async def test_the_operator_identifies_itself_as_it_was_told(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("two words\n")
    options = Options(prometheus_url="http://127.0.0.1:9", prometheus_token_file=token)
    source = prometheus_of(options, lambda: 0.0)
    assert source is not None
    found = await source.read("ns/chat", "ns", {"chat-0": "uid/0"}, 2.0)
    source.close()
    assert found is not None
    failure = found["chat-0"]
    assert isinstance(failure, Failure)
    assert (
        failure.message == f"--prometheus-token-file {token} holds no token: it has to be one word of ASCII"
    )


@pytest.mark.parametrize("source", [None, "Engine"])
async def test_other_servers_are_asked_themselves(source: str | None) -> None:
    class Engines(Unreachable):
        async def scrape(self, target: Any, deadline_s: float) -> Failure:
            return Failure(0.0, Unusable.UNREACHABLE, f"no answer within {deadline_s} s")

    def ask(query: str, within_s: float) -> Sequence[Series]:
        raise AssertionError("Prometheus was asked")

    prometheus = PrometheusSource(ask, monotonic=lambda: 0.0, wall=lambda: EPOCH)
    engines: Any = Engines()
    figures = Figures(engines, prometheus, monotonic=lambda: 0.0, every_s=2.0, scrape_s=1.5)
    target = Target("chat-0", "uid", 0, "192.0.2.1", 8000)
    found = await figures.read(KEY, spec(source), {"chat-0": target})
    assert found == {"chat-0": Failure(0.0, Unusable.UNREACHABLE, "no answer within 1.5 s")}
    assert figures.pause_s(KEY, spec(source), took=0.5) == 1.5
    prometheus.close()
