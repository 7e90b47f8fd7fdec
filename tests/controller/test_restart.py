"""A restart for another cap: told before it is done, remembered, given up with the field.

First with an API server that only keeps what is applied; then whole, against a real one.
"""

from __future__ import annotations

import asyncio
import math
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
    live_ago_s=math.inf,
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
    at = time.monotonic() if at is None else at
    return Report(at, at, decision, (pod,), {}, unavailable, {}, False)


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
        "specDigest": bench.server.spec.rolling,  # type: ignore[union-attr]
        "upperBound": {"numSeqs": 256, "contextTokens": 1000, "prefillRatio": "0.5"},
        "state": "Decided",
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
    bench.wall += timedelta(minutes=30)
    new = successor(bench, status(bench))
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


@pytest.mark.parametrize("seqs", [64, 256, 512])
async def test_a_number_that_the_user_declares_wins_over_what_was_chosen(bench: Bench, seqs: int) -> None:
    await restarted(bench)
    bench.declare(slo=ITL, tuning=HOURLY, engine={"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": seqs})
    await bench.look()
    assert started_with(bench) == str(seqs)
    assert len(bench.told.about("Rollout")) == 2, "one for the restart, one for the declaration"
    assert_only_the_time_is_left(bench)


async def test_who_makes_the_chosen_number_the_declared_one_has_no_pod_replaced(bench: Bench) -> None:
    await restarted(bench)
    bench.declare(slo=ITL, tuning=HOURLY, engine={"image": "vllm/vllm-openai:v0.32.0", "maxNumSeqs": 96})
    await bench.look()
    assert (started_with(bench), len(bench.told.about("Rollout"))) == ("96", 1)
    assert_only_the_time_is_left(bench)


OTHERS: dict[str, dict[str, Any]] = {
    "model": {"model": {"uri": "hf://org/other-1B"}},
    "image": {"engine": {"image": "vllm/vllm-openai:v0.33.0"}},
    "accelerator": {"accelerator": {"resourceName": "nvidia.com/gpu", "count": 1}},
    "parallelism": {
        "accelerator": {"resourceName": "nvidia.com/gpu", "count": 2},
        "engine": {"image": "vllm/vllm-openai:v0.32.0", "tensorParallelSize": 2},
    },
}


@pytest.mark.parametrize("what", OTHERS)
async def test_what_was_chosen_for_other_pods_goes_with_the_rollout_that_replaces_them(
    bench: Bench, what: str
) -> None:
    await restarted(bench)
    bench.declare(slo=ITL, tuning=HOURLY, **OTHERS[what])
    await bench.look()
    assert started_with(bench) == "256"
    assert len(bench.told.about("Rollout")) == 2
    assert_only_the_time_is_left(bench)
    bench.rolled_out()
    bench.wall += timedelta(minutes=20)
    see(bench, FOUND)
    await bench.look()
    assert "in 40 minutes at the earliest" in bench.server.restart.reason  # type: ignore[union-attr]


def assert_only_the_time_is_left(bench: Bench) -> None:
    left = status(bench)["restart"]
    assert left.keys() <= {"time", "state", "reason"}
    assert left["time"] == "2026-01-01T00:00:00Z"


async def test_a_bound_that_is_edited_replaces_no_pod_and_what_it_breaks_is_told(bench: Bench) -> None:
    await restarted(bench)
    for bounds, told in (
        ({"max": 64}, "with 96 sequences, more than spec.tuning.numSeqs.max (64): the next restart meets it"),
        ({}, ""),
        ({"min": 128}, "with 96 sequences, fewer than spec.tuning.numSeqs.min (128): the next restart meets"),
    ):
        bench.declare(slo=ITL, tuning=HOURLY | {"numSeqs": bounds})
        await bench.look()
        assert started_with(bench) == "96"
        reason = bench.server.restart.reason or ""  # type: ignore[union-attr]
        assert (told in reason) and (bool(told) is ("numSeqs" in reason))
    assert len(bench.told.about("Rollout")) == 1
    effective = status(bench)["effective"]
    assert (effective["minNumSeqs"], effective["maxNumActiveSeqs"]) == (96, 96)


async def test_a_live_cap_that_is_back_is_bounded_by_what_was_chosen_and_that_is_told(bench: Bench) -> None:
    await restarted(bench)
    bench.wall += timedelta(hours=5)
    found = replace(FOUND, live=True, live_ago_s=0.0, started=96, running=96, missed_s=0.0, starved_s=9000.0)
    told = reported(replace(found, wanted=250))
    bench.server.report = bench.server.newest = replace(told, unavailable={})
    bench.server.written_at = time.monotonic() - 15.0
    await bench.look()
    words = (
        "engines were started with 96 of 256 sequences; the next rollout gives them back, or remove "
        "spec.tuning.restart"
    )
    assert words in status(bench)["restart"]["reason"]
    assert status(bench)["restart"]["state"] == "Live"
    tuned = bench.condition("Tuned")
    assert (tuned["status"], tuned["reason"]) == ("True", "Tuned")
    assert words in tuned["message"]
    assert started_with(bench) == "96", "no pod is replaced for it"


async def test_neither_a_rollout_that_lasts_nor_a_tuner_that_comes_and_goes_brings_a_restart(
    bench: Bench,
) -> None:
    """Three replicas, of which one after the other gets the new number, for hours."""
    three = {"slo": ITL, "tuning": HOURLY, "replicas": 3, "scaling": {"mode": "Fixed"}}
    for name in ("b", "c"):
        bench.ready_pod(name)
    await restarted(bench, **three)
    again = replace(FOUND, started=96, running=96, wanted=32)
    for updated in (0, 1, 2):
        bench.rolled_out(updated)
        bench.wall += timedelta(hours=1)
        see(bench, again)
        await bench.look()
        assert "a rollout is under way" in bench.server.restart.reason  # type: ignore[union-attr]
        assert bench.server.restart.state == "WaitingForFleet"  # type: ignore[union-attr]
    bench.rolled_out()
    for found in (replace(again, live=True, live_ago_s=0.0), replace(again, live_ago_s=1800.0)):
        see(bench, found)
        await bench.look()
        assert bench.server.restart.state == "Live"  # type: ignore[union-attr]
    assert (started_with(bench), len(bench.told.about("Rollout"))) == ("96", 1)
    see(bench, again)
    await bench.look()
    await bench.look()
    assert started_with(bench) == "32"


def successor(bench: Bench, written: Object) -> Bench:
    """Another leader, which finds this status and the same API server."""
    new = Bench()
    new.api, new.wall = bench.api, bench.wall
    new.cache.put(LLAMASERVER, bench.cache.server(KEY) | {"status": written})  # type: ignore[operator]
    new.reconciler.parts = replace(new.reconciler.parts, kube=bench.api)
    new.reconciler.parts.children._kube = bench.api  # the same API server
    new.ready_pod("a")
    new.rolled_out()
    return new


async def test_a_status_that_was_lost_is_no_reason_for_a_rollout(bench: Bench) -> None:
    await restarted(bench)
    lost = {key: value for key, value in status(bench).items() if key != "restart"}
    new = successor(bench, lost)
    for _ in range(2):
        await new.look()
        assert (started_with(new), new.told.about("Rollout")) == ("96", [])
    kept = status(new)["restart"]
    assert (kept["maxNumSeqs"], kept["time"]) == (96, "2026-01-01T00:00:00Z")
    new.wall += timedelta(minutes=20)
    see(new, replace(FOUND, started=96, wanted=32, running=96))
    await new.look()
    assert "in 40 minutes at the earliest" in new.server.restart.reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "other", [{"model": {"uri": "hf://org/other-1B"}, "tuning": HOURLY}, {"tuning": {"mode": "Auto"}}]
)
async def test_what_a_deployment_remembers_holds_for_its_own_spec_alone(bench: Bench, other: Object) -> None:
    await restarted(bench)
    bench.declare(slo=ITL, **other)
    new = successor(bench, {})
    await new.look()
    assert started_with(new) == "256"


async def test_a_deployment_that_somebody_has_given_another_number_is_not_believed(bench: Bench) -> None:
    await restarted(bench)
    live = bench.api.objects[DEPLOYMENT, "chat"]
    container = live["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [word.replace("num-seqs=96", "num-seqs=12") for word in container["args"]]
    new = successor(bench, {})
    await new.look()
    assert started_with(new) == "256"


async def test_a_status_of_a_later_version_keeps_its_number(bench: Bench) -> None:
    await restarted(bench)
    later = status(bench)["restart"] | {"state": "Later", "newer": {"x": 1}}
    new = successor(bench, status(bench) | {"restart": later})
    del bench.api.objects[DEPLOYMENT, "chat"]["metadata"]["annotations"]["llamaserver.dev/restart"]
    await new.look()
    assert (started_with(new), new.told.about("Rollout")) == ("96", [])


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
