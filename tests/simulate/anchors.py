"""The plant against figures that nobody here measured. They are not part of this repository: LLAMASERVER_DATA
names the folder that has them.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from statistics import fmean

from llamaserver.simulate.engine import Engine
from llamaserver.simulate.profiles import PROFILES, Profile

DATA = Path(os.environ.get("LLAMASERVER_DATA", "none")) / "calibration"
ANCHORS = DATA / "published_itl_anchor_points.csv"
STEPS = DATA / "vidur_mlp_linear_time_by_tokens.csv"
FITTED = DATA / "llm_inferno_model_data_large.json"
REQUESTS_PER_S = 56.65
"""Published for the 8B on an H100, 128 tokens in and out, at max-num-seqs 64."""
PUBLISHED = (
    ("H100-8B", "Llama-3.1-8B", "H100-class", 1, (128, 128)),
    ("H100-8B", "Llama-3.1-8B", "H100-class", 64, (128, 128)),
    ("H100-8B", "llama-3.1-8B", "H100", 8, (32, 128)),
    ("H100-70B-TP4", "llama-3-70B", "H100", 8, (32, 128)),
)
"""Profile, and of the anchor: model, GPU, batch, (prompt, output)."""
PROFILED = (
    ("H100-8B", "h100", "Llama-2-7b-hf", "1", 8.03 / 6.74),
    ("A100-8B", "a100", "Meta-Llama-3-8B", "1", 1.0),
    ("H100-70B-TP4", "h100", "Llama-2-70b-hf", "4", 1.0),
    ("A100-70B-TP4", "a100", "Meta-Llama-3-70B", "4", 1.0),
)
"""Profile, and of the profiling data: GPU, model, tensor parallelism; a factor where a 7B is the 8B."""
LINEAR = (
    ("H100-8B", "llama3_8b", "H100", 1, 1),
    ("H100-8B", "llama3_8b", "H100", 1, 32),
    ("A100-8B", "llama3_8b", "A100", 1, 1),
    ("A100-8B", "llama3_8b", "A100", 1, 32),
    ("H100-70B-TP4", "llama_70b", "H100", 4, 8),
    ("A100-70B-TP4", "llama_70b", "A100", 4, 8),
)
"""Profile, and of llm-inferno's sample data: model, accelerator, how many, batch."""


def missing() -> list[Path]:
    """Files that the figures are in and that are not there."""
    return [path for path in (ANCHORS, STEPS, FITTED) if not path.is_file()]


def saturated(profile: Profile, batch: int, prompt: int, output: int) -> Engine:
    """Half a minute at this batch, without noise."""
    engine = Engine(profile, lambda _, __: (prompt, output), step_noise=0.0)
    engine.put(batch, lease_s=1e9)
    engine.load(streams=batch)
    engine.run_until(30.0)
    return engine


def latency_error(name: str, model: str, gpu: str, batch: int, lengths: tuple[int, int]) -> float:
    """Relative error of the mean inter-token latency."""
    with ANCHORS.open() as file:
        published = next(
            float(row["itl_ms_mean"])
            for row in csv.DictReader(file)
            if model in row["model"] and gpu in row["gpu"] and row["batch_or_concurrency"] == str(batch)
        )
    engine = saturated(PROFILES[name].profile, batch, *lengths)
    return 1e3 * engine.itl.total / engine.itl.count / published - 1


def throughput_error() -> float:
    """Relative error of the requests per second."""
    return saturated(PROFILES["H100-8B"].profile, 64, 128, 128).finished / 30.0 / REQUESTS_PER_S - 1


def step_errors(name: str, gpu: str, model: str, tp: str, scale: float) -> list[float]:
    """Absolute relative errors of the non-attention time of steps that carry 1 to 4096 tokens."""
    p = PROFILES[name].profile
    errors = []
    with STEPS.open() as file:
        for row in csv.DictReader(file):
            tokens = int(row["tokens_in_batch"])
            if (row["gpu"], row["model"], row["tp"]) == (gpu, model, tp) and tokens <= 4096:
                ours = p.step_s(1, 0, tokens - 1) - (p.c if tokens > 1 else 0.0)
                errors.append(abs(1e3 * ours / (scale * float(row["non_attention_ms_all_layers"])) - 1))
    return errors


def linear_error(name: str, model: str, acc: str, count: int, batch: int) -> float:
    """Relative error against alpha + beta n, at 512 tokens a sequence."""
    models = json.loads(FITTED.read_text())["models"]
    found = next(m for m in models if (m["name"], m["acc"], m["accCount"]) == (model, acc, count))
    theirs = found["perfParms"]["alpha"] + found["perfParms"]["beta"] * batch
    return 1e3 * PROFILES[name].profile.step_s(batch, 512 * batch, 0) / theirs - 1


def errors() -> dict[str, dict[str, float]]:
    """Every relative error, by where the figure comes from."""
    steps = {row[0]: step_errors(*row) for row in PROFILED}
    return {
        "published_itl": {
            f"{name} batch {batch}": latency_error(name, model, gpu, batch, lengths)
            for name, model, gpu, batch, lengths in PUBLISHED
        },
        "published_requests_per_s": {"H100-8B batch 64": throughput_error()},
        "profiled_steps_mean": {name: fmean(found) for name, found in steps.items()},
        "profiled_steps_worst": {name: max(found) for name, found in steps.items()},
        "linear_models": {f"{row[0]} batch {row[4]}": linear_error(*row) for row in LINEAR},
    }
