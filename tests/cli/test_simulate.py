"""`llamaserver simulate`: its answers, its page, and how mistakes are answered."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llamaserver.cli.main import main
from llamaserver.simulate.policies import SAYS, SCALERS_SAY
from llamaserver.simulate.routers import ROUTERS

SHORT = ("simulate", "--profile", "CPU", "--duration", "60s")


def call(*args: str) -> Any:
    return CliRunner().invoke(main, list(args))


def test_the_table_has_a_row_for_each_policy() -> None:
    result = call(*SHORT, "--policies", "default,llamaserver")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "CPU; p95 of the inter-token latency at most 30 ms" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == ["policy", "default", "llamaserver"]


@pytest.mark.parametrize("command", ["simulate", "plan"])
def test_a_time_too_short_to_judge_is_refused(command: str) -> None:
    result = call(command, "--profile", "CPU", "--duration", "20s")
    assert result.exit_code == 2
    assert "--duration 20s is too short" in result.output
    assert "at least 30s" in result.output


def test_requests_that_are_too_long_are_told_below_the_table() -> None:
    result = call(*SHORT, "--policies", "default", "--input-tokens", "1500")
    assert result.exit_code == 0, result.output
    last = result.stdout.splitlines()[-1]
    assert last.startswith("Refused: ")
    assert "here 2048 tokens" in last
    found = json.loads(call(*SHORT, "--policies", "default", "--input-tokens", "1500", "--json").stdout)
    assert found["policies"]["default"]["mean"]["refused"] > 0


def test_the_same_seed_prints_the_same_figures() -> None:
    asked = (*SHORT, "--shape", "poisson", "--policies", "llamaserver,alg2", "--json", "--seed", "7")
    first, second, other = call(*asked), call(*asked), call(*asked[:-1], "8")
    assert json.loads(first.stdout) == json.loads(second.stdout)
    assert first.stdout != other.stdout


def test_json_tells_means_and_their_interval_over_seeds() -> None:
    seeds = ("--seed", "1", "--seed", "2", "--seed", "3")
    found = json.loads(call(*SHORT, "--policies", "aimd", "--json", *seeds).stdout)
    told = found["policies"]["aimd"]
    values = [one["tokens_per_s"] for one in told["seeds"]]
    assert len(values) == 3
    assert told["mean"]["tokens_per_s"] == pytest.approx(sum(values) / 3)
    assert told["ci95"]["tokens_per_s"] > 0
    assert found["objective"] == {"statistic": "p95", "target_s": 0.03}


def test_an_objective_of_requests_is_judged_by_those_that_finish() -> None:
    asked = (*SHORT, "--policies", "default,llamaserver", "--objective", "p95/request:25ms")
    found = json.loads(call(*asked, "--json").stdout)
    assert found["objective"] == {"statistic": "p95", "target_s": 0.025, "scope": "Request"}
    shares = {name: told["mean"]["violated_window_share"] for name, told in found["policies"].items()}
    assert shares["default"] > 0.5 > shares["llamaserver"]
    assert "p95 of requests' times per output token at most 25 ms" in call(*asked).stdout


@pytest.mark.parametrize("objective", ["p95/token:30ms", "p95/:30ms", "p95/request", "request:30ms"])
def test_another_scope_is_refused_with_an_example(objective: str) -> None:
    result = call(*SHORT, "--objective", objective)
    assert result.exit_code == 2
    assert "as p95/request:40ms" in " ".join(result.output.replace("│", " ").split())


def test_the_page_stands_alone_and_its_plots_are_whole(tmp_path: Path) -> None:
    result = call(
        *SHORT, "--shape", "step", "--max", "3", "--cold-start", "10s",
        "--policies", "default,llamaserver,aimd+hpa,best-cap", "--output", str(tmp_path / "out"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out" / "simulate.html").read_text()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    plots = page.split("<svg")[1:]
    assert len(plots) >= 6  # a panel a policy, settings over time, the frontier
    for plot in plots:
        drawing = ET.fromstring("<svg" + plot.split("</svg>")[0] + "</svg>")
        assert "NaN" not in ET.tostring(drawing, encoding="unicode")
        assert "nan" not in ET.tostring(drawing, encoding="unicode")
    assert "aimd+hpa" in page
    assert json.loads((tmp_path / "out" / "simulate.json").read_text())["replicas"]["max"] == 3


def test_a_trace_is_played(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:00:{i:02d}.5,120,80\n" for i in range(60))
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    asked = (*SHORT, "--trace", str(trace), "--policies", "default", "--json")
    found = json.loads(call(*asked).stdout)
    assert found["demand"]["requests"] == 60
    assert found["demand"]["source"] == "trace.csv"
    twice = json.loads(call(*asked, "--speed", "2").stdout)
    assert (
        twice["policies"]["default"]["mean"]["itl_p95_s"] >= found["policies"]["default"]["mean"]["itl_p95_s"]
    )


def test_a_prefix_cache_is_told_of_below_the_table_and_shortens_the_wait(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 200 * i, "input_length": 1500, "output_length": 50, "hash_ids": [1, 2, 3 + i]}
        for i in range(300)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = (*SHORT, "--trace", str(trace), "--policies", "default")
    without, cached = call(*asked), call(*asked, "--prefix-cache")
    assert cached.exit_code == 0, cached.output
    assert cached.stdout.splitlines()[-1] == "Of the prompt tokens the prefix cache had 68.0 % (default)."
    assert "prefix cache" not in without.stdout
    off, on = (json.loads(call(*asked, *more, "--json").stdout) for more in ((), ("--prefix-cache",)))
    assert (off["prefix_cache"], on["prefix_cache"]) == (False, True)
    off_mean, on_mean = (found["policies"]["default"]["mean"] for found in (off, on))
    assert off_mean["prefix_hit_share"] == 0.0
    assert on_mean["ttft_p50_s"] < 0.5 * off_mean["ttft_p50_s"]


def test_a_router_is_told_and_changes_the_course_of_a_fleet() -> None:
    asked = (*SHORT, "--shape", "poisson", "--replicas", "3", "--policies", "default", "--json")
    usual, said = call(*asked), call(*asked, "--router", "least-loaded")
    other = call(*asked, "--router", "random")
    assert usual.stdout == said.stdout
    assert json.loads(usual.stdout)["router"] == "least-loaded"
    found = json.loads(other.stdout)
    assert found["router"] == "random"
    assert found["policies"] != json.loads(usual.stdout)["policies"]
    head = call(*asked[:-1], "--router", "round-robin").stdout.splitlines()[0]
    assert head.endswith("at most 30 ms; round-robin router")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--prefix-cache"], 1, "the shape steady does not tell which prompts begin alike"),
        (
            ["--prefix-cache", "--max", "2", "--policies", "default+oracle"],
            2,
            "leave it or --prefix-cache out",
        ),
        (
            ["--router", "round-robin"],
            2,
            "give a --trace or a --shape of requests that come by themselves: poisson",
        ),
        (["--shape", "poisson", "--router", "prefix"], 1, "or leave --prefix-cache out, or --router prefix"),
        (["--shape", "poisson", "--router", "fastest"], 2, "'round-robin'"),
        (["--policies", "magic"], 1, "there is no policy 'magic'; there are"),
        (["--policies", "default+hpa"], 2, "give --max"),
        (["--objective", "p95"], 2, "as p95:40ms"),
        (["--objective", "p95:fast"], 2, "50ms"),
        (["--objective", "p42:40ms"], 2, "mean, p50"),
        (["--profile", "B200"], 2, "there are H100-8B"),
        (["--trace", "nowhere.csv"], 1, "nowhere.csv cannot be read"),
        (["--trace", "x", "--shape", "ramp"], 2, "exclude each other"),
        (["--shape", "ramp", "--streams", "5"], 2, "give --rate"),
        (["--shape", "mix", "--rate", "5"], 2, "give --streams, or a --shape that has one: poisson"),
        (["--start", "5"], 2, "one unit (ms, s, m or h), e.g. 50ms, 90s or 24h (got '5')"),
        (["--output", "/dev/null/figures"], 2, "give a folder to write into"),
        (["--min", "3", "--max", "2"], 2, "--max 2"),
        (["--input-tokens", "100000"], 1, "raise max_model_len and kv_tokens"),
    ],
)
def test_a_mistake_is_answered_with_the_cure(args: list[str], code: int, says: str) -> None:
    result = call(*SHORT, *args)
    assert result.exit_code == code
    assert says in " ".join(result.output.split())


def test_help_names_every_policy_and_shows_examples() -> None:
    text = call("simulate", "--help").output
    assert all(name in text for name in (*SAYS, *(f"+{name}" for name in SCALERS_SAY), *ROUTERS))
    assert "--trace AzureLLMInferenceTrace_conv.csv" in text


def test_without_an_objective_nothing_is_missed() -> None:
    found = json.loads(call(*SHORT, "--objective", "none", "--policies", "llamaserver", "--json").stdout)
    assert found["policies"]["llamaserver"]["mean"]["violated_window_share"] is None
