"""Series of a time series database -> History.

Counters and buckets are summed over a replica's engines and subtracted, so what is known is exact between
two scrapes; nothing is extrapolated to the ends of a step. A figure that fell is a restart, after which all
begins at zero. A step that brought no new scrape is no interval: the next one is longer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from llamaserver.control.objective import JUDGED_S
from llamaserver.observe import names
from llamaserver.observe.series import SCRAPED_AT, Recorded, Series
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.outcome import SETTLE_S
from llamaserver.simulate.replay.figures import Figures, Scrape, first_of, summed
from llamaserver.simulate.replay.history import History, Replica

NEEDED = (names.RUNNING, names.WAITING, names.FINISHED, names.GENERATION_TOKENS)
WANTED = (names.PROMPT_TOKENS, names.PREEMPTIONS, names.KV_USAGE)
WANTED_HISTOGRAMS = (names.TTFT, names.STEPS, names.PROMPT_LENGTHS, names.OUTPUT_LENGTHS)
LEAST_STEPS = 4
NOT_OF_REPLICAS = ("__name__", "engine", "model_name")
"""Labels that do not tell one replica from another."""

Key = tuple[tuple[str, str], ...]


def history(recorded: Recorded, began: float, span_s: float, step_s: float) -> History:
    """What the series say. Raises SimulationError where a needed one is missing, or scrapes are too
    few."""
    missing = [names_[0] for names_ in NEEDED if not first_of(recorded, names_)]
    if not first_of(recorded, names.ITL, "_bucket"):
        missing.append(f"{names.ITL[0]}_bucket")
    if missing:
        raise SimulationError(
            f"Prometheus kept no {', '.join('vllm:' + name for name in missing)} of these replicas, and "
            "without there is no demand to rebuild: let it keep them (metric_relabel_configs may drop some)"
        )
    replicas = [
        replica
        for key, of_one in sorted(_by_replica(recorded).items())
        if (replica := _replica(key, of_one, began, step_s)).intervals
    ]
    if not replicas:
        raise SimulationError(
            "no replica was scraped twice in this time, and a difference needs two scrapes: widen --start "
            "and --end, or lower --step"
        )
    found = History(began, span_s, step_s, replicas, _absent(recorded))
    steps, least_s = (
        len({i.step for i in found.intervals}) + 1,
        max(SETTLE_S + JUDGED_S, LEAST_STEPS * step_s),
    )
    if span_s < least_s or steps < LEAST_STEPS:
        raise SimulationError(
            f"{steps} scrapes in {span_s:g} s are too few points to judge by: widen --start and --end to "
            f"{LEAST_STEPS} scrapes and {least_s:g} s at least, or lower --step"
        )
    return found


def _absent(recorded: Recorded) -> list[str]:
    plain = [c[0] for c in WANTED if not first_of(recorded, c)]
    return plain + [c[0] for c in WANTED_HISTOGRAMS if not first_of(recorded, c, "_count")]


def _by_replica(recorded: Recorded) -> Mapping[Key, Recorded]:
    """The series of each replica: those that agree on all labels that tell replicas apart."""
    running = first_of(recorded, names.RUNNING)
    telling = sorted({label for series in running for label in series.labels} - set(NOT_OF_REPLICAS))
    found: dict[Key, dict[str, list[Series]]] = {}
    for series in running:
        found.setdefault(_key(series, telling), defaultdict(list))
    for name, some in recorded.items():
        for series in some:
            if (mine := found.get(_key(series, telling))) is not None:
                mine[name].append(series)
    return found


def _key(series: Series, telling: Sequence[str]) -> Key:
    return tuple((label, series.labels.get(label, "")) for label in telling)


def _name(key: Key) -> str:
    labels = {label: value for label, value in key if value}
    return labels.get("pod") or labels.get("instance") or ",".join(labels.values()) or "all"


def _replica(key: Key, recorded: Recorded, began: float, step_s: float) -> Replica:
    figures = Figures.of(recorded)
    points = [scrape for scrape in _scrapes(recorded) if figures.whole(scrape.asked)]
    intervals = [
        figures.between(old, new, began, step_s, first=n == 0)
        for n, (old, new) in enumerate(pairwise(points))
    ]
    caps = _told(recorded, names.CAP)
    return Replica(
        _name(key),
        intervals,
        _kv_tokens(recorded),
        median(caps) if caps else None,
        _middle(_told(recorded, names.CEILING)),
        _middle(_told(recorded, names.BUDGET)),
        len(set(caps)) > 1,
    )


def _scrapes(recorded: Recorded) -> list[Scrape]:
    """Each scrape once, where it was first seen. Without their times every step counts as one."""
    times: dict[float, float] = {}
    for series in recorded.get(SCRAPED_AT, ()):
        for asked, at in series.points:
            times[asked] = max(times.get(asked, -math.inf), at)
    if not times:
        times = {t: t for t in summed(first_of(recorded, names.RUNNING))}
    found: list[Scrape] = []
    for asked, at in sorted(times.items()):
        if math.isfinite(at) and (not found or at > found[-1].at + 1e-3):
            found.append(Scrape(asked, at))
    return found


def _told(recorded: Recorded, name: str) -> list[float]:
    return [v for series in recorded.get(name, ()) for _, v in series.points if math.isfinite(v) and v >= 1.0]


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _kv_tokens(recorded: Recorded) -> int | None:
    """Tokens that the KV cache of a replica holds, from the labels of its configuration."""
    by_engine: dict[str, int] = {}
    for series in first_of(recorded, names.CACHE_CONFIG):
        labels = series.labels
        size = labels.get("kv_cache_size_tokens", "")
        blocks, block = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if size.isdigit() and int(size) > 0:
            by_engine[labels.get("engine", "0")] = int(size)
        elif blocks.isdigit() and block.isdigit() and int(blocks) * int(block) > 0:
            by_engine[labels.get("engine", "0")] = int(blocks) * int(block)
    return sum(by_engine.values()) or None
