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
    SHARE_VIOLATED_WHEN_HELD,
    SHARE_VIOLATED_WHEN_OFF,
    Check,
    Client,
    Kv,
    KvRun,
    Percentiles,
    Run,
)

SETTLE_S = 30.0
"""The first seconds of a load, in which the batch fills and the operator finds its cap; not judged."""
KV_SETTLE_S = 20.0
"""The same for the memory-bound load: the first long requests end about then, and tell how long they are."""
LEAST_WINDOWS = 3
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
    first, last = near(readings, start), near(readings, span.end)
    whole = difference(first, last) if first is not None and last is not None else None
    if first is None or last is None or whole is None:
        raise NotMeasuredError("the engine restarted, or could not be read, during the load")
    good = [w for w in found if w is not None and w.meets(statistic, target_s)]
    caps = [reading.cap for reading in between(readings, start, span.end)]
    queue = (last.queue - first.queue).percentiles_ms()
    return Run(
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
        streams_total=client.streams,
        streams_cut=client.cut,
        client=client_part(client),
    )


def kv_run(readings: Sequence[Reading], span: Span) -> KvRun:
    """Preemptions and throughput of a load once it has settled, and the preemptions until then.

    Raises NotMeasuredError when they are not known.
    """
    start, settled, end = (near(readings, at) for at in (span.start, span.start + KV_SETTLE_S, span.end))
    early = difference(start, settled) if start is not None and settled is not None else None
    whole = difference(settled, end) if settled is not None and end is not None else None
    if early is None or whole is None or whole.seconds <= 0:
        raise NotMeasuredError("the engine restarted, or could not be read, while its KV cache was short")
    return KvRun(
        preemptions_settling=early.preemptions,
        seconds=round(whole.seconds, 1),
        preemptions=whole.preemptions,
        preemptions_per_minute=round(60 * whole.preemptions / whole.seconds, 1),
        tokens_per_s=round(whole.tokens / whole.seconds, 1),
        cap_last=whole.cap,
    )


def quantile_of(statistic: str) -> float:
    """The quantile that a statistic's name stands for."""
    return STATISTICS[statistic]


def slo_checks(off: Run, auto: Run, held_after: float | None, rolled: bool) -> list[Check]:
    """The promises about latency, streams and pods."""
    cut = off.streams_cut + auto.streams_cut
    held = f"held {held_after:.0f} s after the load began" if held_after is not None else "never held"
    return [
        Check(
            name="without tuning the load breaks the objective",
            passed=off.violated_window_share >= SHARE_VIOLATED_WHEN_OFF,
            detail=f"{off.violated_window_share:.0%} of {off.windows} windows missed it",
        ),
        Check(
            name="with tuning the objective is held",
            passed=auto.violated_window_share <= SHARE_VIOLATED_WHEN_HELD and held_after is not None,
            detail=f"{auto.violated_window_share:.0%} of {auto.windows} windows missed it; {held}: "
            f"{HOLDING_WINDOWS} windows in a row",
        ),
        Check(
            name="no stream is cut",
            passed=cut == 0,
            detail=f"{cut} of {off.streams_total + auto.streams_total} streams were cut",
        ),
        Check(
            name="tuning restarts nothing",
            passed=not rolled,
            detail="a pod or engine was replaced during the demo" if rolled else "one engine served all runs",
        ),
    ]


def kv_checks(kv: Kv) -> list[Check]:
    """The promises about memory."""
    off, auto = kv.off.preemptions_per_minute, kv.auto.preemptions_per_minute
    return [
        Check(
            name="a short KV cache is told from a large batch",
            passed=kv.off.preemptions > 0 and kv.diagnosis == KV_PRESSURE,
            detail=f"{kv.off.preemptions} preemptions without tuning; the diagnosis is {kv.diagnosis}",
        ),
        Check(
            name="tuning ends most preemptions",
            passed=auto < 0.5 * off,
            detail=f"{off:.0f} a minute without, {auto:.0f} with",
        ),
    ]
