"""The overload's requests, and what is read from vLLM's benchmark result."""

from __future__ import annotations

import json

import pytest

from demo.bench import ENDED, packed
from demo.load import (
    CHUNK,
    MOST_STREAMS,
    Request,
    Shape,
    bench_flags,
    client_figures,
    cut_streams,
    requests,
    trace,
    unpack,
)

SHAPE = Shape(concurrency=40, prompt=(24, 40), output=(200, 400))
STREAMS = 50


def result(work: list[Request], itl_s: float, *, spacing: float = 1.0) -> dict:
    """A benchmark result in which stream i starts `spacing * i` seconds in and every gap is `itl_s`."""
    return {
        "start_times": [500.0 + spacing * i for i in range(len(work))],
        "ttfts": [0.1] * len(work),
        "itls": [[itl_s] * (r.output - 1) for r in work],
        "output_lens": [r.output for r in work],
        "errors": [""] * len(work),
        "output_throughput": 123.4,
        "duration": 99.0,
    }


def test_the_same_shape_gives_the_same_requests_within_its_bounds() -> None:
    work = requests(SHAPE, STREAMS)
    assert work == requests(SHAPE, STREAMS)
    assert work == requests(SHAPE)[:STREAMS]
    assert len(work) == 50
    assert all(24 <= r.prompt <= 40 and 200 <= r.output <= 400 for r in work)


def test_the_trace_has_enough_hash_ids_and_shares_none() -> None:
    lines = [json.loads(line) for line in trace(requests(SHAPE, STREAMS)).splitlines()]
    ids = [i for line in lines for i in line["hash_ids"]]
    assert len(ids) == len(set(ids))
    assert all(len(line["hash_ids"]) * CHUNK >= line["input_length"] for line in lines)


def test_the_benchmark_is_told_the_load() -> None:
    flags = bench_flags("http://10.0.0.1:80", "tiny", "/models/tiny", 40, "/trace.jsonl")
    assert flags[flags.index("--max-concurrency") + 1] == "40"
    assert flags[flags.index("--num-prompts") + 1] == str(MOST_STREAMS)
    assert flags[flags.index("--dataset-path") + 1] == "/trace.jsonl"
    assert "--save-detailed" in flags


def test_a_result_survives_its_way() -> None:
    assert unpack(packed({"completed": 3}).decode() + "\n") == {"completed": 3}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (packed({"error": "OSError: Connection refused"}).decode(), "Connection refused"),
        (packed({"completed": 3}).decode()[:20], "cannot be read"),
        ("", "cannot be read"),
        ("command terminated\n", "cannot be read"),
    ],
    ids=["its own error", "cut short", "nothing", "not its own"],
)
def test_a_benchmark_that_failed_says_why(said: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpack(said)


def test_short_and_failed_streams_are_cut() -> None:
    work = requests(SHAPE, STREAMS)
    outcome = result(work, 0.02)
    outcome["output_lens"][3] -= 1
    outcome["errors"][7] = "Traceback ...\nServerDisconnectedError"
    assert cut_streams(outcome, work) == (
        f"{work[3].output - 1} of {work[3].output} tokens",
        "ServerDisconnectedError",
    )


def test_client_windows_are_judged_after_settling() -> None:
    work = requests(SHAPE, STREAMS)
    good = client_figures(result(work, 0.010), work, settle_s=30.0, quantile=0.95, target_s=0.015)
    bad = client_figures(result(work, 0.020), work, settle_s=30.0, quantile=0.95, target_s=0.015)
    assert (good.windows, good.windows_violated) == (1, 0)
    assert (bad.windows, bad.windows_violated) == (1, 1)
    assert bad.itl_ms == {"p50": 20.0, "p95": 20.0, "p99": 20.0}
    assert bad.streams == 50
    assert bad.cut == 0


def test_a_first_token_counts_when_it_came_after_settling() -> None:
    work = requests(SHAPE, STREAMS)
    outcome = result(work, 0.010)
    outcome["ttfts"] = [9.0] * 21 + [0.5] * 29
    found = client_figures(outcome, work, settle_s=30.0, quantile=0.95, target_s=0.015)
    assert found.ttft_ms == {"p50": 500.0, "p95": 500.0, "p99": 500.0}


def test_streams_that_the_end_took_are_neither_streams_nor_cut() -> None:
    work = requests(SHAPE, STREAMS)
    outcome = result(work, 0.010)
    for i in range(45, 50):
        outcome["errors"][i], outcome["itls"][i], outcome["output_lens"][i] = ENDED, [], 0
    found = client_figures(outcome, work, settle_s=30.0, quantile=0.95, target_s=0.015)
    assert (found.streams, found.cut) == (45, 0)
    assert found.windows == 1
    with pytest.raises(ValueError, match="not a single stream"):
        client_figures({**outcome, "errors": [ENDED] * 50}, work, settle_s=30.0, quantile=0.95, target_s=1.0)
