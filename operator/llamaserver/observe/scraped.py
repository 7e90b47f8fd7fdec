"""What a Prometheus has of some engines -> the newest scrape of each. Pure.

The samples of a scrape bear one time, and only samples of one time are put together: values of different
scrapes would contradict each other, or be believed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low

from llamaserver.observe import exposition, names
from llamaserver.observe.series import Series

NAME, POD = "__name__", "pod"
_ENGINES_OWN = {NAME, "model_name", "engine"}
"""Labels of the gauge RUNNING that are not its target's."""
_RUNNING = {prefix + name for prefix in names.PREFIXES for name in names.RUNNING}

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Scrape:
    """What one engine said when it was last scraped."""

    at: float
    """By the clock of Prometheus, seconds since the epoch."""
    series: exposition.Series
    """Without the labels that tell the target."""


def newest(found: Sequence[Series]) -> dict[str, Scrape]:
    """The newest whole scrape by pod, of series with the samples of some time. Pods without one are missing.

    A pod that is scraped more than once (by two jobs, or by a pair of Prometheus) is there several times, and
    counted once: counters are the engine's own, so whichever scrape is the newest serves.
    """
    by_pod: dict[str, list[Series]] = defaultdict(list)
    for one in found:
        if one.points and one.labels.get(POD):
            by_pod[one.labels[POD]].append(one)
    scrapes = {pod: _of_pod(some) for pod, some in by_pod.items()}
    return {pod: scrape for pod, scrape in scrapes.items() if scrape is not None}


def interval(found: Iterable[Series]) -> float | None:
    """How far apart engines are scraped, in seconds; None where none was scraped twice.

    The middle distance of each series: a scrape that failed makes a longer one, a Prometheus that was started
    anew a shorter one.
    """
    running = (one.points for one in found if one.labels.get(NAME) in _RUNNING)
    gaps = [
        median_low([b - a for (a, _), (b, _) in pairwise(points)]) for points in running if len(points) > 1
    ]
    return round(median(gaps), 3) if gaps else None


def _of_pod(some: Sequence[Series]) -> Scrape | None:
    targets = {_target(one) for one in some if one.labels.get(NAME) in _RUNNING}
    keys = {key for target in targets for key, _ in target}
    scrapes = []
    for target in sorted(targets, key=sorted):
        told = dict(target)
        own = [one for one in some if all(one.labels.get(key) == told.get(key) for key in keys)]
        scrapes.append(_last(own, keys))
    return max(scrapes, key=lambda scrape: scrape.at, default=None)


def _target(running: Series) -> Labels:
    return frozenset((key, value) for key, value in running.labels.items() if key not in _ENGINES_OWN)


def _last(own: Sequence[Series], keys: Iterable[str]) -> Scrape:
    """The last scrape of one target. One with fewer samples than that before it may still be on its way."""
    samples = Counter(at for one in own for at, _ in one.points)
    *earlier, at = sorted(samples)
    if earlier and samples[at] < samples[earlier[-1]]:
        at = earlier[-1]
    dropped = {NAME, *keys}
    series: exposition.Series = defaultdict(list)
    for one in own:
        for value in _values(one, at):
            labels = {key: text for key, text in one.labels.items() if key not in dropped}
            series[one.labels[NAME]].append((labels, value))
    return Scrape(at, series)


def _values(one: Series, at: float) -> Iterable[float]:
    return (value for time, value in reversed(one.points) if time == at)
