#!/usr/bin/env python3
"""What the tuner costs: step times of one engine with it on and off in turn, and microseconds of its own
work.

    overhead.py --vllm-python ENV/bin/python --model FOLDER [--minutes 4] [--output overhead.json]

Starts one `vllm serve` on loopback and keeps its batch full with closed-loop streams. A probe inside switches
the step meter, the lease check and the stat logger off and on in blocks of a second and a half, in the order
off on on off, so that a drift of the machine and growing contexts fall on both alike; with the tuner on, the
snapshot is read once a block, more often than an operator does. Other work on the machine only ever makes a
step longer, so a block stands for its least disturbed steps: its lower quartile. The overhead is the median
over pairs of blocks of the ratio of the two, minus one, with a standard error from resampling the pairs. On a
busy machine that error is the honest part of the result.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from server import PLUGINS, Server, load, serving

HERE = Path(__file__).resolve().parent
BATCH = 32
BLOCK_S = 1.5
MIN_STEPS = 8
MIN_PAIRS = 10


def microseconds(python: str) -> dict[str, Any]:
    """Return what the tuner's own work costs a step, by batch size, measured inside vLLM."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(
        [python, "-W", "ignore", str(HERE / "micro.py")], env=environment, capture_output=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def stage_probe(folder: Path) -> None:
    """Lay the probe out beside the tuner as a distribution of its own."""
    metadata = folder / "probe-0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "probe.py").write_bytes((HERE / "probe.py").read_bytes())
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: probe\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nprobe_engine = probe:register\n"
        "[vllm.endpoint_plugins]\nprobe_http = probe:Endpoint\n"
    )


def switch(server: Server, active: bool) -> list[int]:
    """Begin a block; return the step durations (nanoseconds) of the one that ends."""
    status, steps = server.request("POST", f"/probe?active={int(active)}&batch={BATCH}", b"")
    if status != 200:
        raise RuntimeError(f"the probe answers {status}: {steps}")
    return list(steps)


def measure(server: Server, seconds: float) -> list[tuple[bool, list[int]]]:
    """Run blocks in the order off on on off until the time is over; return each with its step durations."""
    blocks: list[tuple[bool, list[int]]] = []
    ends = time.monotonic() + seconds
    switch(server, False)
    active = False
    while time.monotonic() < ends:
        block_ends = time.monotonic() + BLOCK_S
        if active:
            server.snapshot()
        time.sleep(max(0.0, block_ends - time.monotonic()))
        following = (len(blocks) + 1) % 4 in (1, 2)
        blocks.append((active, switch(server, following)))
        active = following
    return blocks


def overhead(blocks: list[tuple[bool, list[int]]]) -> dict[str, Any]:
    """Return the overhead and its standard error from the pairs of neighbouring blocks."""
    ratios = []
    for first, second in zip(blocks[::2], blocks[1::2], strict=False):
        off, on = (first[1], second[1]) if not first[0] else (second[1], first[1])
        if len(off) >= MIN_STEPS and len(on) >= MIN_STEPS:
            ratios.append(undisturbed(on) / undisturbed(off))
    if len(ratios) < MIN_PAIRS:
        raise SystemExit("too few full batches to say anything: give it more --minutes or an idler machine")
    draw = random.Random(0)
    medians = [statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(1000)]
    on_steps = [duration for active, steps in blocks if active for duration in steps]
    off_steps = [duration for active, steps in blocks if not active for duration in steps]
    return {
        "tuner_overhead": statistics.median(ratios) - 1,
        "tuner_overhead_standard_error": statistics.stdev(medians),
        "pairs_of_blocks": len(ratios),
        "steps": len(on_steps) + len(off_steps),
        "step_ms_with": undisturbed(on_steps) / 1e6,
        "step_ms_without": undisturbed(off_steps) / 1e6,
        "batch": BATCH,
    }


def undisturbed(durations: list[int]) -> float:
    """Return the lower quartile."""
    return statistics.quantiles(durations, n=4)[0]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-python", required=True, help="interpreter of an environment with vLLM")
    parser.add_argument("--model", required=True, help="folder of a small model")
    parser.add_argument("--minutes", type=float, default=4.0, help="of measuring (default %(default)s)")
    parser.add_argument("--output", type=Path, help="where to write the result as JSON")
    arguments = parser.parse_args()
    print("timing the tuner's own work", flush=True)
    own = microseconds(arguments.vllm_python)
    with tempfile.TemporaryDirectory(prefix="tuner-overhead-") as name:
        folder = Path(name)
        stage_probe(folder / "plugin")
        plugins = {"VLLM_PLUGINS": f"{PLUGINS},probe_engine,probe_http"}
        with serving(arguments.vllm_python, arguments.model, folder, environment=plugins) as server:
            traffic = load(server, BATCH + 8, (16, 32), (600, 900))
            time.sleep(15)
            print(f"measuring for {arguments.minutes:g} min", flush=True)
            blocks = measure(server, 60 * arguments.minutes)
            traffic.stop()
    result = {**overhead(blocks), "microseconds_per_step": own}
    # The other measure of the same: the work itself, against a step of 10 ms at the largest batch.
    result["engine_core_share_of_10_ms_at_256"] = own["engine_core_decode"]["256"] / 10_000
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
