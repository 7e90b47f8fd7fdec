"""Faults that people reported of other ways to run vLLM on Kubernetes, each with what it takes not to
repeat it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llamaserver.api import effective, parse
from llamaserver.desired import (
    BuildSettings,
    DesiredFleet,
    claim_problem,
    desired_fleet,
    termination_grace_seconds,
)

Object = dict[str, Any]
Make = Callable[..., Any]


@pytest.mark.parametrize("name", ["vllm", "vllm-port", "chat"])
def test_no_service_of_the_namespace_sets_variables_that_vllm_reads(name: str, pod: Make) -> None:
    """A Service called vllm sets VLLM_PORT=tcp://... and the engine dies."""
    spec = pod({"metadata.name": name})
    assert spec["enableServiceLinks"] is False
    assert "VLLM_PORT" not in {entry["name"] for entry in spec["containers"][0]["env"]}


SHARED_CACHE: Object = {
    "spec.model.cache.persistentVolumeClaim.claimName": "models",
    "spec.scaling.maxReplicas": 2,
}


def models(*modes: str) -> dict[str, Object]:
    """A claim of that name that allows these modes."""
    return {"models": {"spec": {"accessModes": list(modes)}}}


class TestClaims:
    """A ReadWriteOnce cache keeps the second replica from starting."""

    @pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
    def test_a_claim_for_one_node_is_named_with_the_cure(self, mode: str, changed: Make) -> None:
        server = parse(changed(SHARED_CACHE))
        problem = claim_problem(server.spec, effective(server.spec), models(mode))
        assert problem is not None
        assert problem.message.startswith(
            "spec.model.cache.persistentVolumeClaim.claimName: the claim models"
        )
        assert mode in problem.message
        assert "use a claim with ReadWriteMany" in problem.message
        assert problem.certain is (mode == "ReadWriteOncePod")
        assert ("on other nodes" in problem.message) is not problem.certain

    @pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
    @pytest.mark.parametrize("replicas", [1, 2])
    def test_the_additional_pod_of_a_rollout_counts_too(
        self, mode: str, replicas: int, changed: Make
    ) -> None:
        surge = {"spec.scaling.maxReplicas": replicas, "spec.rollout": {"maxSurge": 1}}
        server = parse(changed({**SHARED_CACHE, **surge}))
        problem = claim_problem(server.spec, effective(server.spec), models(mode))
        assert problem is not None
        assert "set spec.rollout.maxSurge: 0" in problem.message
        assert ("allow one replica" in problem.message) is (replicas == 2)

    @pytest.mark.parametrize(
        ("changes", "modes"),
        [
            ({}, ["ReadWriteMany"]),
            ({}, ["ReadWriteOnce", "ReadWriteMany"]),
            ({"spec.scaling.maxReplicas": 1}, ["ReadWriteOnce"]),
            ({"spec.model.cache": None}, ["ReadWriteOnce"]),
        ],
    )
    def test_what_can_be_shared_or_need_not_be_is_no_problem(
        self, changes: Object, modes: list[str], changed: Make
    ) -> None:
        server = parse(changed({**SHARED_CACHE, **changes}))
        assert claim_problem(server.spec, effective(server.spec), models(*modes)) is None

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"spec.model.uri": "pvc://models/llama"}, "spec.model.uri"),
            (
                {"spec.model.lora.adapters": [{"name": "a", "uri": "pvc://models/a"}]},
                "spec.model.lora.adapters[0].uri",
            ),
            (
                {
                    "spec.podTemplate.spec.volumes": [
                        {"name": "v", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
                    ]
                },
                "spec.podTemplate.spec.volumes[0].persistentVolumeClaim.claimName",
            ),
        ],
    )
    def test_what_is_only_read_can_be_shared_by_readers(
        self, changes: Object, field: str, changed: Make
    ) -> None:
        """A read-only mount does not change to how many nodes a volume is attached at once."""
        server = parse(changed({"spec.scaling.maxReplicas": 2, **changes}))
        for shared in (["ReadOnlyMany"], ["ReadWriteMany"], ["ReadWriteOnce", "ReadOnlyMany"]):
            assert claim_problem(server.spec, effective(server.spec), models(*shared)) is None
        problem = claim_problem(server.spec, effective(server.spec), models("ReadWriteOnce"))
        assert problem is not None
        assert problem.message.startswith(f"{field}: the claim models allows ReadWriteOnce alone")
        assert "use a claim with ReadOnlyMany or ReadWriteMany" in problem.message
        assert "spec.model.cache" not in problem.message

    def test_a_cache_needs_more_than_to_be_read(self, changed: Make) -> None:
        server = parse(changed(SHARED_CACHE))
        problem = claim_problem(server.spec, effective(server.spec), models("ReadOnlyMany"))
        assert problem is not None
        assert "use a claim with ReadWriteMany" in problem.message

    def test_what_the_volume_allows_counts_more_than_what_was_asked_for(self, changed: Make) -> None:
        server = parse(changed(SHARED_CACHE))
        bound = {"spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"accessModes": ["ReadWriteMany"]}}
        assert claim_problem(server.spec, effective(server.spec), {"models": bound}) is None

    def test_of_several_claims_the_one_that_no_second_pod_can_have_is_told(self, changed: Make) -> None:
        server = parse(changed({**SHARED_CACHE, "spec.model.uri": "pvc://weights/llama"}))
        live = models("ReadWriteOncePod") | {"weights": {"spec": {"accessModes": ["ReadWriteOnce"]}}}
        problem = claim_problem(server.spec, effective(server.spec), live)
        assert problem is not None
        assert problem.certain
        assert "spec.model.cache" in problem.message

    def test_of_a_claim_that_could_not_be_read_nothing_is_said(self, changed: Make) -> None:
        server = parse(changed(SHARED_CACHE))
        assert claim_problem(server.spec, effective(server.spec), {}) is None

    def test_without_a_claim_every_pod_has_a_cache_of_its_own(self, pod: Make) -> None:
        (cache,) = (volume for volume in pod()["volumes"] if volume["name"] == "cache")
        assert cache == {"name": "cache", "emptyDir": {}}


def test_a_rollout_needs_no_spare_accelerator(built: Make) -> None:
    """With the default surge of 25 % a rollout is pending for ever."""
    strategy = built()["Deployment"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


class TestShutdown:
    """SIGTERM cuts streams unless drain, sleep and grace period fit each other."""

    @pytest.mark.parametrize("drain", ["1s", "60s", "10m", "1500ms", "24h"])
    @pytest.mark.parametrize("tag", ["v0.17.0", "v0.18.0", "v0.32.0", "latest"])
    def test_the_grace_period_holds_sleep_drain_and_margin(
        self, drain: str, tag: str, pod: Make, changed: Make, settings: BuildSettings
    ) -> None:
        changes = {"spec.shutdown.drainTimeout": drain, "spec.engine.image": f"vllm/vllm-openai:{tag}"}
        spec = pod(changes)
        container = spec["containers"][0]
        server = parse(changed(changes))
        wanted = effective(server.spec).drain_timeout.seconds
        sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        flags = [arg for arg in container["args"] if arg.startswith("--shutdown-timeout=")]
        drained = int(flags[0].partition("=")[2]) if flags else sleep - settings.pre_stop_seconds
        assert drained >= wanted, "no stream is cut before the time it was promised"
        assert sleep >= settings.pre_stop_seconds, "routers have stopped sending before SIGTERM"
        used = sleep + (drained if flags else 0)
        assert spec["terminationGracePeriodSeconds"] >= used + settings.margin_seconds
        assert termination_grace_seconds(server, settings) == spec["terminationGracePeriodSeconds"]

    def test_no_pre_stop_is_no_hook(self, built: Make) -> None:
        """API servers before 1.33 refuse a sleep of 0 seconds."""
        deployment = built({}, settings=BuildSettings("llamaserver/tuner:0.1.0", pre_stop_seconds=0))[
            "Deployment"
        ]
        assert "lifecycle" not in deployment["spec"]["template"]["spec"]["containers"][0]

    def test_a_release_without_a_drain_waits_in_the_pre_stop_hook(self, engine: Make) -> None:
        container = engine({"spec.engine.image": "vllm/vllm-openai:v0.17.0"})
        assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 15 + 120


class TestProbes:
    """Engines killed while loading, or while busy."""

    @pytest.mark.parametrize("timeout", ["25m", "30m", "90s", "1h", "7s", "100ms"])
    def test_the_start_has_the_time_it_was_promised(self, timeout: str, engine: Make, changed: Make) -> None:
        container = engine({"spec.startup.timeout": timeout})
        probe = container["startupProbe"]
        promised = effective(parse(changed({"spec.startup.timeout": timeout})).spec).startup_timeout.seconds
        assert probe["periodSeconds"] * probe["failureThreshold"] >= promised
        assert "initialDelaySeconds" not in probe
        assert "initialDelaySeconds" not in container["livenessProbe"]

    def test_a_busy_engine_is_not_killed_and_is_unrouted_before_it_would_be(self, engine: Make) -> None:
        container = engine()
        budgets = {}
        for name in ("readinessProbe", "livenessProbe"):
            probe = container[name]
            assert probe["timeoutSeconds"] >= 5
            budgets[name] = probe["periodSeconds"] * probe["failureThreshold"]
        assert budgets["livenessProbe"] > budgets["readinessProbe"]
        assert container["livenessProbe"]["failureThreshold"] >= 10

    def test_a_rollout_is_given_up_only_after_a_start_could_have_ended(self, built: Make) -> None:
        spec = built({"spec.startup.timeout": "25m"})["Deployment"]["spec"]
        grace = spec["template"]["spec"]["terminationGracePeriodSeconds"]
        assert spec["progressDeadlineSeconds"] > 25 * 60 + grace


def test_the_last_words_of_an_engine_reach_the_pods_status(engine: Make) -> None:
    """A crash loop by "CUDA out of memory" can be named only where its words can be read."""
    assert engine()["terminationMessagePolicy"] == "FallbackToLogsOnError"


class TestReplicas:
    """An operator overwrites what an autoscaler set."""

    def test_a_number_that_is_not_ours_is_not_sent(self, built: Make) -> None:
        assert "replicas" not in built({"spec.scaling.mode": "External"})["Deployment"]["spec"]

    def test_a_number_that_the_autoscaler_wrote_here_is_passed_on(self, built: Make) -> None:
        changes = {"spec.scaling.mode": "External", "spec.replicas": 3}
        assert built(changes)["Deployment"]["spec"]["replicas"] == 3

    def test_ours_is_sent(self, built: Make) -> None:
        assert built(fleet=DesiredFleet(4))["Deployment"]["spec"]["replicas"] == 4

    def test_missing_data_never_changes_a_fleet(self, changed: Make) -> None:
        resolved = effective(parse(changed({"spec.scaling.maxReplicas": 8})).spec)
        assert desired_fleet(resolved, current=5, wanted=None) == DesiredFleet(5)
