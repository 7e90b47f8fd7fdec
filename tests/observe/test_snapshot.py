"""The tuner's snapshot: read to the letter, or refused with the field's name."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from control.plant import CPU_24M, Engine
from hypothesis import given, settings
from hypothesis import strategies as st
from llamaserver.observe import Failure, Memory, Sample, Source, Unusable, Window, advance, parse_snapshot, quantile

from observe.samples import read


@pytest.fixture(scope="module")
def live() -> dict[str, Any]:
    made = Engine(CPU_24M)
    made.put(12)
    made.load(streams=40)
    made.run_until(20.0)
    return made.document()


def parse(document: object) -> Sample | Failure:
    return parse_snapshot(json.dumps(document).encode(), 5.0, "uid/0")


def test_what_the_plant_says_is_what_is_read(live: dict[str, Any]) -> None:
    found = parse(live)
    assert isinstance(found, Sample)
    assert found.source is Source.TUNER
    assert found.incarnation == "uid/0/boot-1"
    assert found.writable
    state = found.engines[0]
    assert (state.max_num_seqs, state.max_num_active_seqs, state.live_cap) == (32, 12, "")
    assert state.kv_capacity_tokens == 60_000
    requests = live["requests"]["0"]
    assert found.itl.count == requests["itl"]["count"]
    assert found.finished_generation_tokens == requests["generation_tokens_finished"]
    assert found.itl.exact


@pytest.mark.parametrize("name", ["idle", "busy_1", "busy_2"])
def test_recorded_snapshots_of_vllm_0_32(name: str) -> None:
    found = parse_snapshot(read(f"snapshot_v0.32.0_{name}.json").encode(), 5.0, "uid/0")
    assert isinstance(found, Sample)
    assert found.version == "0.32.0"
    assert found.engines[0].max_num_seqs == 32
    assert found.engines[0].live_cap == ""


def test_two_recorded_snapshots_make_a_window() -> None:
    first, second = (
        parse_snapshot(read(f"snapshot_v0.32.0_busy_{i}.json").encode(), at, "uid/0") for i, at in ((1, 0.0), (2, 4.0))
    )
    memory, _ = advance(Memory(), {"pod": first}, 0.0)
    _, windows = advance(memory, {"pod": second}, 4.0)
    window = windows["pod"]
    assert isinstance(window, Window)
    assert window.dt == pytest.approx(4.0225, abs=1e-3)  # by the engine's own clock
    assert window.itl.count == 1707
    assert (window.running, window.waiting, window.finished) == (24, 16, 12)
    assert window.decode_steps is not None
    assert window.decode_steps.n == 54
    assert window.decode_steps.B == 54 * 24
    assert 0.03 < (quantile(window.itl, 0.5) or 0.0) < 0.06


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (["schema"], 2, Unusable.UNKNOWN_SCHEMA),
        (["schema"], "1", Unusable.UNKNOWN_SCHEMA),
        (["schema"], True, Unusable.UNKNOWN_SCHEMA),
        (["engines"], None, Unusable.ENGINE_SILENT),
        (["engines"], [], Unusable.LYING),
        (["engines", 0, "running"], "3", Unusable.LYING),
        (["engines", 0, "running"], 3.0, Unusable.LYING),
        (["engines", 0, "running"], -1, Unusable.LYING),
        (["engines", 0, "running"], True, Unusable.LYING),
        (["engines", 0, "max_num_active_seqs"], 0, Unusable.LYING),
        (["engines", 0, "max_num_active_seqs"], 33, Unusable.LYING),
        (["engines", 0, "kv", "used_blocks"], 10**9, Unusable.LYING),
        (["engines", 0, "lease_expires_in_s"], "soon", Unusable.LYING),
        (["engines", 0, "steps", "decode", "yy"], 1.5, Unusable.LYING),
        (["requests"], None, Unusable.MISSING),
        (["requests"], {}, Unusable.MISSING),
        (["requests", "0", "itl", "count"], 1, Unusable.LYING),
        (["requests", "0", "itl", "sum"], 0.0, Unusable.LYING),
        (["requests", "0", "itl", "sum"], None, Unusable.LYING),
        (["requests", "0", "itl", "growth"], 1.0, Unusable.LYING),
        (["requests", "0", "itl", "lo"], 0, Unusable.LYING),
        (["requests", "0", "itl", "counts"], {"x": 1}, Unusable.LYING),
        (["requests", "0", "itl", "counts"], {"99999": 1}, Unusable.LYING),
        (["monotonic_s"], -1.0, Unusable.LYING),
        (["writable"], 1, Unusable.LYING),
        (["boot_id"], None, Unusable.LYING),
    ],
)
def test_a_wrong_field_is_named(live: dict[str, Any], path: list[Any], value: object, why: Unusable) -> None:
    document: Any = copy.deepcopy(live)
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    found = parse(document)
    assert isinstance(found, Failure)
    assert found.why is why
    named = [str(p) for p in path if isinstance(p, str) and p != "0"]
    assert any(name in found.message for name in [*named, "engine core", "request statistics"])


def test_a_queue_that_never_waited_is_no_lie(live: dict[str, Any]) -> None:
    document = copy.deepcopy(live)
    document["requests"]["0"]["queue"] = {"lo": 1e-4, "growth": 1.04, "count": 5, "sum": 0.0, "counts": {"-1": 5}}
    assert isinstance(parse(document), Sample)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b'{"schema":1}', b"\xff\xfe", b'{"schema":NaN}', b"[" * 9000])
def test_no_body_raises(body: bytes) -> None:
    assert isinstance(parse_snapshot(body, 5.0, "uid/0"), Failure)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_value_anywhere_raises_or_yields_nonsense(live: dict[str, Any], data: st.DataObject) -> None:
    document: Any = copy.deepcopy(live)
    node, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans()):
        node = node[key]
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
    node[key] = data.draw(st.sampled_from([None, -1, 0, 1e308, 2**70, "NaN", "", [], {}, True, -0.5, math.pi]))
    found = parse(document)
    if isinstance(found, Sample):
        assert all(math.isfinite(e.kv_usage) and e.running >= 0 for e in found.engines)
        assert math.isfinite(found.itl.sum_s)


def test_nan_and_infinity_do_not_parse(live: dict[str, Any]) -> None:
    body = json.dumps(live).encode()
    for bad in (b"NaN", b"Infinity", b"-Infinity"):
        found = parse_snapshot(body.replace(b'"monotonic_s": 20', b'"monotonic_s": ' + bad + b', "y": 20'), 5.0, "u/0")
        assert isinstance(found, Failure)
        assert found.why is Unusable.LYING
