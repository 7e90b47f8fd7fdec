"""From readings and client results to the figures of the report, and to the verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from demo.digest import STATISTICS
from demo.load import ClientFigures
from demo.recording import (
    HOLDING_WINDOWS,
    WINDOW_S,
    Reading,
    Span,
    Window,
    between,
    difference,
    near,
    windows,
)
from demo.report import (
    SHARE_OF_PREEMPTIONS_LEFT,
    SHARE_OF_THROUGHPUT_KEPT,
    SHARE_VIOLATED_WHEN_HELD,
    SHARE_VIOLATED_WHEN_OFF,
    Check,
    Client,
    Kv,
    KvRun,
    Percentiles,
    Place,
    Run,
)

SETTLE_S = 30.0
"""The first seconds of a load, in which the batch fills and the operator finds cap and budget; not judged."""
LEAST_WINDOWS = 2
"""A run is made for three or more; how long it lasts is a guess until it is over."""
KV_FILL_S = 8.0
"""How long a first generation takes to fill an empty cache. Until then nobody is preempted, however many are
admitted: what is done in it says nothing of what preemptions cost.
"""
KV_PRESSURE = "KVPressure"
"""The operator's word for a KV cache that is too small."""


class NotMeasuredError(Exception):
    """A run left too little behind to say anything."""


def percentiles(found: dict[str, float]) -> Percentiles:
    """Typed percentiles. Raises NotMeasuredError for an empty distribution."""
    if not found:
        raise NotMeasuredError("a distribution without a single value has no percentiles")
    return Percentiles(**found)


def client_part(client: ClientFigures) -> Client:
    """The client's figures in the report's form."""
    return Client(
        itl_ms=percentiles(client.itl_ms),
        ttft_ms=percentiles(client.ttft_ms),
        tokens_per_s=client.tokens_per_s,
        duration_s=client.duration_s,
        violated_window_share=share(client.windows_violated, client.windows),
        cut_causes=client.causes,
    )


def share(part: int, whole: int) -> float:
    """part / whole to three digits. Raises NotMeasuredError for no windows at all."""
    if not whole:
        raise NotMeasuredError("the load was over before a window of 10 s could be judged")
    return round(part / whole, 3)


def violated(found: Sequence[Window | None], statistic: str, target_s: float) -> int:
    """How many windows missed the objective. What is not known has not met it."""
    return sum(1 for w in found if w is None or w.meets(statistic, target_s) is not True)


def run_part(
    readings: Sequence[Reading], span: Span, statistic: str, target_s: float, client: ClientFigures
) -> Run:
    """One overload in the report's form. Raises NotMeasuredError when there is too little to judge."""
    start = span.start + SETTLE_S
    found = windows(readings, start, span.end)
    if len(found) < LEAST_WINDOWS:
        raise NotMeasuredError(
            f"the load lasted {span.end - span.start:.0f} s, too short for {LEAST_WINDOWS} windows of "
            f"{WINDOW_S:.0f} s after {SETTLE_S:.0f} s of settling"
        )
    end = start + len(found) * WINDOW_S
    first, last = near(readings, start), near(readings, end)
    whole = difference(first, last) if first is not None and last is not None else None
    if first is None or last is None or whole is None:
        raise NotMeasuredError("the engine restarted, or could not be read, during the load")
    good = [w for w in found if w is not None and w.meets(statistic, target_s)]
    judged = between(readings, start, end)
    caps, budgets = [reading.cap for reading in judged], [reading.budget for reading in judged]
    queue = (last.queue - first.queue).percentiles_ms()
    return Run(
        place=place(span),
        violated_window_share=share(violated(found, statistic, target_s), len(found)),
        windows=len(found),
        windows_unknown=sum(1 for w in found if w is None),
        itl_ms=percentiles(whole.itl.percentiles_ms()),
        goodput_tokens_per_s=round(sum(w.tokens for w in good) / (len(found) * WINDOW_S), 1),
        tokens_per_s=round(whole.tokens / whole.seconds, 1),
        queue_ms=Percentiles(**queue) if queue else None,
        cap_lowest=min(caps),
        cap_highest=max(caps),
        cap_last=caps[-1],
        budget_lowest=min(budgets),
        budget_highest=max(budgets),
        budget_last=budgets[-1],
        streams_total=client.streams,
        streams_cut=client.cut,
        client=client_part(client),
    )


def place(span: Span) -> Place:
    """A span in the report's form."""
    return Place(start=round(span.start, 3), end=round(span.end, 3))


def kv_run(readings: Sequence[Reading], span: Span) -> KvRun:
    """Preemptions of a load from its first request on, and its throughput once the cache has been filled.

    Raises NotMeasuredError when they are not known.
    """
    start, filled, end = (near(readings, at) for at in (span.start, span.start + KV_FILL_S, span.end))
    whole = difference(start, end) if start is not None and end is not None else None
    steady = difference(filled, end) if filled is not None and end is not None else None
    if start is None or end is None or whole is None or steady is None or steady.seconds <= 0:
        raise NotMeasuredError("the engine restarted, or could not be read, while its KV cache was short")
    return KvRun(
        place=place(span),
        seconds=round(whole.seconds, 1),
        preemptions=whole.preemptions,
        preemptions_per_minute=round(60 * whole.preemptions / whole.seconds, 1),
        tokens_per_s=round(steady.tokens / steady.seconds, 1),
        finished=end.finished - start.finished,
        cap_last=whole.cap,
    )


def quantile_of(statistic: str) -> float:
    """The quantile that a statistic's name stands for."""
    return STATISTICS[statistic]


def _few(run: Run) -> bool:
    """Whether no more windows missed the objective than chance leaves at the share that is promised."""
    missed = round(run.violated_window_share * run.windows)
    return missed <= max(1, int(SHARE_VIOLATED_WHEN_HELD * run.windows))


def slo_checks(off: Run, cap_alone: Run, auto: Run, held_after: float | None, rolled: bool) -> list[Check]:
    """The promises about latency, throughput, streams and pods."""
    runs = (off, cap_alone, auto)
    cut, streams = sum(run.streams_cut for run in runs), sum(run.streams_total for run in runs)
    held = f"held {held_after:.0f} s after the load began" if held_after is not None else "never held"
    return [
        Check(
            name="without tuning the load breaks the objective",
            passed=off.violated_window_share >= SHARE_VIOLATED_WHEN_OFF,
            detail=f"{off.violated_window_share:.0%} of {off.windows} windows missed it",
        ),
        Check(
            name="with tuning the objective is held",
            passed=_few(auto) and held_after is not None,
            detail=f"{auto.violated_window_share:.0%} of {auto.windows} windows missed it; {held}: "
            f"{HOLDING_WINDOWS} windows in a row",
        ),
        Check(
            name="both knobs do at least the work of the cap alone",
            passed=auto.tokens_per_s >= cap_alone.tokens_per_s,
            detail=f"{auto.tokens_per_s:.0f} tokens/s against {cap_alone.tokens_per_s:.0f}, with "
            f"{cap_alone.violated_window_share:.0%} of {cap_alone.windows} windows missed by the cap alone",
        ),
        Check(name="no stream is cut", passed=cut == 0, detail=f"{cut} of {streams} streams were cut"),
        Check(
            name="tuning restarts nothing",
            passed=not rolled,
            detail="a pod or engine was replaced during the demo" if rolled else "one engine served all runs",
        ),
    ]


def kv_checks(kv: Kv) -> list[Check]:
    """The promises about memory."""
    off, auto = kv.off.preemptions, kv.auto.preemptions
    kept = kv.auto.tokens_per_s / kv.off.tokens_per_s if kv.off.tokens_per_s else 0.0
    return [
        Check(
            name="a short KV cache is told from a large batch",
            passed=off > 0 and kv.diagnosis == KV_PRESSURE,
            detail=f"{off} preemptions without tuning; the diagnosis is {kv.diagnosis}",
        ),
        Check(
            name="tuning ends preemptions",
            passed=off > 0 and auto <= SHARE_OF_PREEMPTIONS_LEFT * off,
            detail=f"{off} without and {auto} with, from the first request on",
        ),
        Check(
            name="and costs no throughput",
            # Half a minute also counts tokens of requests that preempt each other and do not come to an end:
            # who finishes more of them has not lost throughput.
            passed=kept >= SHARE_OF_THROUGHPUT_KEPT or kv.auto.finished > kv.off.finished,
            detail=f"{kept:.0%} of the tokens per second without; "
            f"{kv.auto.finished} requests done against {kv.off.finished}",
        ),
    ]
