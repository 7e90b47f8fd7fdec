"""What a pod did lately, kept so that "what would it do at another cap" can be asked.

Each window becomes a `Record`: where the engine worked (batch, context, prefill), and the inter-token
latencies it gave there. The newest 12 s are kept window by window; older ones are merged with those of a like
working point and fade with MEMORY_S, so that a history is a dozen records however long the pod lives.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from llamaserver.observe.types import Distribution, EngineState, StepMoments, Window

RECENT_S = 12.0
MEMORY_S = 120.0
SAME_BATCH = 0.05
"""Working points whose batches differ by less than this share are merged."""
MAX_ARCHIVED = 6
CHANGED_LOAD = 0.4
"""Change of prefill per decoded token, as a logarithm, that makes it another load: half as much again."""
CHANGED_CONTEXT = 1.0
"""The same of resident tokens per sequence: nearly three times as many. They also grow with every token that
is decoded, which is no other load.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One working point and what came of it. Counts are floats because old ones fade."""

    at: float
    seconds: float
    """Time covered, faded."""
    steps: float
    """Engine steps, faded."""
    steps2: float
    """Sum of (fading factor)^2 times steps: steps^2/steps2 is the number of independent steps this is worth.
    """
    windows: float
    """Windows merged into this one, faded."""
    batch: float
    """Decoding sequences an engine had in flight with a typical token: those of its step, times the steps in
    flight (more than one with pipeline parallelism). This is what the cap counts.
    """
    context: float
    """Resident KV tokens per decoding sequence."""
    prefill: float
    """Prefill tokens per decoded token."""
    mixed: float
    """Prefill-carrying steps per decoded token."""
    share: float
    """Share of tokens that came from a prefill-carrying step."""
    chunk: float
    """Prefill tokens in a prefill-carrying step, on average."""
    chunk2: float
    """Mean of their squares."""
    room: float
    """Prefill tokens for which the token budget that was asked for has room beside the decodes; infinite
    where it is not known.
    """
    prompts: float
    """Prompts whose prefill ended, faded; where that is not told, the steps that carried some."""
    tokens: float
    sum_s: float
    square_s: float
    """Sum of squared latencies, from the buckets."""
    edges: tuple[float, ...]
    first: int
    """Index of the first bucket in `cumulative`."""
    cumulative: tuple[float, ...]
    """Tokens at or below the edge, from bucket `first` on."""

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.tokens

    def beyond(self, x: float) -> float:
        """Share of inter-token latencies above x seconds, interpolated inside a bucket."""
        i = bisect_right(self.edges, x)
        j = i - self.first
        if j < 0:
            return 1.0
        if j >= len(self.cumulative):
            return 0.0
        below = self.cumulative[j - 1] if j > 0 else 0.0
        low = self.edges[i - 1] if i > 0 else 0.0
        high = self.edges[i]
        inside = 0.0 if math.isinf(high) else (self.cumulative[j] - below) * (x - low) / (high - low)
        return min(1.0, max(0.0, 1.0 - (below + inside) / self.tokens))


@dataclass(frozen=True, slots=True)
class History:
    """A pod's records, oldest first."""

    recent: tuple[Record, ...] = ()
    archive: tuple[Record, ...] = ()

    def last(self, seconds: float, now: float) -> tuple[Record, ...]:
        """The recent records that ended within `seconds` of `now`; none when nothing was decoded in them."""
        return tuple(r for r in self.recent if r.at > now - seconds)

    @property
    def all(self) -> tuple[Record, ...]:
        return (*self.archive, *self.recent)


def record_of(window: Window) -> Record | None:
    """The window as a record; None when it decoded nothing or carries no exact step sums."""
    decode, mixed, itl = window.decode_steps, window.mixed_steps, window.itl
    if decode is None or mixed is None or itl.count <= 0 or not itl.exact:
        return None
    batch_sum = decode.B + mixed.B
    if batch_sum <= 0:
        return None
    batch = _in_flight(window, decode, mixed) * (decode.BB + mixed.BB) / batch_sum
    first, cumulative = _trimmed(itl)
    steps = float(decode.n + mixed.n)
    return Record(
        at=window.at,
        seconds=window.dt,
        steps=steps,
        steps2=steps,
        windows=1.0,
        batch=batch,
        context=(decode.BK + mixed.BK) / (decode.BB + mixed.BB),
        prefill=(decode.P + mixed.P) / batch_sum,
        mixed=mixed.n / batch_sum,
        share=mixed.B / batch_sum,
        chunk=mixed.P / mixed.n if mixed.n else 0.0,
        chunk2=mixed.PP / mixed.n if mixed.n else 0.0,
        room=_room(window, batch_sum / (decode.n + mixed.n)),
        prompts=float(mixed.n if window.ttft is None else window.ttft.count),
        tokens=float(itl.count),
        sum_s=itl.sum_s,
        square_s=_squares(itl),
        edges=itl.edges,
        first=first,
        cumulative=cumulative,
    )


def _room(window: Window, batch: float) -> float:
    """Room for prefill beside so many decodes, by the budget that was asked for.

    The one in force is that of a single step: where a prompt stands before a decode the tuner lifts it for
    just that step, and the room of the window's steps is somewhere between the two. The lower one is taken:
    the law can choose nothing but what it asks for, so what comes of lifts belongs to that, and a step that
    was lifted was full, as which it then counts. What a drain adds to every step is known.
    """
    rooms = [_room_of(e, batch) for e in window.last.engines]
    return max(1.0, min(rooms, default=math.inf))


def _room_of(engine: EngineState, batch: float) -> float:
    budget, per_seq = engine.kept_num_scheduled_tokens, engine.tokens_per_seq or 1
    if budget is None:
        return math.inf
    cap = engine.max_num_active_seqs
    draining = 0.0 if cap is None else max(0.0, batch - cap) * per_seq
    return min(budget + draining, engine.start_num_scheduled_tokens or math.inf) - batch * per_seq


def _in_flight(window: Window, decode: StepMoments, mixed: StepMoments) -> int:
    """Steps that the engine has in flight at once: with pipeline stages a token waits for all of them.

    Told by two ratios that must agree: latency over step time, which preemptions raise too, and running over
    decoding sequences, which prefill raises too.
    """
    batch = (decode.B + mixed.B) / (decode.n + mixed.n)
    step_s = 1e-6 * (decode.By + mixed.By) / (decode.B + mixed.B)
    if step_s <= 0.0 or window.itl.count <= 0:
        return 1
    latency = window.itl.sum_s / window.itl.count / step_s
    running = window.running / len(window.last.engines) / batch
    return max(1, round(min(latency, running)))


def _trimmed(d: Distribution) -> tuple[int, tuple[float, ...]]:
    filled = [i for i, c in enumerate(d.counts) if c > 0]
    first, last = filled[0], filled[-1]
    return first, tuple(float(v) for v in accumulate(d.counts[first : last + 1]))


def _squares(d: Distribution) -> float:
    total, low = 0.0, 0.0
    for high, count in zip(d.edges, d.counts, strict=True):
        if count:
            middle = low if math.isinf(high) else (low + high) / 2.0
            total += count * middle * middle
        low = high
    return total


def relative_variance(records: Sequence[Record]) -> float:
    """Variance of one inter-token latency over its squared mean."""
    tokens, total = sum(r.tokens for r in records), sum(r.sum_s for r in records)
    if tokens <= 0.0 or total <= 0.0:
        return 0.0
    return max(1e-4, sum(r.square_s for r in records) * tokens / (total * total) - 1.0)


def remember(history: History, record: Record) -> History:
    """The history with one more window; what is older than RECENT_S goes to the archive."""
    fade = math.exp(-record.seconds / MEMORY_S)
    archive = [_faded(r, fade) for r in history.archive]
    recent = [*history.recent, record]
    while recent and recent[0].at < record.at - RECENT_S:
        _archive(archive, recent.pop(0))
    total = sum(r.steps for r in archive) + sum(r.steps for r in recent)
    archive = [r for r in archive if r.steps > 0.01 * total]
    return History(tuple(recent), tuple(archive))


def forget_archive(history: History) -> History:
    """For when the load has changed its nature: only the newest seconds still speak of it."""
    return replace(history, archive=())


def changed_load(history: History, prompt_cv: float) -> bool:
    """Whether requests of the newest seconds are of another kind than before: much more or less prefill per
    token, or far longer or shorter contexts.

    Told from counts alone, so no noise of the machine can pretend it. N prompts that come by chance, their
    lengths scattering by `prompt_cv` of the mean, carry a number of tokens that scatters by
    sqrt((1 + cv^2) / N); so few prompts, and such of very different lengths, ask for a larger difference.
    """
    prompts, before = (sum(r.prompts for r in records) for records in (history.recent, history.archive))
    if min(prompts, before) < 1.0:
        return False
    chance = 3.0 * math.sqrt((1.0 + prompt_cv**2) * (1.0 / prompts + 1.0 / before))
    recent, archive = _mean_of(history.recent), _mean_of(history.archive)
    return any(
        min(new, old) > 0.0 and abs(math.log(new / old)) > max(least, chance)
        for new, old, least in zip(recent, archive, (CHANGED_LOAD, CHANGED_CONTEXT), strict=True)
    )


def _mean_of(records: Sequence[Record]) -> tuple[float, float]:
    """Prefill per decoded token, and resident tokens per sequence; zero where nothing was decoded."""
    tokens = sum(r.tokens for r in records)
    if tokens <= 0.0:
        return 0.0, 0.0
    return sum(r.prefill * r.tokens for r in records) / tokens, sum(
        r.context * r.tokens for r in records
    ) / tokens


def _faded(r: Record, k: float) -> Record:
    return replace(
        r,
        seconds=r.seconds * k,
        steps=r.steps * k,
        steps2=r.steps2 * k * k,
        windows=r.windows * k,
        prompts=r.prompts * k,
        tokens=r.tokens * k,
        sum_s=r.sum_s * k,
        square_s=r.square_s * k,
        cumulative=tuple(v * k for v in r.cumulative),
    )


def _archive(archive: list[Record], record: Record) -> None:
    """Merges `record` into the archived one whose working point is nearest, if near enough or out of room."""
    if archive:
        gaps = [abs(r.batch - record.batch) / max(r.batch, record.batch, 1.0) for r in archive]
        nearest = min(range(len(archive)), key=lambda i: gaps[i])
        if gaps[nearest] <= SAME_BATCH or len(archive) >= MAX_ARCHIVED:
            archive[nearest] = _merged(archive[nearest], record)
            return
    archive.append(record)


def _merged(a: Record, b: Record) -> Record:
    total = a.tokens + b.tokens

    def mean(x: float, y: float) -> float:
        return (x * a.tokens + y * b.tokens) / total

    def chunk(x: float, y: float) -> float:
        steps = a.mixed * a.tokens + b.mixed * b.tokens
        return (x * a.mixed * a.tokens + y * b.mixed * b.tokens) / steps if steps > 0.0 else 0.0

    edges = a.edges if len(a.edges) >= len(b.edges) else b.edges
    first = min(a.first, b.first)
    last = max(a.first + len(a.cumulative), b.first + len(b.cumulative))
    cumulative = tuple(_at(a, i) + _at(b, i) for i in range(first, last))
    return Record(
        at=max(a.at, b.at),
        seconds=a.seconds + b.seconds,
        steps=a.steps + b.steps,
        steps2=a.steps2 + b.steps2,
        windows=a.windows + b.windows,
        batch=mean(a.batch, b.batch),
        context=mean(a.context, b.context),
        prefill=mean(a.prefill, b.prefill),
        mixed=mean(a.mixed, b.mixed),
        share=mean(a.share, b.share),
        chunk=chunk(a.chunk, b.chunk),
        chunk2=chunk(a.chunk2, b.chunk2),
        room=max(a.room, b.room),
        prompts=a.prompts + b.prompts,
        tokens=total,
        sum_s=a.sum_s + b.sum_s,
        square_s=a.square_s + b.square_s,
        edges=edges,
        first=first,
        cumulative=cumulative,
    )


def _at(r: Record, i: int) -> float:
    """Tokens of `r` at or below bucket i's edge."""
    j = i - r.first
    return 0.0 if j < 0 else r.cumulative[min(j, len(r.cumulative) - 1)]


def independent_steps(records: Sequence[Record]) -> float:
    """How many unfaded steps the records are worth."""
    steps2 = sum(r.steps2 for r in records)
    return sum(r.steps for r in records) ** 2 / steps2 if steps2 > 0 else 0.0
