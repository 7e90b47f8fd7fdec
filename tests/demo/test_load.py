"""The overload's requests, and what is read from vLLM's benchmark result."""

from __future__ import annotations

import base64
import gzip
import json
import shlex

import pytest

from demo.load import (
    BEGIN,
    END,
    MOST_STREAMS,
    Request,
    Shape,
    bench_command,
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
    assert all(len(line["hash_ids"]) * 16 >= line["input_length"] for line in lines)


def test_the_command_runs_the_benchmark_and_then_packs_its_result() -> None:
    lines = bench_command("http://10.0.0.1:80", "tiny", "/models/tiny", 40, 50, "/trace.jsonl").splitlines()
    assert lines[0] == "set -e"
    words = shlex.split(lines[1])
    assert words[:3] == ["vllm", "bench", "serve"]
    assert words[words.index("--max-concurrency") + 1] == "40"
    assert words[words.index("--num-prompts") + 1] == "50"


def test_a_run_has_as_many_streams_as_its_time_takes() -> None:
    assert SHAPE.streams_in(seconds=90, tokens_per_s=1000) == 300
    assert SHAPE.streams_in(seconds=1, tokens_per_s=1) == 2 * SHAPE.concurrency
    assert SHAPE.streams_in(seconds=90, tokens_per_s=1e6) == MOST_STREAMS


def test_a_result_survives_the_log() -> None:
    packed = base64.encodebytes(gzip.compress(json.dumps({"completed": 3}).encode())).decode()
    log = f"INFO something\n{BEGIN}\n{packed}{END}\n"
    assert unpack(log) == {"completed": 3}


def test_a_log_without_a_result_shows_its_end() -> None:
    with pytest.raises(ValueError, match="Connection refused"):
        unpack("...\nOSError: Connection refused\n")


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
