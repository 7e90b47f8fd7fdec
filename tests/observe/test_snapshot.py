"""The tuner's snapshot: read to the letter, or refused with the field's name."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamaserver.observe import (
    EngineReport,
    Failure,
    Memory,
    Sample,
    Source,
    Unusable,
    Window,
    advance,
    parse_snapshot,
    quantile,
    read_snapshot,
    with_requests,
)
from llamaserver.simulate import speech
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import CPU_24M
from observe.samples import engine, histogram, read, sample


@pytest.fixture(scope="module")
def live() -> dict[str, Any]:
    made = Engine(CPU_24M)
    made.put(12)
    made.load(streams=40)
    made.run_until(20.0)
    return speech.document(made)


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
        parse_snapshot(read(f"snapshot_v0.32.0_busy_{i}.json").encode(), at, "uid/0")
        for i, at in ((1, 0.0), (2, 4.0))
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
        (["engines", 0, "lengths"], 3, Unusable.LYING),
        (["engines", 0, "lengths", "running"], None, Unusable.LYING),
        (["engines", 0, "lengths", "running", "bounded", "requests"], 10**6, Unusable.LYING),
        (["engines", 0, "lengths", "waiting", "unbounded", "requests"], 10**6, Unusable.LYING),
        (["engines", 0, "lengths", "running", "bounded", "max_tokens"], -1, Unusable.LYING),
        (["engines", 0, "lengths", "running", "bounded", "max_tokens"], 10**30, Unusable.LYING),
        (["engines", 0, "lengths", "running", "bounded", "prompt_tokens"], 1.5, Unusable.LYING),
        (["engines", 0, "lengths", "waiting", "bounded", "generated_tokens"], "7", Unusable.LYING),
        (["requests", "0", "max_tokens_bounded_finished"], -1, Unusable.LYING),
        (["requests", "0", "generation_tokens_bounded_finished"], True, Unusable.LYING),
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


def test_what_runs_and_waits_is_read(live: dict[str, Any]) -> None:
    found = parse(live)
    assert isinstance(found, Sample)
    load = found.engines[0].load
    assert load is not None
    told = live["engines"][0]["lengths"]
    assert (load.running.requests, load.waiting.requests) == (12, 28)
    assert load.running.generated_tokens == told["running"]["bounded"]["generated_tokens"] > 0
    assert load.waiting.max_tokens == told["waiting"]["bounded"]["max_tokens"] > 28 * 60
    assert load.running_unbounded.requests == 0
    assert found.bounded_max_tokens == found.bounded_generation_tokens == found.finished_generation_tokens


def test_a_tuner_that_does_not_tell_lengths_is_read_without_them(live: dict[str, Any]) -> None:
    older, null = copy.deepcopy(live), copy.deepcopy(live)
    names = ("bounded_finished", "max_tokens_bounded_finished", "generation_tokens_bounded_finished")
    del older["engines"][0]["lengths"]
    null["engines"][0]["lengths"] = None
    for name in names:
        del older["requests"]["0"][name]
        null["requests"]["0"][name] = None
    for document in (older, null):
        found = parse(document)
        assert isinstance(found, Sample), found
        assert (found.engines[0].load, found.bounded_max_tokens) == (None, None)


def reports(document: object) -> EngineReport:
    found = read_snapshot(json.dumps(document).encode(), 5.0, "uid/0")
    assert isinstance(found, EngineReport), found
    return found


def test_missing_requests_are_taken_from_metrics_and_the_rest_from_the_tuner(live: dict[str, Any]) -> None:
    document = copy.deepcopy(live) | {"requests": None, "requests_reason": "SeveralApiServers"}
    document["engines"][0]["queue"] = live["requests"]["0"]["queue"]
    metrics = sample(5.2, queue=histogram(1, 2, 0, 0), generation_tokens=777)
    merged, whole = with_requests(reports(document), metrics), parse(live)
    assert isinstance(whole, Sample)
    assert merged.source is Source.TUNER_AND_METRICS
    assert (merged.itl, merged.generation_tokens) == (metrics.itl, 777)
    assert (merged.engines, merged.engine_steps) == (whole.engines, whole.engine_steps)
    assert (merged.at, merged.clock_s, merged.incarnation) == (5.0, whole.clock_s, whole.incarnation)
    assert merged.writable
    # The engines count waiting times at admission, exactly.
    assert merged.queue == whole.queue
    del document["engines"][0]["queue"]
    assert with_requests(reports(document), metrics).queue == metrics.queue


def test_an_engine_without_sums_still_tells_its_state(live: dict[str, Any]) -> None:
    """As a tuner that switched itself off: no sums, no cap to set, and its reason."""
    document = copy.deepcopy(live) | {"writable": False, "reason": "TunerFailed", "message": "boom"}
    for key in ("steps", "queue"):
        document["engines"][0].pop(key, None)
    document["engines"][0]["live"] = dict.fromkeys(document["engines"][0]["live"], "TunerFailed")
    found = parse(document)
    assert isinstance(found, Sample)
    assert (found.reason, found.message, found.writable) == ("TunerFailed", "boom", False)
    assert (found.engines[0].decode_steps, found.engine_steps) == (None, None)
    # What tells then whether it gets on.
    assert found.engines[0].generation_tokens == live["requests"]["0"]["generation_tokens"]
    assert found.engines[0].running == live["engines"][0]["running"]


@pytest.mark.parametrize("reason", ["EnginePluginMissing", "NoEngineAccess", "EngineError", "TunerFailed"])
def test_engines_out_of_the_tuners_reach_are_read_from_metrics_with_its_reason(
    live: dict[str, Any], reason: str
) -> None:
    document = copy.deepcopy(live) | {"engines": None, "writable": False, "reason": reason, "message": "why"}
    found = with_requests(reports(document), sample(5.2, engines=(engine(running=9),)))
    assert (found.source, found.engines[0].running) == (Source.METRICS, 9)
    assert (found.writable, found.reason, found.message) == (False, reason, "why")


@pytest.mark.parametrize("reason", ["EngineUnreachable", "EngineDead", "ShuttingDown"])
def test_an_engine_that_is_silent_is_said_to_be(live: dict[str, Any], reason: str) -> None:
    found = parse(copy.deepcopy(live) | {"engines": None, "writable": False, "reason": reason})
    assert isinstance(found, Failure)
    assert found.why is Unusable.ENGINE_SILENT


def test_a_field_missing_from_the_engines_is_named_and_nothing_can_be_changed(live: dict[str, Any]) -> None:
    document = copy.deepcopy(live)
    document["engines"][0]["kv"] = None
    found = with_requests(reports(document), sample(5.2))
    assert (found.writable, found.reason) == (False, "SnapshotIncomplete")
    assert "engines[0].kv" in found.message


def test_an_aged_reading_counts_while_it_is_of_now(live: dict[str, Any]) -> None:
    assert isinstance(parse(copy.deepcopy(live) | {"age_s": 2.9}), Sample)
    found = parse(copy.deepcopy(live) | {"age_s": 3.1})
    assert isinstance(found, Failure)
    assert found.why is Unusable.STALE


def test_what_the_engine_says_beyond_the_plain_figures(live: dict[str, Any]) -> None:
    document = copy.deepcopy(live)
    state = document["engines"][0]
    state["kv"]["capacity_tokens"] = 55_000
    state |= {"start_num_scheduled_tokens": 1024, "waiting_for_streaming_input": 2, "arrived": 3}
    state |= {"max_model_len": 4096}
    state |= {"running": 4, "waiting": 5, "waiting_deferred": 2, "lengths": None}
    state["queue"] = {"lo": 1e-4, "growth": 1.04, "count": 2, "sum": 0.0, "counts": {"-1": 2}}
    found = parse(document)
    assert isinstance(found, Sample)
    assert found.queue is not None
    assert found.queue.count == 2
    told = found.engines[0]
    assert (told.kv_capacity_tokens, told.start_num_scheduled_tokens) == (55_000, 1024)
    assert told.max_model_len == 4096
    # Paused sessions keep their place under the cap.
    assert (told.running, told.waiting, told.waiting_deferred) == (6, 3, 0)
    # They make no steps, and those that wait do once there is room.
    assert (told.parked, told.paused, told.movable) == (2, False, 7)


def test_an_engine_that_was_told_to_pause_has_nothing_to_get_on_with(live: dict[str, Any]) -> None:
    document = copy.deepcopy(live)
    document["engines"][0] |= {"running": 4, "waiting": 5, "lengths": None, "paused": True}
    found = parse(document)
    assert isinstance(found, Sample)
    assert (found.engines[0].paused, found.engines[0].movable) == (True, 0)
    del document["engines"][0]["paused"]
    untold = parse(document)
    assert isinstance(untold, Sample)
    assert (untold.engines[0].paused, untold.engines[0].movable) == (None, 9)
    document["engines"][0]["paused"] = "no"
    refused = parse(document)
    assert isinstance(refused, Failure)
    assert (refused.why, "engines[0].paused" in refused.message) == (Unusable.LYING, True)


def test_a_reading_without_an_answer_still_says_whose_it_is(live: dict[str, Any]) -> None:
    """A core that falls silent is followed over many such readings, and a restart ends that."""
    found = parse(copy.deepcopy(live) | {"age_s": 30.0})
    assert isinstance(found, Failure)
    assert found.incarnation == "uid/0"


def test_a_queue_that_never_waited_is_no_lie(live: dict[str, Any]) -> None:
    document = copy.deepcopy(live)
    document["requests"]["0"]["queue"] = {
        "lo": 1e-4,
        "growth": 1.04,
        "count": 5,
        "sum": 0.0,
        "counts": {"-1": 5},
    }
    assert isinstance(parse(document), Sample)


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b'{"schema":1}', b"\xff\xfe", b'{"schema":NaN}', b"[" * 9000]
)
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
    node[key] = data.draw(
        st.sampled_from([None, -1, 0, 1e308, 2**70, "NaN", "", [], {}, True, -0.5, math.pi])
    )
    found = parse(document)
    if isinstance(found, Sample):
        assert all(math.isfinite(e.kv_usage) and e.running >= 0 for e in found.engines)
        assert math.isfinite(found.itl.sum_s)


def test_nan_and_infinity_do_not_parse(live: dict[str, Any]) -> None:
    body = json.dumps(live).encode()
    for bad in (b"NaN", b"Infinity", b"-Infinity"):
        found = parse_snapshot(
            body.replace(b'"monotonic_s": 20', b'"monotonic_s": ' + bad + b', "y": 20'), 5.0, "u/0"
        )
        assert isinstance(found, Failure)
        assert found.why is Unusable.LYING
