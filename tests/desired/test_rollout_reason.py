"""Why a rollout happens, and what it means for those who are being served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llamaserver.api import effective, parse
from llamaserver.desired import BuildSettings, DesiredFleet, outlook, rollout_reason

Object = dict[str, Any]
Make = Callable[..., Any]

GPU = {"resourceName": "nvidia.com/gpu", "count": 1}


def reason(built: Make, changed: Make, before: Object, after: Object, **other: Any) -> str:
    """Why the Deployment of `before` is replaced by that of `after`."""
    old, new = built(before)["Deployment"], built(after, **other)["Deployment"]
    specs = [parse(changed(changes)).spec.to_dict() for changes in (before, after)]
    return rollout_reason(old, new, *specs)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            {"spec.engine.maxModelLen": 8192},
            {"spec.engine.maxModelLen": 16384},
            "spec.engine.maxModelLen: 8192 -> 16384",
        ),
        ({}, {"spec.engine.maxModelLen": 16384}, "spec.engine.maxModelLen: (absent) -> 16384"),
        ({}, {"spec.model.revision": "main"}, "spec.model.revision: (absent) -> main"),
        ({"spec.accelerator": GPU}, {}, "spec.accelerator.resourceName: nvidia.com/gpu -> (absent)"),
        (
            {"spec.engine.extraArgs": ["-O1", "--enforce-eager"]},
            {"spec.engine.extraArgs": ["-O3", "--enforce-eager"]},
            "spec.engine.extraArgs: -O1 -> -O3",
        ),
        (
            {},
            {"spec.engine.maxModelLen": 4096, "spec.slo.queueTime.target": "5s", "spec.suspend": True},
            "spec.engine.maxModelLen: (absent) -> 4096",
        ),
    ],
)
def test_the_reason_is_told_in_the_terms_of_the_resource(
    before: Object, after: Object, words: str, built: Make, changed: Make
) -> None:
    told = reason(built, changed, before, after)
    assert told.split("; ")[0] == words
    assert ("; " in told) is ("accelerator" in words)


def test_a_restart_for_another_cap_is_told_by_its_field_and_an_edit_is_not(
    built: Make, changed: Make
) -> None:
    asked = {"spec.tuning.restart.minInterval": "1h"}
    before, after = built(asked, fleet=DesiredFleet(1, 256)), built(asked, fleet=DesiredFleet(1, 96))
    specs = [parse(changed(asked)).spec.to_dict()] * 2
    words = "spec.tuning.restart: maxNumSeqs 256 -> 96"
    assert rollout_reason(before["Deployment"], after["Deployment"], *specs) == words
    plain = [parse(changed({})).spec.to_dict()] * 2
    edited = rollout_reason(after["Deployment"], before["Deployment"], *plain)
    assert edited.startswith("spec.template")
    given_up = rollout_reason(after["Deployment"], built({})["Deployment"], specs[0], plain[0])
    assert given_up == "spec.tuning.restart: maxNumSeqs 96 -> 256"


def test_many_changes_are_not_all_listed(built: Make, changed: Make) -> None:
    after = {
        "spec.engine.maxModelLen": 1,
        "spec.engine.maxNumSeqs": 2,
        "spec.engine.maxNumBatchedTokens": 3,
        "spec.engine.gpuMemoryUtilization": 0.5,
        "spec.startup.timeout": "5m",
    }
    assert reason(built, changed, {}, after).endswith(" and 2 more")


@pytest.mark.parametrize(
    "after",
    [
        {},
        {"spec.slo.interTokenLatency.target": "20ms"},
        {"spec.scaling.maxReplicas": 5},
        {"spec.rollout": {"maxSurge": 2}},
        {"spec.tuning.mode": "Off", "spec.suspend": True},
    ],
)
def test_what_replaces_no_pod_has_no_reason(after: Object, built: Make, changed: Make) -> None:
    assert reason(built, changed, {}, after) == ""


def test_what_the_spec_cannot_explain_is_told_in_the_terms_of_the_template(
    built: Make, changed: Make
) -> None:
    told = reason(built, changed, {}, {}, settings=BuildSettings("llamaserver/tuner:0.2.0"))
    assert told.startswith("spec.template.spec.initContainers[tuner].image: llamaserver/tuner:0.1.0 -> ")


def test_a_deployment_that_does_not_say_what_it_was_made_from_is_told_by_its_template(
    built: Make, changed: Make
) -> None:
    old, new = built()["Deployment"], built({"spec.engine.maxNumSeqs": 8})["Deployment"]
    told = rollout_reason(old, new, {}, parse(changed({"spec.engine.maxNumSeqs": 8})).spec.to_dict())
    assert told == "spec.template.spec.containers[vllm].args: --max-num-seqs=256 -> --max-num-seqs=8"


@pytest.mark.parametrize(
    ("rollout", "replicas", "interrupts", "words"),
    [
        (None, 0, False, "no pod runs"),
        (None, 1, True, "spec.rollout.maxSurge: 1"),
        (None, 1, True, "may take 30m"),
        (None, 4, False, "3 of 4 replicas go on serving"),
        ({"maxSurge": 1}, 1, False, "no pod ends before its successor serves"),
        ({"maxSurge": 2}, 4, False, "2 more must find room"),
        ({"maxSurge": 1, "maxUnavailable": 1}, 1, True, "spec.rollout.maxUnavailable: 0 avoids that"),
        ({"maxUnavailable": 9}, 4, True, "nothing is served"),
        ({"maxUnavailable": 2}, 4, False, "2 of 4 replicas go on serving"),
    ],
)
def test_an_interruption_is_foreseen(
    rollout: Object | None, replicas: int, interrupts: bool, words: str, changed: Make
) -> None:
    resolved = effective(parse(changed({"spec.rollout": rollout})).spec)
    foreseen = outlook(resolved, replicas)
    assert foreseen.interrupts is interrupts
    assert words in foreseen.text


@pytest.mark.parametrize(
    ("rollout", "surge", "unavailable"),
    [
        (None, 0, 1),
        ({"maxSurge": 1}, 1, 0),
        ({"maxSurge": 2, "maxUnavailable": 1}, 2, 1),
        ({"maxUnavailable": 3}, 0, 3),
        ({"maxSurge": 0}, 0, 1),
    ],
)
def test_a_rollout_can_always_move(rollout: Object | None, surge: int, unavailable: int, built: Make) -> None:
    """Kubernetes refuses a strategy in which both are 0."""
    strategy = built({"spec.rollout": rollout})["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": surge, "maxUnavailable": unavailable}


def test_replicas_that_an_old_version_serves_are_never_all_taken_for_one_that_may_not_start(
    built: Make,
) -> None:
    """Two replicas: of a broken version only one pod is made, and the other goes on serving."""
    for rollout in (None, {"maxSurge": 1}):
        bounds = built({"spec.rollout": rollout, "spec.scaling.minReplicas": 2})["Deployment"]["spec"]
        assert bounds["replicas"] - bounds["strategy"]["rollingUpdate"]["maxUnavailable"] >= 1
