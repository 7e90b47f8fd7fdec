"""A recorder's output made up step by step, with figures that are known beforehand."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo import output
from demo.evaluate import kv_checks, run_part, slo_checks
from demo.load import ClientFigures
from demo.recording import load_span, parse
from demo.report import CalibrationPart, Kv, KvRun, LoadPart, Machine, Place, Report, Run

LO, GROWTH = 1e-4, 1.04


class Digest:
    """A cumulative digest in the tuner's form."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.total = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        self.counts[math.floor(math.log(seconds / LO) / math.log(GROWTH))] += times
        self.total += seconds * times

    def to_json(self) -> dict[str, Any]:
        counts = {str(i): n for i, n in sorted(self.counts.items())}
        return {
            "lo": LO,
            "growth": GROWTH,
            "count": sum(self.counts.values()),
            "sum": self.total,
            "counts": counts,
        }


class Tape:
    """An engine, and the lines that the recorder would have written about it."""

    def __init__(self) -> None:
        self.at, self.boot = 100.0, "boot-1"
        self.cap, self.budget, self.running, self.waiting = 32, 2048, 0, 0
        self.arrived, self.tokens, self.preemptions, self.used = 0, 0, 0, 0
        self.finished = 0
        self.itl, self.ttft, self.queue = Digest(), Digest(), Digest()
        self.lines: list[str] = []
        self.rng = random.Random(1)

    def second(self, itl_s: float | None = None, tokens: int = 0, *, read: bool = True) -> None:
        """Let a second pass in which `tokens` tokens came `itl_s` apart, then read, or fail to."""
        self.at += 1.0
        if itl_s is not None and tokens:
            self.itl.add(itl_s, tokens)
            self.tokens += tokens
        if read:
            self.read()

    def read(self) -> None:
        engine = {
            "max_num_seqs": 32,
            "max_num_active_seqs": self.cap,
            "max_num_scheduled_tokens": self.budget,
            "running": self.running,
            "waiting": self.waiting,
            "preemptions": self.preemptions,
            "kv": {"block_size": 32, "num_blocks": 320, "used_blocks": self.used},
            "generation": 0,
            "retunes": {"applied": 0, "expired": 0, "rejected": 0},
        }
        requests = {
            "itl": self.itl.to_json(),
            "ttft": self.ttft.to_json(),
            "queue": self.queue.to_json(),
            "prompt_tokens": 0,
            "generation_tokens": self.tokens,
            "finished": {"length": self.finished, "stop": 1, "abort": 7},
            "arrived": self.arrived,
        }
        snapshot = {
            "pod_uid": "uid",
            "boot_id": self.boot,
            "vllm": "0.32.0",
            "tuner": "0.1.0",
            "writable": True,
            "reason": "",
            "engine": engine,
            "requests": requests,
        }
        self.lines.append(json.dumps({"at": self.at, "wall": self.at, "snapshot": snapshot}))

    def load(self, seconds: int, itl_s: float, tokens: int = 1000, waiting: int = 8) -> None:
        """A load of that many seconds, with requests waiting all the time."""
        self.arrived += 40
        self.running, self.waiting = min(self.cap, 32), waiting
        for _ in range(seconds):
            self.arrived += 4
            self.second(itl_s, tokens)

    def quiet(self, seconds: int) -> None:
        """Nothing runs and nothing waits."""
        self.running = self.waiting = 0
        for _ in range(seconds):
            self.second()


@pytest.fixture
def tape() -> Tape:
    return Tape()


TARGET_S = 0.020
"""What runs are held to here."""


@pytest.fixture
def client() -> ClientFigures:
    """What the benchmark saw."""
    return ClientFigures(
        streams=300,
        cut=0,
        causes=(),
        itl_ms={"p50": 14.0, "p95": 19.0, "p99": 30.0},
        ttft_ms={"p50": 4000.0, "p95": 9000.0, "p99": 9500.0},
        tokens_per_s=800.0,
        duration_s=95.0,
        windows=6,
        windows_violated=1,
    )


@pytest.fixture
def run_of(tape: Tape, client: ClientFigures) -> Callable[..., Run]:
    """Makes one overload of 75 s with the given latency, as the report has it."""

    def make(itl_s: float, seconds: int = 75, tokens: int = 1000) -> Run:
        tape.quiet(1)
        after = tape.at
        tape.load(seconds, itl_s, tokens)
        tape.quiet(2)
        readings = parse(tape.lines)
        span = load_span(readings, after)
        assert span is not None
        return run_part(readings, span, "p95", TARGET_S, client)

    return make


@pytest.fixture
def kv_of() -> Callable[..., Kv]:
    """Makes a memory-bound pair of runs with so many preemptions each, and a throughput for the second."""

    def run(preemptions: int, tokens_per_s: float) -> KvRun:
        return KvRun(
            place=Place(start=101, end=131),
            seconds=30,
            preemptions=preemptions,
            preemptions_per_minute=2 * preemptions,
            tokens_per_s=tokens_per_s,
            finished=13,
            cap_last=10,
        )

    def make(off: int, auto: int, diagnosis: str = "KVPressure", tokens_per_s: float = 500) -> Kv:
        return Kv(
            off=run(off, 500),
            auto=run(auto, tokens_per_s),
            streams_total=48,
            streams_cut=0,
            diagnosis=diagnosis,
            message="the cache is full",
            advice="Raise the cache.",
        )

    return make


@pytest.fixture
def report(run_of: Callable[..., Run], kv_of: Callable[..., Kv]) -> Report:
    """A report in which every promise was kept."""
    off, cap_alone, auto, kv = run_of(0.040), run_of(0.015, tokens=700), run_of(0.015), kv_of(40, 2)
    return Report(
        started="2026-01-01T00:00:00Z",
        duration_s=340,
        cluster="own",
        machine=Machine(cpu="a processor", cores=2, memory_gib=23.4, kernel="6.1", dtype="float32"),
        versions={"vllm": "0.32.0", "Kubernetes": "1.34.4"},
        statistic="p95",
        target_ms=20,
        calibration=CalibrationPart(one_stream_ms=8.0, ceiling_ms=38.0, ceiling=32, target_ms=20),
        load=LoadPart(description="40 streams at once", concurrency=40, settle_s=30, window_s=10),
        off=off,
        cap_alone=cap_alone,
        auto=auto,
        seconds_to_hold=6.0,
        cap_changes=4,
        budget_changes=9,
        pods_rolled=False,
        retune_ms=None,
        kv=kv,
        tuner_overhead=None,
        checks=(*slo_checks(off, cap_alone, auto, 6.0, False), *kv_checks(kv)),
        resource="NAME READY\nchat True",
        resource_wide="NAME READY BUDGET\nchat True 64",
        decisions=("cap 32 -> 14",),
        events=(),
    )


@pytest.fixture
def left(tmp_path: Path, tape: Tape, report: Report) -> Path:
    """The folder that a demo has left, but for its page and picture."""
    (tmp_path / output.RECORDING).write_text("\n".join(tape.lines))
    (tmp_path / output.REPORT).write_text(report.model_dump_json())
    return tmp_path
