"""`llamaserver plan`: what it proposes can be pasted, and holds what it promises."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from llamaserver.api import parse
from llamaserver.api.enums import LatencyScope, Statistic
from llamaserver.cli.main import main
from llamaserver.cli.snippet import snippet
from llamaserver.control import Objective
from llamaserver.simulate.compare import Scenario, run
from llamaserver.simulate.demand import Demand, Request
from llamaserver.simulate.outcome import FIGURES, Outcome
from llamaserver.simulate.planning import Plan, Point, bounds, lengths_of, manifest, plan
from llamaserver.simulate.policies import LAW, policy
from llamaserver.simulate.profiles import CPU_24M, parse_profile


def call(*args: str) -> Any:
    return CliRunner().invoke(main, ["plan", *args])


SHORT = ("--profile", "CPU", "--duration", "120s", "--shape", "poisson", "--rate", "3")


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at each objective for less time than who has to promise something."""
    monkeypatch.setattr("llamaserver.simulate.planning.CAPACITY_S", 60.0)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    result = call(*SHORT, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_a_stricter_objective_costs_throughput(found: dict[str, Any]) -> None:
    held = [p for p in found["objectives"] if p["held"]]
    targets = [p["target_s"] for p in found["objectives"]]
    assert targets == sorted(targets)
    assert held[0]["target_s"] == found["reachable_s"]
    assert held[0]["tokens_per_s"] < 0.7 * held[-1]["tokens_per_s"]
    assert held[0]["gpu_hours_per_million_tokens"] > held[-1]["gpu_hours_per_million_tokens"]
    assert held[-1]["tokens_per_s"] <= 1.05 * found["by_itself"]["tokens_per_s"]


def test_the_proposal_keeps_most_of_the_throughput_and_was_tried(found: dict[str, Any]) -> None:
    target = found["manifest"]["spec"]["slo"]["interTokenLatency"]["target"]
    chosen = next(p for p in found["objectives"] if f"{1e3 * p['target_s']:g}ms" == target)
    assert chosen["tokens_per_s"] >= 0.9 * max(p["tokens_per_s"] for p in found["objectives"] if p["held"])
    assert found["fleet"]["violated_window_share"] <= 0.2
    assert found["fleet"]["min"] <= found["fleet"]["max"]


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("profile", ["CPU", "H100-70B-TP4"])
def test_what_is_printed_can_be_pasted(profile: str) -> None:
    """The snippet is a LlamaServer that the operator takes, with the objective that was asked for."""
    demand = Demand("few", 40.0, [Request(1.0 * i, 200, 50) for i in range(30)])
    objective = 0.030 if profile == "CPU" else 0.060
    made = plan(parse_profile(profile), demand, Statistic.P95, objective)
    server = manifest(made)
    server["metadata"]["namespace"] = "default"
    spec = parse(server).spec
    assert spec.slo is not None
    assert spec.slo.inter_token_latency is not None
    assert spec.slo.inter_token_latency.target == f"{1e3 * objective:g}ms"
    assert spec.engine.max_num_seqs is not None
    assert spec.engine.max_num_seqs >= made.chosen.cap
    assert (spec.accelerator is None) == (profile == "CPU")
    assert spec.slo.inter_token_latency.scope is None
    if spec.accelerator is not None:
        assert spec.accelerator.count == spec.engine.tensor_parallel_size == 4


@pytest.mark.usefixtures("brief")
def test_a_plan_for_requests_proposes_an_objective_of_requests() -> None:
    demand = Demand("few", 40.0, [Request(1.0 * i, 200, 50) for i in range(30)])
    made = plan(parse_profile("CPU"), demand, Statistic.P95, 0.030, scope=LatencyScope.REQUEST)
    server = manifest(made)
    server["metadata"]["namespace"] = "default"
    spec = parse(server).spec
    assert spec.slo is not None
    assert spec.slo.inter_token_latency is not None
    assert spec.slo.inter_token_latency.scope is LatencyScope.REQUEST
    assert made.named == "p95/request"


@pytest.mark.usefixtures("brief")
def test_what_was_tried_is_what_is_printed() -> None:
    demand = Demand("few", 40.0, [Request(0.5 * i, 100, 50) for i in range(60)])
    calibrated = parse_profile("CPU,max_num_seqs=128")
    made = plan(calibrated, demand, Statistic.P95, 0.020)
    spec = manifest(made)["spec"]
    printed = replace(
        calibrated.profile,
        max_num_seqs=spec["engine"]["maxNumSeqs"],
        budget=spec["engine"]["maxNumBatchedTokens"],
    )
    assert printed.max_num_seqs < calibrated.profile.max_num_seqs
    least, most = spec["scaling"]["minReplicas"], spec["scaling"]["maxReplicas"]
    scenario = Scenario(lambda _: demand, printed, made.chosen.objective, least, least, most)
    assert run(scenario, demand, policy(LAW), 1).outcome == made.tried


@pytest.mark.parametrize(
    ("duration_s", "late", "most"),
    [(60.0, 1, 3), (61.0, 1, 3), (85.0, 1, 3), (100.0, 1, 3), (100.0, 3, 8)],
    ids=["a minute", "and a second", "and nearly a half", "and more than half", "which are busier"],
)
def test_a_minute_that_was_begun_counts_for_its_seconds(duration_s: float, late: int, most: int) -> None:
    """A replica makes 50 tokens a second; asked for are 100; from the second minute on `late` times that."""
    requests = [Request(t + 0.5, 10, 100 * (late if t >= 60 else 1)) for t in range(int(duration_s))] + [
        Request(duration_s, 5000, 100_000)
    ]
    outcome = Outcome(**{**dict.fromkeys(FIGURES, 0.0), "tokens_per_s": 50.0})
    point = Point(Objective(0.04), held=True, outcome=outcome, cap=10, budget=100)
    assert bounds(Demand("", duration_s, requests), point, CPU_24M) == (3 if late == 1 else 1, most)


@pytest.mark.usefixtures("brief")
def test_the_text_ends_with_the_snippet() -> None:
    result = call(*SHORT, "--objective", "p95:40ms")
    assert result.exit_code == 0, result.output
    assert any(line.lstrip().startswith(">") and "40ms" in line for line in result.stdout.splitlines())
    server = yaml.safe_load(result.stdout[result.stdout.index("apiVersion:") :])
    assert server["spec"]["slo"]["interTokenLatency"] == {"target": "40ms", "statistic": "p95"}


def found_for(profile: str) -> Plan:
    """A plan as if it had been found on this machine."""
    calibrated = parse_profile(profile)
    idle = Outcome(**{**dict.fromkeys(FIGURES, 0.0), "tokens_per_s": 50.0, "gpu_hours": 1.0})
    point = Point(Objective(0.04), held=True, outcome=idle, cap=10, budget=100)
    return Plan(
        calibrated,
        Statistic.P95,
        LatencyScope.TOKEN,
        idle,
        0.1,
        [point],
        point,
        1,
        2,
        calibrated.profile,
        idle,
    )


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("CPU", ["uri: file:///models/tiny", "# Build this image from images/engine-cpu"]),
        ("H100-8B", ["# A gated model", "# tokenSecretRef:", "#   name: hf-token"]),
        (
            "a=7ms,b=14us,g=50ns,d=25us,kv_tokens=40000",
            ["# Put your model here", "# Put your vLLM image here", "maxModelLen: 40000"],
        ),
    ],
)
def test_the_snippet_says_what_is_left_to_do_by_hand(profile: str, says: list[str]) -> None:
    made = found_for(profile)
    told = snippet(made)
    assert [word for word in says if word not in told] == []
    assert yaml.safe_load(told) == manifest(made)


def test_the_token_of_a_gated_model_is_where_it_belongs_once_its_lines_are_comments_no_more() -> None:
    told = snippet(found_for("H100-8B"))
    lines = [line.replace("# ", "", 1) if "A gated model" not in line else line for line in told.splitlines()]
    server = yaml.safe_load("\n".join(lines))
    server["metadata"]["namespace"] = "default"
    token = parse(server).spec.model.token_secret_ref
    assert token is not None
    assert token.name == "hf-token"


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--objective", "p95:1ms"], 1, "cannot be promised here, the strictest that holds is"),
        (["--objective", "none"], 2, "as p95:40ms"),
        (["--trace", "nowhere.csv"], 1, "cannot be read"),
    ],
)
def test_what_cannot_be_promised_is_said_with_the_cure(args: list[str], code: int, says: str) -> None:
    given = ("--profile", "CPU", "--duration", "60s") if "--trace" in args else SHORT
    result = call(*given, *args)
    assert result.exit_code == code
    assert says in " ".join(result.output.split())


def test_lengths_are_those_of_the_traffic() -> None:
    drawn = lengths_of(Demand("two", 10.0, [Request(0, 10, 5), Request(1, 20, 7)]))
    assert {drawn(random.Random(i), 0.0) for i in range(20)} == {(10, 5), (20, 7)}
