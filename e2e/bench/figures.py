"""From what the streams and the engine saw in a window to the figures of a policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median

from demo.digest import Digest
from demo.load import percentile
from harness.traffic import Event, Tape

STATISTIC, QUANTILE = "p95", 0.95
"""The objective's, here and in the resource: what a client sees is judged by the same statistic."""


@dataclass(frozen=True)
class Seen:
    """One window: its ends on the monotonic clock, and the engine's own latencies between them."""

    start: float
    end: float
    engine: Digest | None
    """None when the engine could not be read at both ends."""
    cap: int | None
    """In force at the end, like the budget."""
    budget: int | None
    preemptions: int
    others_cores: float | None = None
    """Cores that were busy with something else than the bench; None where that is not known."""


@dataclass(frozen=True)
class Figures:
    """One repeat of a policy. Latencies as the clients see them, but for the two that say otherwise."""

    itl_p50_ms: float
    itl_p95_ms: float
    itl_p99_ms: float
    tokens_per_s: float
    ttft_p50_s: float | None
    """None when no stream began in the windows."""
    ttft_p95_s: float | None
    violated_window_share: float
    """Of the windows of 10 s: those whose p95, as the engine itself counts, is above the objective."""
    engine_itl_p95_ms: float | None
    """What the operator sees."""
    preemptions_per_min: float
    cap: float | None
    budget: float | None
    others_cores: float | None = None
    """Cores that something else on the machine used, over all windows of the repeat."""


SPREAD = ("itl_p50_ms", "itl_p95_ms", "itl_p99_ms", "tokens_per_s", "ttft_p50_s", "ttft_p95_s")
"""Figures whose lowest and highest repeat are told."""


class NothingSeenError(Exception):
    """Windows in which not one token came."""


def figures(tape: Tape, windows: Sequence[Seen], target_ms: float | None) -> Figures:
    """The figures of all windows of a repeat together. `target_ms` None counts no window as violated.

    Raises NothingSeenError when there is nothing to tell.
    """
    later: list[Event] = []
    first: list[Event] = []
    for window in windows:
        gaps, beginnings = tape.between(window.start, window.end)
        later += gaps
        first += beginnings
    if not later:
        raise NothingSeenError("no token came in a window: the engine hangs, or the load does not reach it")
    seconds = sum(window.end - window.start for window in windows)
    itl = sorted(gap for _, gap, _ in later)
    ttft = sorted(wait for _, wait, _ in first)
    engine = [_p95_ms(window) for window in windows]
    known = [value for value in engine if value is not None]
    return Figures(
        itl_p50_ms=_ms(percentile(itl, 0.5)),
        itl_p95_ms=_ms(percentile(itl, QUANTILE)),
        itl_p99_ms=_ms(percentile(itl, 0.99)),
        tokens_per_s=round(sum(tokens for _, _, tokens in (*later, *first)) / seconds, 1),
        ttft_p50_s=round(percentile(ttft, 0.5), 3) if ttft else None,
        ttft_p95_s=round(percentile(ttft, 0.95), 3) if ttft else None,
        violated_window_share=_violated(engine, target_ms),
        engine_itl_p95_ms=max(known) if len(known) == len(windows) else None,
        preemptions_per_min=round(60 * sum(window.preemptions for window in windows) / seconds, 1),
        cap=windows[-1].cap,
        budget=windows[-1].budget,
        others_cores=_others(windows, seconds),
    )


def _p95_ms(window: Seen) -> float | None:
    value = window.engine.statistic(STATISTIC) if window.engine is not None else None
    return None if value is None else _ms(value)


def _others(windows: Sequence[Seen], seconds: float) -> float | None:
    spans = [(window.others_cores, window.end - window.start) for window in windows]
    used = [cores * span for cores, span in spans if cores is not None]
    return round(sum(used) / seconds, 3) if len(used) == len(spans) else None


def _violated(p95_ms: Sequence[float | None], target_ms: float | None) -> float:
    """The share above the target. What is not known has not met it."""
    if target_ms is None:
        return 0.0
    return sum(value is None or value > target_ms for value in p95_ms) / len(p95_ms)


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)


def summary(repeats: Sequence[Figures]) -> dict[str, float | None]:
    """Medians over repeats; of the share of violated windows, where a median would hide one, the mean."""
    found = {
        field.name: _median([getattr(figure, field.name) for figure in repeats]) for field in fields(Figures)
    }
    share = sum(figure.violated_window_share for figure in repeats) / len(repeats)
    return {**found, "violated_window_share": round(share, 3)}


def spread(repeats: Sequence[Figures]) -> dict[str, list[float]]:
    """Lowest and highest repeat."""
    found = {}
    for name in SPREAD:
        values = [value for figure in repeats if (value := getattr(figure, name)) is not None]
        if values:
            found[name] = [min(values), max(values)]
    return found


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 3) if known else None
