"""Edits in the middle of a rollout: another version, the way back, another number, what is tuned live.

With an API server that only keeps what is applied, and the test in the place of the Deployment's controller.
"""

from __future__ import annotations

from typing import Any

import pytest

from llamaserver.cluster.kinds import DEPLOYMENT, Object
from reconciling import KEY, Bench

IMAGE = {"image": "vllm/vllm-openai:v0.32.0"}
TWO = {"scaling": {"mode": "Fixed"}, "replicas": 2}
A, B = {**IMAGE, "maxModelLen": 8192}, {**IMAGE, "maxModelLen": 16384}
C = {**B, "maxNumSeqs": 8}
A_TO_B = "spec.engine.maxModelLen: 8192 -> 16384"
B_TO_C = "spec.engine.maxNumSeqs: (absent) -> 8"
B_TO_A = "spec.engine.maxModelLen: 16384 -> 8192"
ITL = {"interTokenLatency": {"target": "20ms"}}


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def rolling(bench: Bench) -> None:
    """Two replicas serve A; B was declared, and one of its pods is up."""
    bench.declare(engine=A, **TWO)
    await look(bench)
    bench.rolled_out()
    await look(bench)
    bench.declare(engine=B, **TWO)
    await look(bench)
    bench.rolled_out(1)
    await look(bench)
    assert_rolls(bench, A_TO_B, 1)


async def look(bench: Bench) -> None:
    """A look that writes status also where only a count has changed, as one some seconds later does."""
    if (server := bench.registry.get(KEY)) is not None:
        server.written_at = float("-inf")
    await bench.look()


def assert_rolls(bench: Bench, why: str, updated: int, of: int = 2) -> None:
    """Status speaks of the present spec, is not Ready with it, and says why pods go."""
    assert bench.api.statuses[-1]["observedGeneration"] == bench.generation
    for type_, status in (("Ready", "False"), ("Progressing", "True")):
        said = bench.condition(type_)
        assert (said["status"], said["reason"]) == (status, "RollingOut")
        assert said["observedGeneration"] == bench.generation
    told = f"{updated} of {of} replicas have the present spec: {why}; "
    assert bench.condition("Progressing")["message"].startswith(told)


def why(bench: Bench) -> list[str]:
    """The reasons for rollouts that were announced."""
    return [message.partition(": at most")[0] for _, message in bench.told.about("Rollout")]


def template(bench: Bench) -> Object:
    found: Object = bench.api.objects[DEPLOYMENT, "chat"]["spec"]["template"]
    return found


async def finish(bench: Bench) -> None:
    """The rollout ends, and status says so of the present spec."""
    bench.rolled_out()
    await look(bench)
    ready, progress = bench.condition("Ready"), bench.condition("Progressing")
    assert (ready["status"], ready["observedGeneration"]) == ("True", bench.generation)
    assert (progress["status"], progress["reason"]) == ("False", "UpToDate")


async def test_a_third_version_is_told_with_its_own_reason_and_never_called_ready_before_its_time(
    bench: Bench,
) -> None:
    await rolling(bench)
    bench.declare(engine=C, **TWO)
    await look(bench)
    # The pod of B is up, and counts for nothing any more.
    assert_rolls(bench, B_TO_C, 0)
    bench.rolled_out(1)
    await look(bench)
    assert_rolls(bench, B_TO_C, 1)
    assert why(bench) == [A_TO_B, B_TO_C]
    await finish(bench)


async def test_the_way_back_makes_the_very_template_that_left_pods_still_have(bench: Bench) -> None:
    """Kubernetes knows a pod's version by its template: with the same one it replaces none of them."""
    bench.declare(engine=A, **TWO)
    await look(bench)
    before = template(bench)
    await rolling(bench)
    bench.declare(engine=A, **TWO)
    await look(bench)
    assert template(bench) == before
    assert_rolls(bench, B_TO_A, 0)
    assert why(bench) == [A_TO_B, B_TO_A]
    await finish(bench)


async def test_who_comes_back_and_goes_again_is_told_the_present_reason(bench: Bench) -> None:
    await rolling(bench)
    for engine, reason in ((A, B_TO_A), (B, A_TO_B)):
        bench.declare(engine=engine, **TWO)
        await look(bench)
        assert_rolls(bench, reason, 0)
    await finish(bench)


async def test_a_version_that_comes_again_is_not_judged_by_what_is_told_of_the_one_between(
    bench: Bench,
) -> None:
    """B is in force, A is declared and rolls out before the watches tell, and B is declared again."""
    bench.declare(engine=B, **TWO)
    await look(bench)
    await finish(bench)
    bench.declare(engine=A, **TWO)
    await look(bench)
    live = bench.api.objects[DEPLOYMENT, "chat"]
    live["status"]["observedGeneration"] = live["metadata"]["generation"]
    bench.declare(engine=B, **TWO)
    await look(bench)
    assert_rolls(bench, A_TO_B, 0)
    await finish(bench)


@pytest.mark.parametrize(
    ("edit", "of"),
    [
        ({"slo": ITL}, 2),
        ({"tuning": {"numSeqs": {"max": 16}}}, 2),
        ({"rollout": {"maxSurge": 1}}, 2),
        ({"replicas": 3}, 3),
    ],
)
async def test_an_edit_that_replaces_no_pod_leaves_a_rollout_as_it_was(
    bench: Bench, edit: dict[str, Any], of: int
) -> None:
    await rolling(bench)
    before = template(bench)
    bench.declare(engine=B, **TWO | edit)
    await look(bench)
    bench.rolled_out(1)
    await look(bench)
    assert template(bench) == before
    assert_rolls(bench, A_TO_B, 1, of)
    assert why(bench) == [A_TO_B]
    await finish(bench)


async def test_a_rollout_whose_old_pods_have_all_gone_goes_on_until_the_new_ones_serve(bench: Bench) -> None:
    one = {"scaling": {"mode": "Fixed"}, "replicas": 1}
    bench.declare(engine=A, **one)
    await look(bench)
    await finish(bench)
    bench.declare(engine=B, **one)
    await look(bench)
    bench.rolled_out(ready=0)
    await look(bench)
    said = bench.condition("Progressing")
    assert (said["status"], said["reason"]) == ("True", "RollingOut")
    assert f"{A_TO_B}; nothing is served from when its pod has ended" in said["message"]
    await finish(bench)
    # A pod that dies later is no rollout.
    bench.rolled_out(ready=0)
    await look(bench)
    assert bench.condition("Progressing")["reason"] == "Scaling"


async def test_an_operator_that_comes_in_the_middle_goes_on_with_the_reason(bench: Bench) -> None:
    await rolling(bench)
    bench.registry.drop(KEY)
    bench.declare(engine=B, **TWO, slo=ITL)
    await look(bench)
    assert why(bench) == [A_TO_B]
    bench.rolled_out(1)
    await look(bench)
    assert_rolls(bench, A_TO_B, 1)
    await finish(bench)


async def test_a_spec_that_is_refused_in_the_middle_lets_the_rollout_go_on(bench: Bench) -> None:
    await rolling(bench)
    before = template(bench)
    bench.declare(engine={**B, "maxNumSeqs": -1}, **TWO)
    await look(bench)
    assert template(bench) == before
    assert bench.condition("Accepted")["status"] == "False"
    assert A_TO_B in bench.condition("Progressing")["message"]
    bench.declare(engine=B, **TWO)
    await look(bench)
    assert_rolls(bench, A_TO_B, 1)
    assert why(bench) == [A_TO_B]
    await finish(bench)


async def test_a_number_that_is_halved_in_the_middle_waits_for_the_rollout(bench: Bench) -> None:
    """A version that does not start would be left alone, with nobody who serves."""
    await rolling(bench)
    for name in ("a", "b"):
        bench.ready_pod(name)
    for engine in (B, C):
        bench.declare(engine=engine, scaling={"mode": "Fixed"}, replicas=1)
        await look(bench)
        bench.rolled_out(1)
        await look(bench)
        assert bench.replicas() == 2
        assert bench.api.statuses[-1]["observedGeneration"] == bench.generation
    assert [reason for _, reason, _ in bench.told.events].count("ScaleDownWaits") >= 1
    assert why(bench) == [A_TO_B, B_TO_C]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_number_that_is_halved_with_another_engine_waits_for_its_rollout(
    bench: Bench, restarted: bool
) -> None:
    """One commit may change both, and an operator may have just started when it comes."""
    bench.declare(engine=A, **TWO)
    await look(bench)
    await finish(bench)
    for name in ("a", "b"):
        bench.ready_pod(name)
    if restarted:
        bench.restarted()
    bench.declare(engine=B, scaling={"mode": "Fixed"}, replicas=1)
    await look(bench)
    assert bench.replicas() == 2
    assert why(bench) == [A_TO_B]
    assert bench.told.about("ScaleDownWaits")


async def test_a_number_that_is_halved_after_a_restart_of_the_operator_waits_for_no_rollout(
    bench: Bench,
) -> None:
    bench.declare(engine=A, **TWO)
    await look(bench)
    await finish(bench)
    for name in ("a", "b"):
        bench.ready_pod(name)
    bench.restarted()
    bench.declare(engine=A, scaling={"mode": "Fixed"}, replicas=1)
    await look(bench)
    assert not bench.told.about("ScaleDownWaits")
    assert bench.server.shrinks_since is not None, "it waits for figures alone"
