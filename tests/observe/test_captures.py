"""What vLLM's releases have said at /metrics, one table: the figures that are read, or the refusal.

Where a capture is only a part of a body it is refused for what is missing. What it does hold is read all the
same once the rest is added, so that a figure of that release is not lost on the way to the refusal.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from llamaserver.observe import Distribution, Failure, Sample, Unusable, names, parse_exposition, quantile
from observe.samples import DATA, read

Told = dict[str, Any]

SAMPLES: dict[str, Told] = {
    "v0.5.0_V0_datadog.prom": {
        "engines": [(0, 0, 0, 0, 0.0, 116_496, 0)],
        "itl": (6, 0.19016313552856445),
        "ttft": (1, 0.31326723098754883),
        "generation_tokens": 7,
        "finished": 1,
    },
    "v0.9_V0-multiproc_qwen3.prom": {
        "engines": [(0, 0, 0, 0, 0.0, 37_440, 0)],
        "itl": (4805, 662.8116002082825),
        "queue": (38, 0.017765522003173828),
        "generation_tokens": 4874,
        "finished": 38,
        "engine_steps": 1325,
    },
    "v0.32.0_generated_dp2.prom": {
        "engines": [(0, 64, 12, 0, 0.81, 432_000, 3), (1, 60, 5, 2, 0.74, 432_000, 3)],
        "itl": (2480, 124.51198189775158),
        "tpot": (0, 0.0),
        "ttft": (0, 0.0),
        "queue": (0, 0.0),
        "cached_prompt_tokens": 40_960,
        "generation_tokens": 2480,
        "finished": 0,
        "engine_steps": 40,
    },
}
"""All that is known of each; what is not here is not known, and not zero. Engines are: number, running,
waiting, deferred, share of KV cache, its tokens, preemptions. Distributions are count and sum in seconds.
"""

REFUSED: dict[str, str] = {
    "ray-prefix_2024-12.prom": "ray_vllm:num_requests_waiting is missing",
    "v0.4.0_ibm-fork_partial.prom": "vllm:num_requests_running is missing",
    "v0.5.1_all-buckets-equal_partial.prom": "vllm:num_requests_running is missing",
    "v0.5.3.post1_partial.prom": "vllm:num_requests_running is missing",
    "v0.5.4_multiproc_families-no-samples.prom": "vLLM's families are announced but have no samples",
    "v0.6.1_empty-body.prom": "the body of /metrics is empty",
    "v0.7_V0_aibrix-docs.prom": "vllm:inter_token_latency_seconds is missing",
    "v0.8_V1_no-engine-label_partial.prom": "vllm:num_preemptions_total is missing",
    "v0.10.0_V1_glm45_partial.prom": "vllm:num_requests_running is missing",
    "v0.10.2_families.txt": "no vLLM metric in the body",
    "v0.10.x-dev_DP2_api2_partial.prom": "vllm:num_requests_running is missing",
    "v0.2x-0.3x_live_qwen3.8.prom": "vllm:kv_cache_usage_perc is missing",
}
"""None of them is a body to decide by, and each says what it lacks first."""

PARTS: dict[str, Told] = {
    "ray-prefix_2024-12.prom": {"itl": (299, 16.178537607192993)},
    "v0.4.0_ibm-fork_partial.prom": {"ttft": 213, "prompt_tokens": 1196, "generation_tokens": 218_152},
    "v0.5.1_all-buckets-equal_partial.prom": {"ttft": (208, 0.0)},
    "v0.5.3.post1_partial.prom": {"finished": 3810 + 108},
    "v0.7_V0_aibrix-docs.prom": {
        "engines": [(0, 0, 0, 0, 0.0, None, 0)],
        "prompt_tokens": 148,
        "generation_tokens": 955,
        "finished": 4,
        "engine_steps": 998,
    },
    "v0.8_V1_no-engine-label_partial.prom": {"engines": [(0, 0, 0, 0, 0.0, None, 0)]},
    "v0.10.0_V1_glm45_partial.prom": {
        "engines": [(0, 0, 0, 0, 9.75010481363281e-06, None, 0)],
        "itl": 1182,
        "cached_prompt_tokens": None,
    },
    "v0.10.x-dev_DP2_api2_partial.prom": {
        "engines": [(0, 0, 0, 0, 0.0, None, 0), (1, 0, 0, 0, 0.0, None, 0)],
        "itl": (954, 13.223765562288463),
    },
    "v0.2x-0.3x_live_qwen3.8.prom": {
        "engines": [(0, 3, 2, 0, 0.0, None, 0)],
        "cached_prompt_tokens": 0,
    },
}
"""What they hold, once all that no part of them shows is added as nothing. A distribution whose sum is not
shown is here by its count alone.
"""

REQUIRED = (
    *(names.RUNNING, names.WAITING, names.KV_USAGE, names.PREEMPTIONS, names.GENERATION_TOKENS),
    names.ITL,
)


def told(sample: Sample) -> Told:
    """A sample as the table writes it, without what is not known."""
    found: Told = {
        "engines": [
            (
                *(e.engine, e.running, e.waiting, e.waiting_deferred),
                *(e.kv_usage, e.kv_capacity_tokens, e.preemptions),
            )
            for e in sample.engines
        ]
    }
    for name in ("itl", "tpot", "ttft", "queue"):
        shown: Distribution | None = getattr(sample, name)
        if shown is not None:
            found[name] = (shown.count, pytest.approx(shown.sum_s))
    for name in ("prompt_tokens", "cached_prompt_tokens", "generation_tokens", "finished", "engine_steps"):
        if (value := getattr(sample, name)) is not None:
            found[name] = value
    return found


def completed(text: str) -> str:
    """A capture with its cut histograms ended at their last bucket, and every required figure that it lacks
    as 0. A sum that it lacks is nothing for what fell into the lowest bucket, and 1 s for each of the rest.
    """
    prefix = "ray_vllm:" if "ray_vllm:" in text else "vllm:"
    added = []
    shown: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, labels, value in re.findall(r"^(\S+)_bucket\{(.*)\} (\S+)$", text, re.M):
        rest = ",".join(sorted(part for part in labels.split(",") if not part.startswith("le=")))
        shown[name, rest].append(float(value))
    for (name, rest), values in shown.items():
        value = max(values)
        if not re.search(rf'^{name}_bucket\{{.*le="\+Inf"', text, re.M):
            added.append(f'{name}_bucket{{le="+Inf",{rest}}} {value}')
        for suffix, missing in (("count", value), ("sum", value - min(values))):
            engine = re.search(r'engine="\d+"', rest)
            if not re.search(rf"^{name}_{suffix}\{{.*{engine[0] if engine else ''}", text, re.M):
                added.append(f"{name}_{suffix}{{{rest}}} {missing}")
    engines = sorted(set(re.findall(r'engine="\d+"', text))) or [""]
    for candidates in REQUIRED:
        if any(re.search(rf"^{prefix}{name}(_bucket)?\{{", text, re.M) for name in candidates):
            continue
        name = prefix + candidates[-1]
        for labels in engines:
            if candidates is names.ITL:
                comma = "," if labels else ""
                added += [f'{name}_bucket{{le="+Inf"{comma}{labels}}} 0', f"{name}_sum{{{labels}}} 0"]
                added.append(f"{name}_count{{{labels}}} 0")
            else:
                added.append(f"{name}{{{labels}}} 0")
    return text + "\n".join(added) + "\n"


def check(name: str, text: str) -> None:
    """Raises AssertionError where a capture does not come to what the table says of it."""
    result = parse_exposition(text, 5.0, "uid/0")
    if name in SAMPLES:
        assert isinstance(result, Sample), result
        assert told(result) == SAMPLES[name]
    else:
        assert isinstance(result, Failure), result
        assert (result.why, result.message) == (Unusable.MISSING, REFUSED[name])


@pytest.mark.parametrize("name", [*SAMPLES, *REFUSED])
def test_a_capture_is_read_or_refused_as_the_table_says(name: str) -> None:
    check(name, read(name))


@pytest.mark.parametrize("name", PARTS)
def test_what_a_part_of_a_body_holds_is_read_once_the_rest_is_there(name: str) -> None:
    result = parse_exposition(completed(read(name)), 5.0, "uid/0")
    assert isinstance(result, Sample), result
    found = told(result)
    for figure, expected in PARTS[name].items():
        said = found.get(figure)
        assert (said[0] if isinstance(expected, int) and isinstance(said, tuple) else said) == expected, (
            figure
        )


def test_the_families_of_0_10_2_are_read_by_their_newest_names() -> None:
    """The deprecated twin of a family has the same observations: not added, nor taken before it."""
    lines = []
    for number, line in enumerate(read("v0.10.2_families.txt").splitlines(), start=1):
        kind, name, *deprecated = line.split()
        value = 0.5 if name.endswith("usage_perc") else float(number)
        value = value / 10 if deprecated and value < 1 else value
        if kind == "histogram":
            lines += [f'vllm:{name}_bucket{{engine="0",le="+Inf"}} {value}']
            lines += [f'vllm:{name}_{part}{{engine="0"}} {value}' for part in ("sum", "count")]
        elif kind == "info":
            lines.append(f'vllm:{name}{{engine="0",num_gpu_blocks="100",block_size="16"}} 1.0')
        else:
            lines.append(f'vllm:{name}{{engine="0"}} {value}')
    result = parse_exposition("\n".join(lines) + "\n", 5.0, "uid/0")
    assert isinstance(result, Sample), result
    assert told(result) == {
        "engines": [(0, 1, 2, 0, 0.5, 1600, 5)],
        "itl": (15, 15.0),
        "ttft": (13, 13.0),
        "queue": (17, 17.0),
        "prompt_tokens": 6,
        "cached_prompt_tokens": 10,
        "generation_tokens": 7,
        "finished": 8,
        "engine_steps": 21,
    }


def test_latencies_of_a_busy_release_fall_where_its_buckets_say() -> None:
    result = parse_exposition(read("v0.9_V0-multiproc_qwen3.prom"), 5.0, "uid/0")
    assert isinstance(result, Sample)
    assert 0.1 < (quantile(result.itl, 0.5) or 0.0) < 0.15


def test_latencies_that_are_all_nothing_are_no_fast_engine() -> None:
    result = parse_exposition(completed(read("v0.5.1_all-buckets-equal_partial.prom")), 5.0, "uid/0")
    assert isinstance(result, Sample)
    assert result.ttft is not None
    assert quantile(result.ttft, 0.5) is None


def test_no_capture_here_is_without_its_line_in_the_tables() -> None:
    assert {path.name for path in DATA.iterdir() if path.suffix in (".prom", ".txt")} == {*SAMPLES, *REFUSED}


def test_no_capture_of_the_public_collection_is_left_out() -> None:
    folder = Path(os.environ.get("LLAMASERVER_DATA", "none")) / "metrics"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: docs/simulate.md says where LLAMASERVER_DATA's files are from")
    captures = {path.name: path for path in folder.iterdir() if path.suffix != ".md"}
    assert sorted(captures) == sorted([*SAMPLES, *REFUSED])
    for name, path in captures.items():
        check(name, path.read_text())
