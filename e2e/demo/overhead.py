"""What the tuner costs inside vLLM: its own micro-benchmark, run with the engine's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from demo.report import Overhead
from demo.settings import REPOSITORY

TUNER = REPOSITORY / "images" / "tuner"
MICRO = TUNER / "bench" / "micro.py"
BATCH = "32"
LIMIT_S = 60.0


def interpreter() -> Path | None:
    """The interpreter of the engine's environment on this machine; None when it is not installed."""
    from cluster.engine import environment_path
    from cluster.settings import Settings as NodeSettings

    python = environment_path(NodeSettings.from_environment()) / "bin" / "python"
    return python if python.exists() else None


def from_micro(text: str, step_ms: float) -> Overhead:
    """The benchmark's output in the report's form. Raises ValueError or KeyError for anything else."""
    said = json.loads(text)
    engine = max(float(said[kind][BATCH]) for kind in ("engine_core_decode", "engine_core_mixed"))
    return Overhead(
        command="images/tuner/bench/micro.py",
        batch=int(BATCH),
        engine_core_us_per_step=engine,
        api_server_us_per_step=float(said["api_server"][BATCH]),
        engine_core_share_of_step=round(engine / (1e3 * step_ms), 6),
    )


def measure(step_ms: float) -> Overhead | None:
    """Run the benchmark and relate it to the step time seen in the demo; None where it cannot be run."""
    python = interpreter()
    if python is None:
        return None
    environment = {**os.environ, "PYTHONPATH": str(TUNER)}
    try:
        done = subprocess.run(
            [python, "-W", "ignore", MICRO],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        return from_micro(done.stdout, step_ms)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None
