"""A Prometheus instead of the engines: the newest that it has of a fleet, as samples.

One question for a whole fleet and one at a time for each, on a few threads of their own, with a deadline.
All metrics are asked for at once, for the answers to several questions would be of several scrapes. Whether
figures are still those of now is judged by the clock of Prometheus: it is asked for what it scraped lately,
and what it did not scrape is missing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

from llamaserver.observe import FORGIVEN_SCRAPES, Failure, Sample, Source, Unusable, names, read_series
from llamaserver.observe.scraped import Scrape, interval, newest
from llamaserver.observe.series import Series
from llamaserver.prometheus.client import Cures
from llamaserver.prometheus.errors import PrometheusError
from llamaserver.prometheus.threads import DaemonThreads

THREADS = 4
DEADLINE_S = 10.0
SLOWEST_S = 60.0
"""Engines that are scraped more seldom cannot be decided by."""
MOST_BACK_S = FORGIVEN_SCRAPES * SLOWEST_S
LEAST_BACK_S = 30.0
LATE_S = 0.5
"""What a scrape may take until it can be asked for."""
UNKNOWN_EVERY_S = 15.0
"""How far apart scrapes are taken to be while only one was seen."""
MOST_PAUSE_S = 60.0
SKEW_S = 5.0
MOST_NAMES = 50
"""Of more pods than this the beginning of their names is asked for: an address has its limits."""
CURES = Cures(
    url="Prometheus",
    trust="--prometheus-ca-file (prometheus.caConfigMap of the chart)",
    token="--prometheus-token-file",  # noqa: S106 - an option
    identify="give a bearer token with --prometheus-token-file (prometheus.tokenSecret of the chart)",
    reach="check --prometheus-url (prometheus.url of the chart), and the network policies between it and the "
    "operator",
    slow="",
    refused="it has to take range selectors, as Prometheus, Thanos and Mimir do",
    again="it is asked again",
)
REASON, MESSAGE = "FromPrometheus", "figures come from Prometheus, and engines are not asked or changed"

Ask = Callable[[str, float], Sequence[Series]]
"""A query, and within how many seconds it is answered or given up. Raises PrometheusError."""
Results = Mapping[str, Sample | Failure]


@dataclass(frozen=True)
class _Found:
    """What one look found."""

    scrapes: Mapping[str, Scrape]
    every_s: float | None
    back_s: float
    """Of how many seconds samples were asked for."""


@dataclass
class _Fleet:
    """What is remembered of one fleet between two looks."""

    every_s: float | None = None
    known: dict[str, tuple[float, Sample | Failure]] = field(default_factory=dict)
    """Time of the newest scrape that was ever seen, and what became of it, by pod."""
    asking: Future[_Found] | None = None
    failures: int = 0
    due: float = -math.inf


class PrometheusSource:
    """What a Prometheus has of many fleets. `ask` is a query that blocks; `wall` is Unix time."""

    def __init__(
        self,
        ask: Ask,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._wall = wall
        self._deadline_s = deadline_s
        self._offset_s = monotonic() - wall()
        self._threads: DaemonThreads[_Found] = DaemonThreads(THREADS, "prometheus")
        self._fleets: dict[str, _Fleet] = {}

    def close(self) -> None:
        """Asks no more. A request under way ends at its deadline, or with the process if that is sooner."""
        self._threads.close()

    def forget(self, fleet: str) -> None:
        """Drop what is remembered of a fleet that is gone."""
        self._fleets.pop(fleet, None)

    def wait_s(self, fleet: str, tick_s: float) -> float:
        """When the next look at this fleet is worth it, in seconds; `tick_s` at least."""
        known = self._fleets.get(fleet)
        return tick_s if known is None else max(tick_s, known.due - self._monotonic())

    async def read(
        self, fleet: str, namespace: str, pods: Mapping[str, str], tick_s: float
    ) -> Results | None:
        """The newest of each pod, given with its incarnation; None where nothing is newer than last time, and
        still of now. Does not raise for what Prometheus does, or says.
        """
        state = self._fleets.setdefault(fleet, _Fleet())
        before = dict(state.known)
        if not pods:
            state.known, state.due = {}, -math.inf
            return {}
        try:
            found = await self._found(state, namespace, pods)
            state.every_s = found.every_s
            results = self._results(state, found, namespace, pods)
        except PrometheusError as error:
            state.failures += 1
            state.due = self._monotonic() + min(MOST_PAUSE_S, tick_s * 2.0 ** min(state.failures, 16))
            text = f"{error}{self._age(state)}"
            return dict.fromkeys(pods, self._failure(Unusable.UNREACHABLE, text))
        state.failures = 0
        fresh = any(at > before.get(pod, (-math.inf,))[0] for pod, (at, _) in state.known.items())
        state.due = self._monotonic() + self._pause_s(state, fresh, results)
        failed = any(isinstance(result, Failure) for result in results.values())
        return results if fresh or failed or before.keys() != results.keys() else None

    async def _found(self, state: _Fleet, namespace: str, pods: Mapping[str, str]) -> _Found:
        if state.asking is not None and not state.asking.done():
            raise PrometheusError("Prometheus is still at the question before this one, past its deadline")
        until = self._monotonic() + self._deadline_s
        state.asking = self._threads.submit(
            partial(self._look, namespace, sorted(pods), state.every_s, until)
        )
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.wrap_future(state.asking)
        except TimeoutError as error:
            raise PrometheusError(self._late()) from error

    def _look(self, namespace: str, pods: Sequence[str], every_s: float | None, until: float) -> _Found:
        """On a thread. How often engines are scraped is found by one gauge, so that no long time has to be
        asked of all series. Both questions together have the time that one has.
        """
        if every_s is None:
            running = "|".join(prefix + name for prefix in names.PREFIXES for name in names.RUNNING)
            every_s = interval(
                self._ask(selector(running, namespace, pods, MOST_BACK_S), self._left_s(until))
            )
        back_s = MOST_BACK_S if every_s is None else FORGIVEN_SCRAPES * every_s
        back_s = math.ceil(min(MOST_BACK_S, max(LEAST_BACK_S, back_s)))
        series = self._ask(selector(names.pattern(), namespace, pods, back_s), self._left_s(until))
        return _Found(newest(series), interval(series), back_s)

    def _left_s(self, until: float) -> float:
        """Raises PrometheusError where nothing is left."""
        if (left_s := until - self._monotonic()) <= 0.0:
            raise PrometheusError(self._late())
        return left_s

    def _late(self) -> str:
        return f"Prometheus did not answer within {self._deadline_s:g} s"

    def _results(self, state: _Fleet, found: _Found, namespace: str, pods: Mapping[str, str]) -> Results:
        if state.every_s is not None and state.every_s > SLOWEST_S + LATE_S:
            text = (
                f"Prometheus scrapes it every {state.every_s:.0f} s, too seldom to decide by: let it do so "
                f"every {SLOWEST_S:.0f} s or more often"
            )
            state.known = {}
            return dict.fromkeys(pods, self._failure(Unusable.NOT_SCRAPED, text))
        self._check_clocks([scrape.at for scrape in found.scrapes.values()], found.back_s)
        known: dict[str, tuple[float, Sample | Failure]] = {}
        results: dict[str, Sample | Failure] = {}
        for pod, incarnation in pods.items():
            before, scrape = state.known.get(pod), found.scrapes.get(pod)
            if scrape is not None and (before is None or scrape.at > before[0]):
                before = (scrape.at, self._sample(scrape, incarnation, state.every_s))
            if before is not None:
                known[pod] = before
            if scrape is None or before is None:
                results[pod] = self._missing(namespace, before, found.back_s)
            else:
                results[pod] = before[1]
        state.known = known
        return results

    def _missing(
        self, namespace: str, before: tuple[float, Sample | Failure] | None, back_s: float
    ) -> Failure:
        """Of a pod that was not scraped lately. The question is put as a person would ask it again."""
        asked = f'{names.PREFIXES[0]}{names.RUNNING[0]}{{namespace="{namespace}"}}[{back_s:.0f}s]'
        if before is None:
            text = (
                f"Prometheus has no figures of it from the last {back_s:.0f} s ({asked}): let it scrape "
                "/metrics of the pod's port http (https with spec.engine.tls), and keep the labels "
                "namespace and pod"
            )
        else:
            text = (
                f"the newest figures that Prometheus has of it are {self._wall() - before[0]:.0f} s old, and "
                f"more than {back_s:.0f} s is too old to decide by ({asked}): see why it scrapes it no more"
            )
        return self._failure(Unusable.NOT_SCRAPED, text)

    def _age(self, state: _Fleet) -> str:
        """How old the newest of a fleet is, to be added to why there is nothing newer."""
        if not state.known:
            return ""
        age_s = self._wall() - max(at for at, _ in state.known.values())
        return f"; the newest figures are {age_s:.0f} s old"

    def _sample(self, scrape: Scrape, incarnation: str, every_s: float | None) -> Sample | Failure:
        sample = read_series(scrape.series, scrape.at + self._offset_s, incarnation)
        if isinstance(sample, Failure):
            return sample
        return replace(sample, source=Source.PROMETHEUS, every_s=every_s, reason=REASON, message=MESSAGE)

    def _check_clocks(self, times: Sequence[float], back_s: float) -> None:
        """Takes note of a step of our clock. Raises PrometheusError where it is not that of Prometheus."""
        offset_s = self._monotonic() - self._wall()
        if abs(offset_s - self._offset_s) > 1.0:
            self._offset_s = offset_s
        if not times:
            return
        age_s = self._wall() - max(times)
        if not -SKEW_S <= age_s <= back_s + SKEW_S:
            off = f"{age_s:.0f} s old" if age_s > 0 else f"from {-age_s:.0f} s in the future"
            raise PrometheusError(
                f"the newest figures that Prometheus has are {off} by the operator's clock: set both clocks "
                "by the same time"
            )

    def _pause_s(self, state: _Fleet, fresh: bool, results: Results) -> float:
        """Until all pods have been scraped again; where that is overdue, a part of it."""
        every_s = UNKNOWN_EVERY_S if state.every_s is None else state.every_s
        if not fresh:
            return every_s / 4.0 if any(isinstance(one, Sample) for one in results.values()) else every_s
        age_s = self._wall() - max(at for at, _ in state.known.values())
        return every_s + LATE_S - min(every_s, max(0.0, age_s))

    def _failure(self, why: Unusable, message: str) -> Failure:
        return Failure(self._monotonic(), why, message)


def selector(pattern: str, namespace: str, pods: Sequence[str], back_s: float) -> str:
    """PromQL for what was scraped of some pods in the last seconds, all at once: several questions would be
    answered from several scrapes. Pods of like names may come along.
    """
    if len(pods) <= MOST_NAMES:
        some = "|".join(pod.replace(".", "[.]") for pod in pods)
    else:
        common = takewhile(lambda pair: pair[0] == pair[1], zip(min(pods), max(pods), strict=False))
        some = "".join(letter for letter, _ in common).replace(".", "[.]") + ".+"
    return f'{{__name__=~"{pattern}",namespace="{namespace}",pod=~"{some}"}}[{back_s:.0f}s]'
