"""The series of a vLLM fleet over some time, whatever release of vLLM wrote them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

from llamaserver.observe import names
from llamaserver.observe.series import SCRAPED_AT, Series
from llamaserver.prometheus.client import Prometheus
from llamaserver.prometheus.errors import PrometheusError

CHUNK = 2000
"""Points of a series that are asked for at once. Prometheus answers 11,000; many series make big answers."""
MOST_STEPS = 50_000
FINEST_S, GLANCE = 5, 5000
"""To find how often engines are scraped, times are looked at every so many seconds, or this often in all."""
PLAIN = (
    *(names.RUNNING, names.WAITING, names.KV_USAGE, names.PREEMPTIONS, names.PROMPT_TOKENS),
    *(
        names.CACHED_PROMPT_TOKENS,
        names.GENERATION_TOKENS,
        names.FINISHED,
        names.REJECTED,
        names.CACHE_CONFIG,
    ),
)
HISTOGRAMS = (names.ITL, names.TPOT, names.TTFT, names.PROMPT_LENGTHS, names.OUTPUT_LENGTHS)
TUNER = (names.CAP, names.CEILING, names.BUDGET)
WITHOUT_MODEL = (*names.CACHE_CONFIG, *TUNER)
"""Metrics that have no label model_name."""

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class Asked:
    """Which engines, and when. Times in seconds since the epoch."""

    start: int
    end: int
    model: str | None = None
    selector: str = ""
    """Matchers in PromQL, without the brackets."""
    step: int | None = None
    """Seconds; None is how often engines are scraped."""

    def matchers(self, *, model: bool = True) -> str:
        parts = [self.selector.strip().strip("{}").strip().strip(",")]
        if model and self.model is not None:
            parts.append(f"model_name={json.dumps(self.model, ensure_ascii=False)}")
        return ",".join(part for part in parts if part)


@dataclass(frozen=True)
class Reading:
    """What was found: series by name without prefix, at every `step` seconds from `start` on."""

    recorded: Mapping[str, Sequence[Series]]
    start: int
    end: int
    step: int
    models: Sequence[str]


def read(prometheus: Prometheus, asked: Asked, tell: Tell) -> Reading:
    """Everything that is known of these engines. Raises PrometheusError, which says what there is instead."""
    known = _names(prometheus, asked)
    prefix = next((p for p in names.PREFIXES if p + names.RUNNING[0] in known), None)
    if prefix is None:
        raise PrometheusError(_nothing(prometheus, asked))
    running = f"{prefix}{names.RUNNING[0]}{{{asked.matchers()}}}"
    models = _values(prometheus, "model_name", running, asked)
    if len(models) > 1:
        raise PrometheusError(
            f"these engines serve {len(models)} models ({_list(models)}), which are not one fleet: choose "
            "one with --model, or narrow --selector"
        )
    step = _step(prometheus, asked, f"timestamp({running})")
    wanted = dict(_wanted(known, prefix, asked))
    wanted[SCRAPED_AT] = f"timestamp({running})"
    recorded: dict[str, list[Series]] = {}
    chunks = list(_chunks(asked, step))
    for n, (name, query) in enumerate(wanted.items()):
        found: dict[frozenset[tuple[str, str]], Series] = {}
        for m, (start, end) in enumerate(chunks):
            tell("reading Prometheus", (n + m / len(chunks)) / len(wanted))
            _join(found, prometheus.matrix(query, start, end, step))
        recorded[name] = list(found.values())
    if not recorded[names.RUNNING[0]]:
        raise PrometheusError(_nothing(prometheus, asked))
    return Reading(recorded, asked.start, asked.end, step, models)


def _names(prometheus: Prometheus, asked: Asked) -> frozenset[str]:
    """The metrics of vLLM and of the tuner that these engines have."""
    rest = asked.matchers(model=False)
    pattern = f'__name__=~"(ray_)?vllm:.+|{"|".join(TUNER)}"'
    return frozenset(_values(prometheus, "__name__", f"{{{pattern}{',' + rest if rest else ''}}}", asked))


def _values(prometheus: Prometheus, label: str, matcher: str, asked: Asked) -> list[str]:
    return prometheus.label_values(label, matcher, asked.start, asked.end)


def _nothing(prometheus: Prometheus, asked: Asked) -> str:
    """What to say where there is nothing: what was asked for, and what there is."""
    running = [f"{p}{names.RUNNING[0]}" for p in names.PREFIXES]
    every = f'{{__name__=~"{"|".join(running)}"}}'
    told = (
        f"there is no {running[0]}{{{asked.matchers()}}} from {_moment(asked.start)} to {_moment(asked.end)}"
    )
    if models := _values(prometheus, "model_name", every, asked):
        spaces = _values(prometheus, "namespace", every, asked)
        where = f", in the namespaces {_list(spaces)}" if spaces else ""
        return f"{told}. There are the models {_list(models)}{where}: change --model or --selector"
    if models := prometheus.label_values("model_name", every, None, None):
        return f"{told}. At other times there are the models {_list(models)}: change --start, --end or --last"
    return (
        f"{told}, nor any metric of vLLM at any time: let this Prometheus scrape the engines (a PodMonitor, "
        "port 8000, /metrics), or give another --prometheus"
    )


def _list(values: Sequence[str]) -> str:
    return ", ".join(values[:10]) + (f" and {len(values) - 10} more" if len(values) > 10 else "")


def _moment(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _step(prometheus: Prometheus, asked: Asked, scraped_at: str) -> int:
    """The step that was asked for, or how often engines are scraped. Raises PrometheusError for too many."""
    span = asked.end - asked.start
    step = asked.step
    if step is None:
        glance = max(FINEST_S, math.ceil(span / GLANCE))
        gaps = []
        for series in prometheus.matrix(scraped_at, asked.start, asked.end, glance):
            times = sorted({round(at, 3) for _, at in series.points if math.isfinite(at)})
            gaps += [b - a for a, b in pairwise(times)]
        step = max(1, round(median(gaps))) if gaps else glance
    if span / step > MOST_STEPS:
        raise PrometheusError(
            f"{span:.0f} s in steps of {step} s are {span / step:.0f} points a series, more than "
            f"{MOST_STEPS}: give --step {math.ceil(span / MOST_STEPS)}s or more, or a shorter time"
        )
    return step


def _wanted(known: frozenset[str], prefix: str, asked: Asked) -> Iterator[tuple[str, str]]:
    """(name without prefix, query) of what these engines have: of a figure with several names, the first."""
    for candidates in PLAIN:
        if (name := next((n for n in candidates if prefix + n in known), None)) is not None:
            matchers = asked.matchers(model=name not in WITHOUT_MODEL)
            yield name, f"{prefix}{name}{{{matchers}}}"
    for candidates in HISTOGRAMS:
        if (name := next((n for n in candidates if f"{prefix}{n}_bucket" in known), None)) is not None:
            for suffix in ("_bucket", "_sum", "_count"):
                yield name + suffix, f"{prefix}{name}{suffix}{{{asked.matchers()}}}"
    steps = f"{names.STEPS[0]}_count"
    if prefix + steps in known:
        yield steps, f"{prefix}{steps}{{{asked.matchers()}}}"
    for name in TUNER:
        if name in known:
            yield name, f"{name}{{{asked.matchers(model=False)}}}"


def _chunks(asked: Asked, step: int) -> Iterator[tuple[int, int]]:
    """(first, last) time of each request, CHUNK points or fewer apart."""
    start = asked.start
    while start <= asked.end:
        end = min(asked.end, start + (CHUNK - 1) * step)
        yield start, end
        start += CHUNK * step


def _join(found: dict[frozenset[tuple[str, str]], Series], more: Sequence[Series]) -> None:
    for series in more:
        key = frozenset(series.labels.items())
        before = found[key].points if key in found else ()
        found[key] = Series(series.labels, [*before, *series.points])
