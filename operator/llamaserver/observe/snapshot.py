"""The tuner's snapshot (JSON) -> Sample, or a Failure that says what is wrong with it.

Types are checked to the letter: an integer that came as text, a NaN, a negative count or a digest that
contradicts itself makes the whole answer unusable, because a wrong figure here would move an engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from llamaserver.observe.distribution import EMPTY, MismatchError, add, digest_edges
from llamaserver.observe.types import (
    Distribution,
    EngineState,
    Failure,
    Sample,
    Source,
    StepMoments,
    Unusable,
)

SCHEMA = 1
_MAX_BUCKETS = 4096
_MOMENTS = tuple(StepMoments.__dataclass_fields__)


class _BadError(Exception):
    def __init__(self, why: Unusable, message: str) -> None:
        super().__init__(message)
        self.why = why


def parse_snapshot(body: bytes, at: float, incarnation: str) -> Sample | Failure:
    """What a pod's tuner said at `at`. Its boot id is appended to `incarnation`."""
    try:
        return _sample(_document(body), at, incarnation)
    except _BadError as bad:
        return Failure(at, bad.why, str(bad))


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


def _engine(raw: object, index: int) -> EngineState:
    node = _Node(raw, f"engines[{index}]")
    kv, steps, live = node.node("kv"), node.node("steps"), node.node("live")
    blocks, used = kv.integer("num_blocks"), kv.integer("used_blocks")
    if used > blocks:
        raise _lying(f"{kv.path}.used_blocks", used, f"at most num_blocks, {blocks}")
    ceiling, cap = node.integer("max_num_seqs"), node.integer("max_num_active_seqs")
    if not 1 <= cap <= ceiling:
        raise _lying(f"{node.path}.max_num_active_seqs", cap, f"from 1 to max_num_seqs, {ceiling}")
    expires = node.raw.get("lease_expires_in_s")
    return EngineState(
        engine=node.integer("engine"),
        running=node.integer("running"),
        waiting=node.integer("waiting"),
        waiting_deferred=node.integer("waiting_deferred"),
        kv_usage=used / blocks if blocks else 0.0,
        kv_capacity_tokens=blocks * kv.integer("block_size") or None,
        preemptions=node.integer("preemptions"),
        max_num_seqs=ceiling,
        max_num_batched_tokens=node.integer("max_num_batched_tokens"),
        start_num_active_seqs=node.integer("start_num_active_seqs"),
        max_num_active_seqs=cap,
        max_num_scheduled_tokens=node.integer("max_num_scheduled_tokens"),
        min_num_scheduled_tokens=node.optional_integer("min_num_scheduled_tokens"),
        live_cap=live.text("max_num_active_seqs"),
        live_budget=live.text("max_num_scheduled_tokens"),
        generation=node.integer("generation"),
        lease_expires_in_s=None if expires is None else node.number("lease_expires_in_s"),
        decode_steps=_moments(steps.node("decode")),
        mixed_steps=_moments(steps.node("mixed")),
    )


def _engines(root: _Node) -> tuple[EngineState, ...]:
    raw = root.get("engines")
    if raw is None:
        said = root.text("message", "") or root.text("reason", "")
        raise _BadError(Unusable.ENGINE_SILENT, f"the engine core does not answer: {said}"[:200])
    if not isinstance(raw, list) or not raw:
        raise _lying("engines", raw, "a list of engines")
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


def _steps(engine: EngineState) -> int:
    assert engine.decode_steps is not None and engine.mixed_steps is not None
    return engine.decode_steps.n + engine.mixed_steps.n


def _sample(document: Mapping[str, Any], at: float, incarnation: str) -> Sample:
    root = _Node(document, "snapshot")
    engines = _engines(root)
    raw = root.get("requests")
    if not raw:
        said = root.text("requests_reason", "") or "no engine in it"
        raise _BadError(Unusable.MISSING, f"the snapshot has no request statistics: {said}"[:200])
    group = _Node(raw, "requests")
    requests = [group.node(key) for key in group.raw]

    def total(key: str) -> int:
        return sum(node.integer(key) for node in requests)

    itl = _added(requests, "itl")
    if itl.count > 0 and itl.sum_s <= 0.0:
        raise _lying("requests.itl.sum", itl.sum_s, f"more than 0 s for {itl.count} observations")
    return Sample(
        at=at,
        source=Source.TUNER,
        incarnation=f"{incarnation}/{root.text('boot_id')}",
        engines=engines,
        itl=itl,
        tpot=_added(requests, "tpot"),
        ttft=_added(requests, "ttft"),
        queue=_added(requests, "queue"),
        prompt_tokens=total("prompt_tokens"),
        cached_prompt_tokens=total("cached_prompt_tokens"),
        generation_tokens=total("generation_tokens"),
        finished=_finished(requests),
        engine_steps=sum(_steps(engine) for engine in engines),
        arrived=total("arrived"),
        finished_prompt_tokens=total("prompt_tokens_finished"),
        finished_generation_tokens=total("generation_tokens_finished"),
        clock_s=root.number("monotonic_s"),
        writable=root.flag("writable"),
        reason=root.text("reason", ""),
        message=root.text("message", ""),
        version=root.text("vllm", ""),
    )
