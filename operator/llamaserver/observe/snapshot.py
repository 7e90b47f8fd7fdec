"""The tuner's snapshot (JSON) -> Sample, or a Failure that says what is wrong with it.

Types are checked to the letter: an integer that came as text, a NaN, a negative count or a digest that
contradicts itself makes the whole answer unusable, because a wrong figure here would move an engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from llamaserver.observe.distribution import EMPTY, MismatchError, add, digest_edges
from llamaserver.observe.types import (
    Distribution,
    EngineState,
    Failure,
    Lengths,
    Load,
    Sample,
    Source,
    StepMoments,
    Unusable,
)

SCHEMA = 1
MAX_AGE_S = 3.0
"""An engine reading older than this says nothing of now: the pod counts as stale until it answers again."""

_MAX_BUCKETS = 4096
_MAX_LENGTH = 1 << 31
"""Tokens of one request beyond which a length is no length."""
_MAX_BOOT_ID = 128
_SILENT = ("", "EngineUnreachable", "EngineDead", "ShuttingDown")
"""Reasons for absent engines that mean a silent engine, not a tuner without a way to it."""

_MOMENTS = tuple(StepMoments.__dataclass_fields__)


class _BadError(Exception):
    def __init__(self, why: Unusable, message: str) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True)
class EngineReport:
    """A snapshot that lacks the requests' figures, which `/metrics` may have. `lacks` says why.

    `engines` is empty when the tuner has nothing of the engines either; then `reason` says why.
    """

    at: float
    incarnation: str
    boot_id: str
    engines: tuple[EngineState, ...]
    engine_steps: int | None
    queue: Distribution | None
    """Waiting times counted at admission; None when an engine does not tell them."""
    arrived: int | None
    clock_s: float
    writable: bool
    reason: str
    message: str
    version: str
    lacks: str


def parse_snapshot(body: bytes, at: float, incarnation: str) -> Sample | Failure:
    """What a pod's tuner said at `at`. Its boot id is appended to `incarnation`.

    A snapshot without figures of requests is a Failure here; `read_snapshot` gives what it does say.
    """
    found = read_snapshot(body, at, incarnation)
    return (
        Failure(at, Unusable.MISSING, found.lacks, incarnation) if isinstance(found, EngineReport) else found
    )


def read_snapshot(body: bytes, at: float, incarnation: str) -> Sample | EngineReport | Failure:
    """As `parse_snapshot`, but with what is left where the requests' figures are missing."""
    try:
        return _read(_Node(_document(body), "snapshot"), at, incarnation)
    except _BadError as bad:
        return Failure(at, bad.why, str(bad), incarnation)


def with_requests(report: EngineReport, metrics: Sample) -> Sample:
    """One sample of both: engines, steps and the way to change them from the tuner, requests from /metrics.

    Where the tuner has nothing of the engines, those are from /metrics, too, and nothing can be changed; its
    reason is kept.
    """
    known = replace(
        metrics,
        boot_id=report.boot_id,
        reason=report.reason,
        message=report.message,
        version=report.version,
        notes=(*metrics.notes, report.lacks),
    )
    if not report.engines:
        # Not the incarnation of the tuner's own samples: the engine's generation in this one is not known.
        return known
    return replace(
        known,
        at=report.at,
        incarnation=report.incarnation,
        source=Source.TUNER_AND_METRICS,
        engines=_counted(report.engines, {one.engine: one.generation_tokens for one in metrics.engines}),
        queue=metrics.queue if report.queue is None else report.queue,
        engine_steps=metrics.engine_steps if report.engine_steps is None else report.engine_steps,
        arrived=report.arrived,
        clock_s=report.clock_s,
        writable=report.writable,
    )


def _counted(engines: tuple[EngineState, ...], tokens: Mapping[int, int | None]) -> tuple[EngineState, ...]:
    """The engines, with the front end's count of tokens where the scheduler's of steps is missing."""
    return tuple(
        replace(one, generation_tokens=tokens.get(one.engine)) if one.decode_steps is None else one
        for one in engines
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        raw = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _BadError(Unusable.LYING, f"the snapshot does not parse: {str(error)[:120]}") from error
    if not isinstance(raw, dict) or "schema" not in raw:
        raise _BadError(Unusable.UNKNOWN_SCHEMA, "the snapshot names no schema")
    if raw["schema"] != SCHEMA or isinstance(raw["schema"], bool):
        raise _BadError(
            Unusable.UNKNOWN_SCHEMA, f"snapshot schema {str(raw['schema'])[:20]!r}, known is {SCHEMA}"
        )
    return raw


def _lying(path: str, value: object, wanted: str) -> _BadError:
    return _BadError(Unusable.LYING, f"{path} is {str(value)[:40]!r}, wanted {wanted}")


class _Node:
    """One JSON object and the path to it, so that every complaint names its field."""

    def __init__(self, raw: object, path: str) -> None:
        if not isinstance(raw, dict):
            raise _lying(path, raw, "an object")
        self.raw: Mapping[str, Any] = raw
        self.path = path

    def get(self, key: str) -> Any:
        if key not in self.raw:
            raise _BadError(Unusable.MISSING, f"{self.path}.{key} is missing")
        return self.raw[key]

    def node(self, key: str) -> _Node:
        return _Node(self.get(key), f"{self.path}.{key}")

    def integer(self, key: str) -> int:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _lying(f"{self.path}.{key}", value, "a whole number of at least 0")
        return value

    def optional_integer(self, key: str) -> int | None:
        return None if self.raw.get(key) is None else self.integer(key)

    def number(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _lying(f"{self.path}.{key}", value, "a number")
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result) or result < 0:
            raise _lying(f"{self.path}.{key}", value, "a number of at least 0")
        return result

    def text(self, key: str, default: str | None = None) -> str:
        value = self.raw.get(key, default) if default is not None else self.get(key)
        if not isinstance(value, str):
            raise _lying(f"{self.path}.{key}", value, "text")
        return value

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            raise _lying(f"{self.path}.{key}", value, "true or false")
        return value

    def optional_flag(self, key: str) -> bool | None:
        return None if self.raw.get(key) is None else self.flag(key)


def _moments(node: _Node) -> StepMoments:
    return StepMoments(**{name: node.integer(name) for name in _MOMENTS})


def _digest(node: _Node) -> Distribution:
    """A digest of the form lo * growth^i, made dense. Index -1 holds what lies below lo."""
    lo, growth = node.number("lo"), node.number("growth")
    if lo <= 0 or not 1.0 < growth < 10.0:
        raise _lying(node.path, f"lo={lo}, growth={growth}", "lo > 0 and growth in (1, 10)")
    count, sum_s, raw = node.integer("count"), node.number("sum"), node.node("counts")
    sparse: dict[int, int] = {}
    for key in raw.raw:
        index = int(key) if key.removeprefix("-").isdecimal() and key.isascii() and len(key) <= 5 else None
        if index is None or not -1 <= index < _MAX_BUCKETS:
            raise _lying(f"{raw.path}.{key[:20]}", key, f"an index from -1 to {_MAX_BUCKETS - 1}")
        sparse[index] = raw.integer(key)
    if sum(sparse.values()) != count:
        raise _lying(f"{node.path}.count", count, f"the sum of its buckets, {sum(sparse.values())}")
    size = max(sparse, default=-1) + 2
    edges = digest_edges(lo, growth, size)
    if not all(math.isfinite(edge) for edge in edges[:-1]):
        raise _lying(node.path, f"growth={growth}", "finite buckets")
    dense = tuple(sparse.get(i, 0) for i in range(-1, size - 1))
    return Distribution(count, sum_s, edges, (*dense, 0), exact=True)


def _lengths(node: _Node) -> Lengths:
    requests = node.integer("requests")
    sums = {name: node.integer(name) for name in ("prompt_tokens", "generated_tokens", "max_tokens")}
    for name, tokens in sums.items():
        if tokens > requests * _MAX_LENGTH:
            raise _lying(f"{node.path}.{name}", tokens, f"a sum of tokens over {requests} requests")
    return Lengths(requests, **sums)


def _load(node: _Node, running: int, waiting: int) -> Load | None:
    """What is known of the lengths of requests; None from a tuner that does not tell."""
    if node.raw.get("lengths") is None:
        return None
    both = node.node("lengths")
    found: list[Lengths] = []
    for key, most in (("running", running), ("waiting", waiting)):
        group = both.node(key)
        parts = _lengths(group.node("bounded")), _lengths(group.node("unbounded"))
        if sum(part.requests for part in parts) > most:
            raise _lying(
                f"{group.path}.bounded.requests", parts[0].requests, f"at most {most} {key} requests"
            )
        found += parts
    return Load(*found)


def _engine(raw: object, index: int) -> EngineState:
    node = _Node(raw, f"engines[{index}]")
    live = node.node("live")
    if node.get("kv") is None:
        raise _BadError(Unusable.MISSING, f"{node.path}.kv is null")
    kv = node.node("kv")
    blocks, used = kv.integer("num_blocks"), kv.integer("used_blocks")
    if used > blocks:
        raise _lying(f"{kv.path}.used_blocks", used, f"at most num_blocks, {blocks}")
    ceiling, cap = node.integer("max_num_seqs"), node.integer("max_num_active_seqs")
    if not 1 <= cap <= ceiling:
        raise _lying(f"{node.path}.max_num_active_seqs", cap, f"from 1 to max_num_seqs, {ceiling}")
    expires = node.raw.get("lease_expires_in_s")
    # Without sums (the tuner switched itself off) the step's cost is unknown, not zero.
    steps = None if node.raw.get("steps") is None else node.node("steps")
    # vLLM holds a paused session among the waiting, but the cap counts it: it is load that has its place.
    running, waiting = node.integer("running"), node.integer("waiting")
    paused = node.optional_integer("waiting_for_streaming_input") or 0
    return EngineState(
        engine=node.integer("engine"),
        running=running + paused,
        waiting=max(0, waiting - paused),
        waiting_deferred=max(0, node.integer("waiting_deferred") - paused),
        kv_usage=used / blocks if blocks else 0.0,
        # Blocks times block size is not it where layers of several kinds share the pool.
        kv_capacity_tokens=kv.optional_integer("capacity_tokens")
        or blocks * kv.integer("block_size")
        or None,
        preemptions=node.integer("preemptions"),
        max_num_seqs=ceiling,
        max_num_batched_tokens=node.integer("max_num_batched_tokens"),
        start_num_active_seqs=node.integer("start_num_active_seqs"),
        start_num_scheduled_tokens=node.optional_integer("start_num_scheduled_tokens"),
        max_num_active_seqs=cap,
        max_num_scheduled_tokens=node.integer("max_num_scheduled_tokens"),
        min_num_scheduled_tokens=node.optional_integer("min_num_scheduled_tokens"),
        wanted_num_scheduled_tokens=_wanted_budget(node),
        tokens_per_seq=node.optional_integer("tokens_per_seq"),
        chunk_reserve=node.optional_integer("chunk_reserve"),
        max_model_len=node.optional_integer("max_model_len"),
        live_cap=live.text("max_num_active_seqs"),
        live_budget=live.text("max_num_scheduled_tokens"),
        generation=node.integer("generation"),
        lease_expires_in_s=None if expires is None else node.number("lease_expires_in_s"),
        decode_steps=None if steps is None else _moments(steps.node("decode")),
        mixed_steps=None if steps is None else _moments(steps.node("mixed")),
        load=_load(node, running, waiting),
        parked=paused,
        paused=node.optional_flag("paused"),
        skipped_steps=0 if steps is None else steps.optional_integer("skipped") or 0,
    )


def _wanted_budget(node: _Node) -> int | None:
    if node.raw.get("wanted") is None:
        return None
    return node.node("wanted").optional_integer("max_num_scheduled_tokens")


def _engines(root: _Node) -> tuple[EngineState, ...]:
    """The engines' states; empty where the tuner has no way to them."""
    raw = root.get("engines")
    if raw is None:
        reason, message = root.text("reason", ""), root.text("message", "")
        if reason in _SILENT:
            said = message or reason
            raise _BadError(Unusable.ENGINE_SILENT, f"the engine core does not answer: {said}"[:200])
        return ()
    if not isinstance(raw, list) or not raw:
        raise _lying("engines", raw, "a list of engines")
    age_s = 0.0 if root.raw.get("age_s") is None else root.number("age_s")
    if age_s > MAX_AGE_S:
        raise _BadError(Unusable.STALE, f"engines: the engine core last answered {age_s:.0f} s ago")
    engines = tuple(_engine(one, i) for i, one in enumerate(raw))
    if len({one.engine for one in engines}) != len(engines):
        raise _lying("engines", [one.engine for one in engines], "every engine once")
    return engines


def _added(requests: list[_Node], key: str) -> Distribution:
    total = EMPTY
    for node in requests:
        try:
            total = add(total, _digest(node.node(key)))
        except MismatchError as error:
            raise _BadError(Unusable.LYING, f"{node.path}.{key}: engines disagree on the buckets") from error
    return total


def _finished(requests: list[_Node]) -> int:
    return sum(
        node.node("finished").integer(reason) for node in requests for reason in node.node("finished").raw
    )


def _steps(engines: tuple[EngineState, ...]) -> int | None:
    """Steps of all engines; None when one of them does not tell."""
    total = 0
    for engine in engines:
        if engine.decode_steps is None or engine.mixed_steps is None:
            return None
        total += engine.decode_steps.n + engine.mixed_steps.n
    return total if engines else None


def _waits(engines: list[_Node]) -> Distribution | None:
    """Waiting times counted at admission, of all engines; None when one of them does not tell."""
    if not engines or any(engine.raw.get("queue") is None for engine in engines):
        return None
    return _added(engines, "queue")


def _arrivals(engines: list[_Node]) -> int | None:
    counts = [engine.optional_integer("arrived") for engine in engines]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _report(root: _Node, at: float, incarnation: str) -> EngineReport:
    """Everything but the requests. `lacks` is filled in by whoever finds them missing."""
    boot_id = root.text("boot_id")
    if not 0 < len(boot_id) <= _MAX_BOOT_ID:
        raise _lying("snapshot.boot_id", boot_id, f"1 to {_MAX_BOOT_ID} characters")
    reason, message, lacks = root.text("reason", ""), root.text("message", ""), ""
    try:
        engines = _engines(root)
    except _BadError as bad:
        if bad.why is not Unusable.MISSING:
            raise
        engines, reason, message, lacks = (), "SnapshotIncomplete", str(bad), str(bad)
    if not engines and not lacks:
        lacks = f"the tuner has nothing of the engines: {reason}"[:200]
    nodes = (
        [_Node(one, f"engines[{i}]") for i, one in enumerate(root.get("engines") or [])] if engines else []
    )
    return EngineReport(
        at=at,
        incarnation=f"{incarnation}/{boot_id}",
        boot_id=boot_id,
        engines=engines,
        engine_steps=_steps(engines),
        queue=_waits(nodes),
        arrived=_arrivals(nodes),
        clock_s=root.number("monotonic_s"),
        writable=root.flag("writable") and bool(engines),
        reason=reason,
        message=message,
        version=root.text("vllm", ""),
        lacks=lacks,
    )


def _read(root: _Node, at: float, incarnation: str) -> Sample | EngineReport:
    report = _report(root, at, incarnation)
    if not report.engines:
        return report
    try:
        return _sample(root, report)
    except _BadError as bad:
        if bad.why is not Unusable.MISSING:
            raise
        return replace(report, lacks=str(bad))


def _sample(root: _Node, report: EngineReport) -> Sample:
    raw = root.get("requests")
    if not raw:
        said = root.text("requests_reason", "") or "no engine in it"
        raise _BadError(Unusable.MISSING, f"the snapshot has no request statistics: {said}"[:200])
    group = _Node(raw, "requests")
    requests = [group.node(key) for key in group.raw]

    def total(key: str) -> int:
        return sum(node.integer(key) for node in requests)

    def optional_total(key: str) -> int | None:
        known = [count for node in requests if (count := node.optional_integer(key)) is not None]
        return sum(known) if len(known) == len(requests) else None

    tokens = {key: node.integer("generation_tokens") for key, node in zip(group.raw, requests, strict=True)}
    allowed, made = (optional_total(f"{kind}_tokens_bounded_finished") for kind in ("max", "generation"))

    itl = _added(requests, "itl")
    if itl.count > 0 and itl.sum_s <= 0.0:
        raise _lying("requests.itl.sum", itl.sum_s, f"more than 0 s for {itl.count} observations")
    # Told only when a request finishes, so it is second to what the engines count at admission.
    finished_waits = _added(requests, "queue")
    return Sample(
        at=report.at,
        source=Source.TUNER,
        incarnation=report.incarnation,
        engines=_counted(report.engines, {e.engine: tokens.get(str(e.engine)) for e in report.engines}),
        itl=itl,
        tpot=_added(requests, "tpot"),
        ttft=_added(requests, "ttft"),
        queue=finished_waits if report.queue is None else report.queue,
        prompt_tokens=total("prompt_tokens"),
        cached_prompt_tokens=total("cached_prompt_tokens"),
        generation_tokens=sum(tokens.values()),
        finished=_finished(requests),
        engine_steps=report.engine_steps,
        arrived=total("arrived"),
        finished_prompt_tokens=total("prompt_tokens_finished"),
        finished_generation_tokens=total("generation_tokens_finished"),
        bounded_max_tokens=allowed,
        bounded_generation_tokens=made,
        clock_s=report.clock_s,
        writable=report.writable,
        reason=report.reason,
        message=report.message,
        version=report.version,
        boot_id=report.boot_id,
    )
