"""A Prometheus in place of engines: what is new, what is too old, when it is asked again, and what is said.

Time is a number that the test moves; Prometheus is a function that answers from what was scraped until then.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from llamaserver.observe import Failure, Memory, NoWindow, Sample, Source, Unusable, Window, advance
from llamaserver.observe.series import Series
from llamaserver.prometheus import PrometheusError, PrometheusSource
from llamaserver.prometheus.source import selector
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import CPU_24M
from observe.samples import scraped

EPOCH = 1_780_000_000.0
BOOTED = 5_000.0
"""Unix time and our monotonic clock when the test begins."""
PODS = {"m-0": "uid-0/0", "m-1": "uid-1/0"}


class Scraper:
    """A Prometheus that scrapes pods every so many seconds, each at a time of its own as Prometheus does, and
    the clocks of everybody.
    """

    def __init__(self, every_s: float = 15.0) -> None:
        self.now = 0.0
        self.every_s = every_s
        self.ahead_s = 0.0
        """By how much our clock is ahead of Prometheus's."""
        self.engines: dict[str, Engine] = {}
        self.until: dict[str, float] = {}
        """When a pod is scraped no more."""
        self.scrapes: list[tuple[float, str, str]] = []
        self.asked: list[str] = []
        self.broken = ""

        self.after_s = {"m-1": 6.0}
        """How long after the first pod another one is scraped."""

    def add(self, pod: str) -> None:
        self.engines[pod] = Engine(CPU_24M)
        self.engines[pod].load(streams=4)

    def go(self, seconds: float) -> None:
        until = self.now + seconds
        for pod, engine in self.engines.items():
            after_s = self.after_s.get(pod, 0.0)
            first = int((self.now - after_s) // self.every_s) + 1
            last = int((until - after_s) // self.every_s)
            for due in (after_s + i * self.every_s for i in range(max(1, first), last + 1)):
                if due <= self.until.get(pod, due):
                    engine.run_until(due)
                    self.scrapes.append((EPOCH + due, pod, speech.metrics(engine)))
        self.now = until

    def ask(self, query: str, within_s: float) -> Sequence[Series]:
        self.asked.append(query)
        if self.broken:
            raise PrometheusError(self.broken)
        (back_s,) = (int(text) for text in re.findall(r"\[(\d+)s\]$", query))
        (metrics,) = (re.compile(f"^(?:{text})$") for text in re.findall(r'__name__=~"([^"]+)"', query))
        (pods,) = (re.compile(f"^(?:{text})$") for text in re.findall(r',pod=~"([^"]+)"', query))
        texts: dict[str, dict[float, str]] = {}
        for at, pod, text in self.scrapes:
            if pods.match(pod) and at > EPOCH + self.now - back_s:
                texts.setdefault(pod, {})[at] = text
        found = [one for pod, some in texts.items() for one in scraped(some, pod)]
        return [one for one in found if metrics.match(one.labels["__name__"])]


@pytest.fixture
def prometheus() -> Scraper:
    made = Scraper()
    for pod in PODS:
        made.add(pod)
    return made


@pytest.fixture
async def source(prometheus: Scraper) -> AsyncIterator[PrometheusSource]:
    made = PrometheusSource(
        prometheus.ask,
        monotonic=lambda: BOOTED + prometheus.now,
        wall=lambda: EPOCH + prometheus.now + prometheus.ahead_s,
        deadline_s=0.5,
    )
    yield made
    made.close()


async def read(
    source: PrometheusSource, pods: Mapping[str, str] = PODS
) -> Mapping[str, Sample | Failure] | None:
    return await source.read("ns/m", "ns", pods, 2.0)


async def messages(source: PrometheusSource, pods: Mapping[str, str] = PODS) -> dict[str, str]:
    """Why each pod cannot be decided by."""
    found = await read(source, pods)
    assert found is not None
    assert all(isinstance(one, Failure) for one in found.values()), found
    return {pod: one.message for pod, one in found.items() if isinstance(one, Failure)}


async def test_two_scrapes_are_a_window_between_the_times_of_the_scrapes(
    prometheus: Scraper, source: PrometheusSource
) -> None:
    prometheus.go(47.0)
    first = await read(source)
    prometheus.go(source.wait_s("ns/m", 2.0))
    second = await read(source)
    assert first is not None
    assert second is not None
    sample = second["m-0"]
    assert isinstance(sample, Sample)
    assert (sample.source, sample.every_s, sample.incarnation) == (Source.PROMETHEUS, 15.0, "uid-0/0")
    assert sample.at == pytest.approx(BOOTED + 60.0)
    memory, _ = advance(Memory(), first, BOOTED + 47.0)
    window = advance(memory, second, BOOTED + prometheus.now)[1]["m-0"]
    assert isinstance(window, Window)
    assert window.dt == pytest.approx(15.0)
    assert window.generation_tokens > 0


async def test_a_fleet_is_asked_for_at_once_and_when_there_can_be_something_new(
    prometheus: Scraper, source: PrometheusSource
) -> None:
    prometheus.go(47.0)
    known = await read(source)
    assert len(prometheus.asked) == 2, "how often is it scraped, and the rest"
    for _ in range(8):
        wait_s = source.wait_s("ns/m", 2.0)
        assert wait_s == pytest.approx(15.0, abs=2.0)
        prometheus.go(wait_s)
        before = len(prometheus.asked)
        found = await read(source)
        assert known is not None
        assert found is not None
        for pod in PODS:
            assert found[pod].at == pytest.approx(known[pod].at + 15.0), "there is something new of each"
        assert len(prometheus.asked) == before + 1
        known = found
    assert prometheus.asked[-1].endswith(',namespace="ns",pod=~"m-0|m-1"}[53s]')


async def test_nothing_new_is_no_news(prometheus: Scraper, source: PrometheusSource) -> None:
    prometheus.go(47.0)
    assert await read(source) is not None
    prometheus.go(2.0)
    assert await read(source) is None
    assert source.wait_s("ns/m", 2.0) < 15.0, "and what is overdue is asked for again soon"


async def test_a_pod_that_is_not_scraped_is_held_and_then_told_with_query_and_age(
    prometheus: Scraper, source: PrometheusSource
) -> None:
    prometheus.until["m-1"] = 45.0
    prometheus.go(47.0)
    found = await read(source)
    memory = Memory()
    assert found is not None
    memory, _ = advance(memory, found, BOOTED + prometheus.now)
    prometheus.go(30.0)
    found = await read(source)
    assert found is not None
    memory, windows = advance(memory, found, BOOTED + prometheus.now)
    assert isinstance(windows["m-0"], Window)
    held = windows["m-1"]
    assert isinstance(held, NoWindow), "no second look at the same scrape is a window"
    assert held.why is Unusable.NOT_SCRAPED
    assert held.last is not None
    prometheus.go(30.0)
    found = await read(source)
    assert found is not None
    assert isinstance(found["m-0"], Sample)
    old = found["m-1"]
    assert isinstance(old, Failure)
    assert old.why is Unusable.NOT_SCRAPED
    assert "71 s old, and more than 53 s is too old" in old.message
    assert 'vllm:num_requests_running{namespace="ns"}[53s]' in old.message
    prometheus.until.clear()
    prometheus.go(15.0)
    found = await read(source)
    assert found is not None
    assert isinstance(found["m-1"], Sample), "and it is read again when it is scraped again"


async def test_a_pod_that_prometheus_never_heard_of_is_told_with_what_to_do(
    prometheus: Scraper, source: PrometheusSource
) -> None:
    del prometheus.engines["m-1"]
    prometheus.go(47.0)
    found = await read(source)
    assert found is not None
    assert isinstance(found["m-0"], Sample)
    missing = found["m-1"]
    assert isinstance(missing, Failure)
    assert missing.message == (
        "Prometheus has no figures of it from the last 53 s "
        '(vllm:num_requests_running{namespace="ns"}[53s]): let it scrape /metrics of the pod\'s port http '
        "(https with spec.engine.tls), and keep the labels namespace and pod"
    )


async def test_scrapes_too_far_apart_are_not_decided_by(
    source: PrometheusSource, prometheus: Scraper
) -> None:
    prometheus.every_s = 90.0
    prometheus.go(200.0)
    assert set((await messages(source)).values()) == {
        "Prometheus scrapes it every 90 s, too seldom to decide by: let it do so every 60 s or more often"
    }


async def test_a_prometheus_that_fails_is_asked_less_and_less_and_the_age_is_told(
    prometheus: Scraper, source: PrometheusSource
) -> None:
    prometheus.go(47.0)
    await read(source)
    prometheus.broken = "Prometheus http://p answered 503: it is asked again"
    waits = []
    for _ in range(7):
        said = await messages(source)
        waits.append(source.wait_s("ns/m", 2.0))
        prometheus.go(waits[-1])
    assert waits == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert said["m-0"] == f"{prometheus.broken}; the newest figures are 182 s old"
    prometheus.broken = ""
    found = await read(source)
    assert found is not None
    assert isinstance(found["m-0"], Sample)
    assert source.wait_s("ns/m", 2.0) <= 16.0


@pytest.mark.parametrize(("ahead_s", "said"), [(100.0, "s old"), (-30.0, "s in the future")])
async def test_clocks_that_differ_are_told_and_not_decided_by(
    ahead_s: float, said: str, prometheus: Scraper, source: PrometheusSource
) -> None:
    prometheus.go(47.0)
    prometheus.ahead_s = ahead_s
    (text,) = set((await messages(source)).values())
    assert f"{said} by the operator's clock" in text


async def test_a_step_of_our_clock_to_the_right_time_does_not_move_the_scrapes(
    prometheus: Scraper, source: PrometheusSource
) -> None:
    prometheus.ahead_s = 40.0
    prometheus.go(47.0)
    await read(source)
    prometheus.ahead_s = 0.0
    prometheus.go(15.0)
    found = await read(source)
    assert found is not None
    sample = found["m-0"]
    assert isinstance(sample, Sample)
    assert sample.at == pytest.approx(BOOTED + 60.0)


async def test_a_question_that_hangs_costs_its_fleet_the_deadline_and_others_nothing(
    prometheus: Scraper, source: PrometheusSource
) -> None:
    prometheus.go(47.0)
    hangs, answers = threading.Event(), prometheus.ask

    def ask(query: str, within_s: float) -> Sequence[Series]:
        if 'namespace="slow"' in query:
            hangs.wait(10)
        return answers(query, within_s)

    source._ask = ask
    waiting = asyncio.create_task(source.read("slow/m", "slow", PODS, 2.0))
    await asyncio.sleep(0)
    assert await read(source) is not None
    assert not waiting.done()
    found = await waiting
    assert found is not None
    late = found["m-0"]
    assert isinstance(late, Failure)
    assert late.message == "Prometheus did not answer within 0.5 s"
    again = await source.read("slow/m", "slow", PODS, 2.0)
    assert again is not None
    late = again["m-0"]
    assert isinstance(late, Failure)
    assert "still at the question before this one" in late.message, "and no second thread is taken"
    hangs.set()
    await asyncio.sleep(0.1)
    assert await source.read("slow/m", "slow", PODS, 2.0) is not None


async def test_a_fleet_that_is_gone_leaves_nothing(prometheus: Scraper, source: PrometheusSource) -> None:
    prometheus.go(47.0)
    await read(source)
    assert await read(source, {}) == {}, "no pods: nobody is asked"
    source.forget("ns/m")
    assert source._fleets == {}


def test_many_pods_are_asked_for_by_what_their_names_begin_with() -> None:
    few = selector("x", "ns", ["chat-1", "chat.b-2"], 30.0)
    assert few == '{__name__=~"x",namespace="ns",pod=~"chat-1|chat[.]b-2"}[30s]'
    many = selector("x", "ns", [f"chat-{i}" for i in range(51)], 30.0)
    assert many == '{__name__=~"x",namespace="ns",pod=~"chat-.+"}[30s]'
