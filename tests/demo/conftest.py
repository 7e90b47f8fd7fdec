"""A recorder's output made up step by step, with figures that are known beforehand."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from typing import Any

import pytest

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
        self.cap, self.running, self.waiting = 32, 0, 0
        self.arrived, self.tokens, self.preemptions, self.used = 0, 0, 0, 0
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
            "max_num_scheduled_tokens": 2048,
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
            "finished": {"length": 0},
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
