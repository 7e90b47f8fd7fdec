"""Prometheus exposition text of a vLLM pod -> Sample, or a Failure that says what is wrong with it.

Only the lines that `names` knows are parsed, by prometheus-client's own parser. A pod with data-parallel
engines has one series an engine: counters and buckets are summed, and what tells an engine that hangs from
one that serves beside it (queue lengths, KV usage, tokens) is kept per engine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from llamaserver.observe import names
from llamaserver.observe.distribution import MismatchError, add
from llamaserver.observe.types import Distribution, EngineState, Failure, Sample, Source, Unusable

Labels = dict[str, str]
Series = dict[str, list[tuple[Labels, float]]]
"""Label sets and values by exact sample name."""


class _BadError(Exception):
    """Carries why a scrape is unusable to the one place that makes a Failure of it."""

    def __init__(self, why: Unusable, message: str) -> None:
        super().__init__(message)
        self.why = why


def parse_exposition(text: str, at: float, incarnation: str) -> Sample | Failure:
    """What a pod's /metrics said at `at`. `incarnation` names the life of the container that said it."""
    try:
        return _sample(_Scrape(_series(text)), at, incarnation)
    except _BadError as bad:
        return Failure(at, bad.why, str(bad))


def read_series(series: Series, at: float, incarnation: str) -> Sample | Failure:
    """The same of series that somebody else has parsed. `series` is used up."""
    try:
        return _sample(_Scrape(series), at, incarnation)
    except _BadError as bad:
        return Failure(at, bad.why, str(bad))


def _name_of(line: str) -> str:
    cut = min((i for i in (line.find("{"), line.find(" ")) if i >= 0), default=len(line))
    return line[:cut]


def _series(text: str) -> Series:
    """The samples of known names. Raises _BadError for an empty body, foreign text, or lines that do not
    parse.
    """
    if not text.strip():
        raise _BadError(Unusable.MISSING, "the body of /metrics is empty")
    known = names.exact_names()
    kept = [line for line in text.splitlines() if _name_of(line) in known]
    if not kept:
        announced = any(line.startswith("#") and " vllm:" in line for line in text.splitlines())
        what = (
            "vLLM's families are announced but have no samples" if announced else "no vLLM metric in the body"
        )
        raise _BadError(Unusable.MISSING, what)
    series: Series = defaultdict(list)
    try:
        for family in text_string_to_metric_families("\n".join(kept) + "\n"):
            for sample in family.samples:
                series[sample.name].append((dict(sample.labels), float(sample.value)))
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise _BadError(Unusable.LYING, f"/metrics does not parse: {str(error)[:120]}") from error
    return series


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise _BadError(Unusable.LYING, f"{name} is {value}")
    return value


def _whole(name: str, value: float) -> int:
    return round(_finite(name, value))


class _Scrape:
    """Series by exact name, read under the one prefix this pod uses."""

    def __init__(self, series: Series) -> None:
        self._series = series
        running = (p for p in names.PREFIXES if any(p + n in series for n in names.RUNNING))
        prefix = next(running, None)
        if prefix is None:
            raise _BadError(Unusable.MISSING, f"{names.PREFIXES[0]}{names.RUNNING[0]} is missing")
        self.prefix = prefix

    def plain(self, candidates: Sequence[str]) -> list[tuple[Labels, float]]:
        """The series of the first candidate that has samples; empty when none has."""
        for name in candidates:
            if found := self._series.get(self.prefix + name):
                return found
        return []

    def tuner(self, name: str) -> dict[int, int]:
        """A gauge of the tuner by engine; empty without a tuner."""
        return {_engine(labels): _whole(name, v) for labels, v in self._series.get(name, [])}

    def by_engine(self, candidates: Sequence[str]) -> dict[int, float]:
        """Sums by engine. Raises _BadError when the figure is missing."""
        found = self.plain(candidates)
        if not found:
            raise _BadError(Unusable.MISSING, f"{self.prefix}{candidates[0]} is missing")
        sums: dict[int, float] = defaultdict(float)
        for labels, value in found:
            sums[_engine(labels)] += _finite(candidates[0], value)
        return sums

    def apart(self, candidates: Sequence[str], engines: Iterable[int]) -> dict[int, int]:
        """A counter of each of these engines; empty where it is missing, or not told by engine."""
        sums: dict[int, int] = defaultdict(int)
        for labels, value in self.plain(candidates):
            sums[_engine(labels)] += _whole(candidates[0], value)
        return sums if set(sums) == set(engines) else {}

    def total(self, candidates: Sequence[str]) -> int | None:
        """The sum over all series, None when the figure is missing."""
        found = self.plain(candidates)
        return sum(_whole(candidates[0], value) for _, value in found) if found else None

    def histogram(self, candidates: Sequence[str]) -> Distribution | None:
        """The sum over engines and models; None when none of the candidates has a series."""
        for name in candidates:
            if buckets := self._series.get(f"{self.prefix}{name}_bucket"):
                return self._merged(name, buckets)
        return None

    def _merged(self, name: str, buckets: list[tuple[Labels, float]]) -> Distribution:
        full = self.prefix + name
        grouped: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = defaultdict(list)
        for labels, value in buckets:
            le = labels.pop("le", None)
            if le is None:
                raise _BadError(Unusable.LYING, f"{full}_bucket without le")
            grouped[_key(labels)].append((_edge(full, le), _whole(full, value)))
        sums = {_key(labels): v for labels, v in self._series.get(full + "_sum", [])}
        counts = {_key(labels): v for labels, v in self._series.get(full + "_count", [])}
        merged: Distribution | None = None
        for key, pairs in grouped.items():
            if key not in sums or key not in counts:
                raise _BadError(Unusable.MISSING, f"{full}_sum or _count is missing")
            one = _histogram(full, pairs, _finite(full, sums[key]), _whole(full, counts[key]))
            try:
                merged = one if merged is None else add(merged, one)
            except MismatchError as error:
                raise _BadError(Unusable.LYING, f"{full}: engines disagree on the buckets") from error
        assert merged is not None
        return merged


def _key(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _edge(name: str, le: str) -> float:
    try:
        edge = float(le)
    except ValueError:
        edge = math.nan
    if math.isnan(edge):
        raise _BadError(Unusable.LYING, f"{name} has a bucket with le={le[:20]!r}")
    return edge


def _histogram(name: str, pairs: Iterable[tuple[float, int]], total_s: float, count: int) -> Distribution:
    """One series' buckets, made non-cumulative. Raises _BadError where they contradict each other."""
    ordered = sorted(pairs)
    edges = tuple(edge for edge, _ in ordered)
    if len(set(edges)) != len(edges):
        raise _BadError(Unusable.LYING, f"{name} has a bucket twice")
    if not math.isinf(edges[-1]) or edges[-1] < 0:
        raise _BadError(Unusable.MISSING, f"{name} has no +Inf bucket")
    counts, before = [], 0
    for _, cumulative in ordered:
        if cumulative < before:
            raise _BadError(Unusable.LYING, f"{name} has buckets that fall")
        counts.append(cumulative - before)
        before = cumulative
    if before != count:
        raise _BadError(Unusable.LYING, f"{name}_count is {count}, its +Inf bucket {before}")
    return Distribution(count, total_s, edges, tuple(counts), exact=False)


def _engine(labels: Labels) -> int:
    raw = labels.get("engine", "0")
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 6):
        raise _BadError(Unusable.LYING, f"engine label {raw[:20]!r} is not a number")
    return int(raw)


def _finished(scrape: _Scrape) -> int | None:
    """Requests that have ended by themselves. Releases differ in whether they count those that were aborted,
    so none of them are: engines are judged alike whatever their release.
    """
    name = names.FINISHED[0]
    ended = [
        _whole(name, value)
        for labels, value in scrape.plain(names.FINISHED)
        if labels.get(names.FINISHED_REASON) != names.ABORT
    ]
    return sum(ended) if ended else None


def _unpaced(scrape: _Scrape) -> int | None:
    """Finished requests of at most one token, by the bucket that has them alone; None where there is none."""
    name = names.UNPACED[0]
    single = [
        _whole(name, value)
        for labels, value in scrape.plain(names.UNPACED)
        if _edge(name, labels.get("le", "")) == 1.0
    ]
    return sum(single) if single else None


def _capacity_tokens(scrape: _Scrape) -> dict[int | None, int]:
    """KV capacity in tokens by engine, under None where the series carries no engine label."""
    capacity: dict[int | None, int] = {}
    for labels, _ in scrape.plain(names.CACHE_CONFIG):
        engine = _engine(labels) if "engine" in labels else None
        size = labels.get("kv_cache_size_tokens", "")
        blocks, block = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if size.isdigit() and int(size) > 0:
            capacity[engine] = int(size)
        elif blocks.isdigit() and block.isdigit() and int(blocks) * int(block) > 0:
            capacity[engine] = int(blocks) * int(block)
    return capacity


def _deferred(scrape: _Scrape) -> dict[int, int]:
    """Requests by engine that wait for something else than room.

    vLLM goes on counting one as deferred whose KV cache has been loaded from elsewhere: it has what it waited
    for, and waits for room like all others.
    """
    deferred: dict[int, int] = defaultdict(int)
    for labels, value in scrape.plain(names.WAITING_BY_REASON):
        if labels.get("reason") == "deferred":
            deferred[_engine(labels)] += _whole(names.WAITING_BY_REASON[0], value)
    for labels, value in scrape.plain(names.KV_FETCH):
        if labels.get("stage") == "completed_waiting":
            engine = _engine(labels)
            deferred[engine] = max(0, deferred[engine] - _whole(names.KV_FETCH[0], value))
    return deferred


def _step_tokens(scrape: _Scrape, generated: Mapping[int, int]) -> dict[int, int]:
    """Tokens of each engine's steps; prompts and what was `generated` where the release does not count by
    step.

    The sum of the histogram and not its count: vLLM observes a step of no tokens whenever its core ends a
    request, also one that was refused or aborted before any step.
    """
    if found := scrape.apart([f"{name}_sum" for name in names.STEPS], generated):
        return found
    prompts = scrape.apart(names.PROMPT_TOKENS, generated)
    return {engine: tokens + generated[engine] for engine, tokens in prompts.items()}


def _engines(scrape: _Scrape) -> tuple[EngineState, ...]:
    running, waiting = scrape.by_engine(names.RUNNING), scrape.by_engine(names.WAITING)
    kv, preemptions = scrape.by_engine(names.KV_USAGE), scrape.by_engine(names.PREEMPTIONS)
    if not (set(running) == set(waiting) == set(kv) == set(preemptions)):
        raise _BadError(Unusable.MISSING, "some engines lack a series that others have")
    if (worst := max(kv.values())) > 1.0:
        raise _BadError(Unusable.LYING, f"{names.KV_USAGE[0]} is {worst}")
    capacity, deferred = _capacity_tokens(scrape), _deferred(scrape)
    cap, ceiling, budget = (scrape.tuner(n) for n in (names.CAP, names.CEILING, names.BUDGET))
    generated = scrape.apart(names.GENERATION_TOKENS, running)
    step_tokens = _step_tokens(scrape, generated)
    return tuple(
        EngineState(
            engine=engine,
            running=round(running[engine]),
            waiting=round(waiting[engine]),
            waiting_deferred=deferred.get(engine, 0),
            kv_usage=kv[engine],
            kv_capacity_tokens=capacity.get(engine, capacity.get(None)),
            preemptions=round(preemptions[engine]),
            max_num_seqs=ceiling.get(engine),
            max_num_active_seqs=cap.get(engine),
            max_num_scheduled_tokens=budget.get(engine),
            generation_tokens=generated.get(engine),
            step_tokens=step_tokens.get(engine),
        )
        for engine in sorted(running)
    )


def _sample(scrape: _Scrape, at: float, incarnation: str) -> Sample:
    engines = _engines(scrape)
    itl = scrape.histogram(names.ITL)
    generated = scrape.total(names.GENERATION_TOKENS)
    if itl is None or generated is None:
        missing = names.ITL[0] if itl is None else names.GENERATION_TOKENS[0]
        raise _BadError(Unusable.MISSING, f"{scrape.prefix}{missing} is missing")
    if itl.count > 0 and itl.sum_s <= 0.0:
        raise _BadError(Unusable.LYING, f"{itl.count} inter-token latencies add up to 0 s")
    steps = scrape.histogram(names.STEPS)
    return Sample(
        at=at,
        source=Source.METRICS,
        incarnation=incarnation,
        engines=engines,
        itl=itl,
        tpot=scrape.histogram(names.TPOT),
        ttft=scrape.histogram(names.TTFT),
        queue=scrape.histogram(names.QUEUE),
        prompt_tokens=scrape.total(names.PROMPT_TOKENS),
        cached_prompt_tokens=scrape.total(names.CACHED_PROMPT_TOKENS),
        generation_tokens=generated,
        finished=_finished(scrape),
        engine_steps=None if steps is None else steps.count,
        unpaced=_unpaced(scrape),
    )
