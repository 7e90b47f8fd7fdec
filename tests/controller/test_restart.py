"""A restart for another cap: told before it is done, remembered, given up with the field.

First with an API server that only keeps what is applied; then whole, against a real one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fakes import FakeEngine
from llamaserver.api.names import FIELD_MANAGER
from llamaserver.api.server import read_status
from llamaserver.cluster.kinds import DEPLOYMENT, LLAMASERVER, Object
from llamaserver.control import Cause, Decision, Diagnosis, Observed
from llamaserver.control.line import Load
from llamaserver.control.types import Found
from llamaserver.controller import Options
from llamaserver.controller.runtime import PodReport, Report
from reconciling import KEY, Bench
from workbench import Cluster, condition, eventually, running

FOUND = Found(
    live=False,
    started=256,
    wanted=96,
    reason="",
    running=256,
    missed_s=900.0,
    starved_s=0.0,
    load=Load(1000.0, 0.5),
    seen="80 ms against 50 ms",
    cold_start_s=240.0,
)
ITL = {"interTokenLatency": {"target": "50ms"}}
HOURLY = {"restart": {"minInterval": "1h"}}


def reported(found: Found | None, at: float | None = None) -> Report:
    """A report of engines whose cap cannot be moved."""
    observed = Observed(None, None, None, 0, 0, None, None, None, None)
    diagnosis = Diagnosis(Cause.OVER_BATCHED, "too many", "", {}, 0.0)
    decision = Decision({}, None, None, "", observed, diagnosis, (), restart=found)
    pod = PodReport("a", 256, None, 256, 256, 0, "PipelineParallel")
    unavailable = {"a": "PipelineParallel: engine 0 cannot change its cap live"}
    return Report(time.monotonic() if at is None else at, decision, (pod,), {}, unavailable, {}, False)


async def serving(bench: Bench, **spec: Any) -> None:
    """One replica that is up, and whose engine cannot be moved."""
    bench.declare(**{"slo": ITL, "tuning": HOURLY} | spec)
    await bench.look()
    bench.ready_pod("a")
    bench.rolled_out()
    await bench.look()
    see(bench, FOUND)


def see(bench: Bench, found: Found | None, at: float | None = None) -> None:
    bench.server.report = bench.server.newest = reported(found, at)


def started_with(bench: Bench) -> str:
    args = bench.api.objects[DEPLOYMENT, "chat"]["spec"]["template"]["spec"]["containers"][0]["args"]
    return next(word.partition("=")[2] for word in args if word.startswith("--max-num-seqs="))


def status(bench: Bench) -> Object:
    last: Object = bench.api.statuses[-1]
    return last


async def restarted(bench: Bench, **spec: Any) -> None:
    """The same after a restart that is over."""
    await serving(bench, **spec)
    await bench.look()
    await bench.look()
    bench.rolled_out()
    await bench.look()


async def test_it_is_told_with_its_cost_before_it_is_done(bench: Bench) -> None:
    await serving(bench)
    assert await bench.look() == 0.0
    assert started_with(bench) == "256"
    assert status(bench)["restart"] == {
        "maxNumSeqs": 96,
        "time": "2026-01-01T00:00:00Z",
        "objective": "p95 <= 50ms",
        "context": "1000",
        "prefill": "0.5",
        "missed": 256,
    }
    (entry,) = status(bench)["decisions"]
    assert (entry["action"], entry["from"], entry["to"]) == ("Restart", "256", "96")
    ((kind, message),) = bench.told.about("Restart")
    assert kind == "Warning"
    assert "1 pod starts anew, for which 4 minutes each were measured: nothing is served from when" in message
    await bench.look()
    assert started_with(bench) == "96"
    assert bench.told.about("Rollout")[0][1].startswith("spec.tuning.restart: maxNumSeqs 256 -> 96: nothing")
    assert status(bench)["effective"]["maxNumSeqs"] == 96
    assert len(status(bench)["decisions"]) == 1


async def test_who_did_not_ask_gets_nothing(bench: Bench) -> None:
    await serving(bench, tuning={})
    await bench.look()
    await bench.look()
    assert (started_with(bench), "restart" in status(bench)) == ("256", False)


async def test_while_its_rollout_is_under_way_nothing_else_is_decided(bench: Bench) -> None:
    await serving(bench)
    await bench.look()
    await bench.look()
    bench.wall += timedelta(hours=2)
    see(bench, replace(FOUND, started=96, wanted=32, running=96))
    await bench.look()
    assert status(bench)["restart"]["maxNumSeqs"] == 96
    assert "a rollout is under way" in bench.server.restart.reason  # type: ignore[union-attr]


async def test_the_interval_holds_over_a_change_of_the_leader_and_so_does_the_number(bench: Bench) -> None:
    await restarted(bench)
    new = Bench()
    new.api, new.wall = bench.api, bench.wall + timedelta(minutes=30)
    new.cache.put(LLAMASERVER, bench.cache.server(KEY) | {"status": status(bench)})  # type: ignore[operator]
    new.reconciler.parts = replace(new.reconciler.parts, kube=bench.api)
    new.reconciler.parts.children._kube = bench.api  # the same API server
    new.ready_pod("a")
    new.rolled_out()
    await new.look()
    assert started_with(new) == "96"
    see(new, replace(FOUND, started=96, wanted=32, running=96))
    await new.look()
    assert "in 30 minutes at the earliest" in new.server.restart.reason  # type: ignore[union-attr]
    new.wall += timedelta(minutes=31)
    see(new, replace(FOUND, started=96, wanted=32, running=96))
    await new.look()
    assert status(new)["restart"]["maxNumSeqs"] == 32


async def test_the_number_goes_with_the_field_and_the_time_stays(bench: Bench) -> None:
    await restarted(bench)
    bench.declare(slo=ITL)
    await bench.look()
    assert started_with(bench) == "256"
    assert bench.told.about("Rollout")[-1][1].startswith("spec.tuning.restart: maxNumSeqs 96 -> 256")
    assert status(bench)["restart"] == {"time": "2026-01-01T00:00:00Z"}
    bench.declare(slo=ITL, tuning=HOURLY)
    await bench.look()
    bench.rolled_out()
    assert started_with(bench) == "256", "what was given up does not come back by itself"
    bench.wall += timedelta(minutes=20)
    see(bench, FOUND)
    await bench.look()
    assert "in 40 minutes at the earliest" in bench.server.restart.reason  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["Off", "Recommend"])
async def test_in_other_modes_nothing_is_restarted_and_what_was_chosen_stays(bench: Bench, mode: str) -> None:
    await restarted(bench)
    bench.wall += timedelta(hours=2)
    bench.declare(slo=ITL, tuning=HOURLY | {"mode": mode})
    see(bench, replace(FOUND, started=96, wanted=32, running=96))
    await bench.look()
    await bench.look()
    assert started_with(bench) == "96"
    advice = "recommended: engines are started with 32 instead of 96"
    assert (advice in status(bench)["restart"]["reason"]) is (mode == "Recommend")


async def test_the_users_ceiling_holds_whatever_was_chosen(bench: Bench) -> None:
    await restarted(bench)
    bench.declare(slo=ITL, tuning=HOURLY, engine={"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 64})
    await bench.look()
    assert started_with(bench) == "64"


async def test_somebody_who_clears_status_causes_no_rollout(bench: Bench) -> None:
    await restarted(bench)
    bench.server.written = read_status({})
    await bench.look()
    assert started_with(bench) == "96"
    assert status(bench)["restart"]["maxNumSeqs"] == 96


async def test_old_figures_and_a_spec_that_is_not_in_force_are_no_ground(bench: Bench) -> None:
    await serving(bench)
    see(bench, FOUND, time.monotonic() - 60.0)
    await bench.look()
    assert bench.server.restart.reason == "no engine gives figures"  # type: ignore[union-attr]
    see(bench, FOUND)
    bench.declare(slo=ITL, tuning=HOURLY, replicas=3)
    await bench.look()
    assert "the present spec is not in force" in bench.server.restart.reason  # type: ignore[union-attr]


async def test_why_nothing_is_restarted_stands_beside_why_nothing_is_moved(bench: Bench) -> None:
    await serving(bench)
    see(bench, replace(FOUND, wanted=None, reason="one point and no slope"))
    await bench.look()
    see(bench, replace(FOUND, wanted=None, reason="one point and no slope"))
    bench.server.written_at = float("-inf")
    await bench.look()
    tuned = bench.condition("Tuned")
    assert tuned["reason"] == "ActuatorUnavailable"
    told = "cannot change its cap live; restarts: nothing is restarted: one point and no slope"
    assert told in tuned["message"]


async def test_an_operator_that_comes_anew_makes_the_same_deployment(
    cluster: Cluster, options: Options, engine: FakeEngine
) -> None:
    """The whole operator and a real API server: a number in status is kept, and goes with the field."""
    asked = cluster.server(tuning=HOURLY, engine={"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 64})
    await cluster.apply(asked)
    bare = {key: asked[key] for key in ("apiVersion", "kind", "metadata")}
    chosen = {**bare, "status": {"restart": {"maxNumSeqs": 24, "time": "2026-01-01T00:00:00Z"}}}
    await asyncio.to_thread(cluster.api.apply, chosen, FIELD_MANAGER, subresource="status")

    async def args() -> str:
        return str((await cluster.get(cluster.deployment()) or {}).get("spec"))

    for _ in range(2):
        async with running(options):
            await eventually(args, lambda text: "--max-num-seqs=24" in text)
            seen = await eventually(
                lambda: cluster.get(cluster.server()),
                lambda it: it["status"].get("effective", {}).get("maxNumSeqs") == 24,
            )
            assert seen["status"]["restart"]["maxNumSeqs"] == 24
            assert condition(seen, "Accepted")["status"] == "True"
    async with running(options):
        await cluster.merge(cluster.server(), {"spec": {"tuning": None}})
        await eventually(args, lambda text: "--max-num-seqs=64" in text)
        assert await eventually(lambda: cluster.events("Rollout"))
        await eventually(
            lambda: cluster.get(cluster.server()),
            lambda it: it["status"].get("restart") == {"time": "2026-01-01T00:00:00Z"},
        )


@pytest.fixture
def bench() -> Bench:
    return Bench()
