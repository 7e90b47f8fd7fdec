"""From what the streams and the engine saw in a window to the figures of a policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median

from demo.digest import Digest
from demo.load import percentile
from harness.traffic import Event, Tape

QUANTILES = {"p95": 0.95, "p99": 0.99}
"""Statistics that an objective may be about: the operator's, and what clients see is judged by the same."""
STATISTIC = "p95"


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
    part: str = ""
    """The part of the repeat that it belongs to."""
    change: bool = False
    """Whether it is a policy's time to answer a change: its tokens count, its latencies are told apart."""


@dataclass(frozen=True)
class PartFigures:
    """One part of a repeat."""

    name: str
    itl_p50_ms: float
    itl_tail_ms: float
    """By the objective's statistic."""
    tokens_per_s: float


@dataclass(frozen=True)
class Figures:
    """One repeat of a policy. Latencies as the clients see them, but for the two that say otherwise."""

    itl_p50_ms: float
    itl_p95_ms: float
    itl_p99_ms: float
    itl_tail_ms: float
    """By the objective's statistic: one of the two above."""
    tokens_per_s: float
    ttft_p50_s: float | None
    """None when no stream began in the windows."""
    ttft_p95_s: float | None
    violated_window_share: float
    """Of the windows of 10 s: those whose tail, as the engine itself counts, is above the objective."""
    engine_itl_tail_ms: float | None
    """What the operator sees, by the objective's statistic: the highest of all windows."""
    preemptions_per_min: float
    cap: float | None
    budget: float | None
    others_cores: float | None = None
    """Cores that something else on the machine used, over all windows of the repeat."""
    violated_at_change: float | None = None
    """1.0 when the objective was missed while a change was being answered; None where there is none."""
    parts: tuple[PartFigures, ...] = ()
    """Each judged by itself."""

    @property
    def worst_tail_ms(self) -> float:
        """The tail in the part that has the longest: what the objective is about."""
        return max(part.itl_tail_ms for part in self.parts)


SPREAD = (
    "itl_p50_ms",
    "itl_p95_ms",
    "itl_p99_ms",
    "worst_tail_ms",
    "tokens_per_s",
    "ttft_p50_s",
    "ttft_p95_s",
)
"""Figures whose lowest and highest repeat are told."""


class NothingSeenError(Exception):
    """Windows in which not one token came."""


def figures(
    tape: Tape, windows: Sequence[Seen], target_ms: float | None, statistic: str = STATISTIC
) -> Figures:
    """The figures of all windows of a repeat together. `target_ms` None counts no window as violated.

    Raises NothingSeenError when there is nothing to tell.
    """
    judged = [window for window in windows if not window.change]
    changes = [_tail_ms(window, statistic) for window in windows if window.change]
    later, first = _events(tape, judged)
    itl = sorted(gap for _, gap, _ in later)
    ttft = sorted(wait for _, wait, _ in first)
    engine = [_tail_ms(window, statistic) for window in judged]
    known = [value for value in engine if value is not None]
    seconds = _seconds(windows)
    return Figures(
        itl_p50_ms=_ms(percentile(itl, 0.5)),
        itl_p95_ms=_ms(percentile(itl, 0.95)),
        itl_p99_ms=_ms(percentile(itl, 0.99)),
        itl_tail_ms=_ms(percentile(itl, QUANTILES[statistic])),
        tokens_per_s=_rate(tape, windows),
        ttft_p50_s=round(percentile(ttft, 0.5), 3) if ttft else None,
        ttft_p95_s=round(percentile(ttft, 0.95), 3) if ttft else None,
        violated_window_share=_violated(engine, target_ms),
        engine_itl_tail_ms=max(known) if len(known) == len(engine) else None,
        preemptions_per_min=round(60 * sum(window.preemptions for window in windows) / seconds, 1),
        cap=windows[-1].cap,
        budget=windows[-1].budget,
        others_cores=_others(windows, seconds),
        violated_at_change=_violated(changes, target_ms) if changes else None,
        parts=tuple(
            _part(tape, [w for w in windows if w.part == name], name, statistic)
            for name in dict.fromkeys(window.part for window in windows)
        ),
    )


def _part(tape: Tape, windows: Sequence[Seen], name: str, statistic: str) -> PartFigures:
    later, _ = _events(tape, [window for window in windows if not window.change])
    itl = sorted(gap for _, gap, _ in later)
    return PartFigures(
        name=name,
        itl_p50_ms=_ms(percentile(itl, 0.5)),
        itl_tail_ms=_ms(percentile(itl, QUANTILES[statistic])),
        tokens_per_s=_rate(tape, windows),
    )


def _events(tape: Tape, windows: Sequence[Seen]) -> tuple[list[Event], list[Event]]:
    """What came in these windows: (all but the first of each stream, first ones)."""
    later: list[Event] = []
    first: list[Event] = []
    for window in windows:
        gaps, beginnings = tape.between(window.start, window.end)
        later += gaps
        first += beginnings
    if not later:
        raise NothingSeenError("no token came in a window: the engine hangs, or the load does not reach it")
    return later, first


def _rate(tape: Tape, windows: Sequence[Seen]) -> float:
    """Tokens a second."""
    later, first = _events(tape, windows)
    return round(sum(tokens for _, _, tokens in (*later, *first)) / _seconds(windows), 1)


def requests_per_s(tape: Tape, windows: Sequence[Seen]) -> float:
    """Requests that got their first token, a second."""
    _, first = _events(tape, windows)
    return len(first) / _seconds(windows)


def _seconds(windows: Sequence[Seen]) -> float:
    return sum(window.end - window.start for window in windows)


def _tail_ms(window: Seen, statistic: str) -> float | None:
    value = window.engine.statistic(statistic) if window.engine is not None else None
    return None if value is None else _ms(value)


def _others(windows: Sequence[Seen], seconds: float) -> float | None:
    spans = [(window.others_cores, window.end - window.start) for window in windows]
    used = [cores * span for cores, span in spans if cores is not None]
    return round(sum(used) / seconds, 3) if len(used) == len(spans) else None


def _violated(tail_ms: Sequence[float | None], target_ms: float | None) -> float:
    """The share above the target. What is not known has not met it."""
    if target_ms is None:
        return 0.0
    return sum(value is None or value > target_ms for value in tail_ms) / len(tail_ms)


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)


MEANS = ("violated_window_share", "violated_at_change")
"""Of shares, where a median would hide one, the mean is told."""


def summary(repeats: Sequence[Figures]) -> dict[str, float | None]:
    """Medians over repeats; of shares the means. Parts are told by `parts`."""
    names = [field.name for field in fields(Figures) if field.name != "parts"]
    found = {
        name: (_mean if name in MEANS else _median)([getattr(figure, name) for figure in repeats])
        for name in names
    }
    return {**found, "worst_tail_ms": worst_tail_ms(repeats)}


def parts(repeats: Sequence[Figures]) -> list[PartFigures]:
    """Every part's medians over the repeats."""
    found = []
    for same in zip(*(figure.parts for figure in repeats), strict=True):
        p50, tail, rate = (
            round(median(values), 3)
            for values in zip(*((p.itl_p50_ms, p.itl_tail_ms, p.tokens_per_s) for p in same), strict=True)
        )
        found.append(PartFigures(same[0].name, p50, tail, rate))
    return found


def worst_tail_ms(repeats: Sequence[Figures]) -> float:
    """The highest tail of all parts, each the median over the repeats: it has to be within the objective."""
    return max(part.itl_tail_ms for part in parts(repeats))


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


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None
