"""Flux applies a LlamaServer from git: it converges, nothing drifts, health gates hold, pruning takes all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import flux, simulated
from harness.fleet import Fleet
from harness.flux import Flux
from harness.kube import Kube, Object
from harness.manifests import namespace, slo
from harness.server import NAME_LABEL, READY_S, Server
from harness.wait import stays, until

NAME, NAMESPACE = "chat", "llamaserver-gitops"
TIMEOUT = "10m"
"""Of the Kustomization; what is bad is told long before."""
SOON_S = 60.0
SEVERAL_INTERVALS_S = 20.0
FLUX = "kustomize-controller"
ARGUMENTS, TARGET_MS = ["--profile=CPU", "--startup-seconds=5"], 100
"""A start that takes longer than Flux takes to apply."""
CHILDREN = "deployments,replicasets,services,configmaps,poddisruptionbudgets,pods"


class Pipeline:
    """What a platform team has: a manifest in git, and Flux between it and the cluster."""

    def __init__(self, following: Flux) -> None:
        self.flux = following
        simulated.load_image()
        fleet = Fleet(following.kube, NAME, NAMESPACE, simulated.IMAGE, None, TARGET_MS)
        self.server: Server = fleet
        self.manifest = simulated.resource(fleet, ARGUMENTS, scaling={"mode": "External"})

    def commit(self, message: str) -> str:
        """Commit the manifest as it is now, in its namespace."""
        files = {
            f"models/{o['kind'].lower()}.yaml": json.dumps(o) for o in (namespace(NAMESPACE), self.manifest)
        }
        return self.flux.repository.commit(message, files)

    def spec_owners(self) -> set[str]:
        """Who owns a field of the LlamaServer's spec."""
        entries = self.flux.kube.managed_fields("llamaserver", NAME, NAMESPACE)
        return {entry["manager"] for entry in entries if "f:spec" in entry["fieldsV1"]}


@pytest.fixture(scope="module")
def pipeline(
    kube: Kube,
    operator: None,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pipeline]:
    """Flux follows an empty repository."""
    folder: Path = tmp_path_factory.mktemp("flux")
    with flux.running(kube, folder, "platform") as following:
        try:
            yield Pipeline(following)
        finally:
            following.unfollow()
            kube.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=180)


def generation(server: Object) -> int:
    return int(server["metadata"]["generation"])


def test_what_is_committed_is_applied_and_waited_for(pipeline: Pipeline) -> None:
    commit = pipeline.commit("serve chat")
    pipeline.flux.follow(TIMEOUT)
    until(
        "Flux to apply the LlamaServer", lambda: pipeline.server.find(), SOON_S, seen=pipeline.flux.describe
    )
    assert pipeline.flux.applied() != commit, "ready before an engine was"
    pipeline.flux.wait_applied(commit, READY_S + SOON_S)
    pipeline.server.wait_condition("Ready", "True", 1)


def test_what_others_write_is_no_drift(pipeline: Pipeline) -> None:
    # What an autoscaler starts from; git says nothing of replicas.
    pipeline.flux.kube.kubectl("scale", "llamaserver", NAME, "-n", NAMESPACE, "--replicas=1")
    before = pipeline.server.get()
    assert before["spec"]["replicas"] == 1
    engines = pipeline.server.engines()

    def unchanged() -> bool:
        now = pipeline.server.get()
        return generation(now) == generation(before) and now["spec"] == before["spec"]

    stays("the spec", unchanged, SEVERAL_INTERVALS_S)
    assert pipeline.spec_owners() <= {FLUX, "kubectl"}, "the operator writes no spec"
    assert pipeline.server.engines() == engines


def test_another_objective_in_git_replaces_no_engine(pipeline: Pipeline) -> None:
    engines = pipeline.server.engines()
    pipeline.manifest["spec"] |= {"slo": slo(80)}
    commit = pipeline.commit("a smoother chat")
    pipeline.flux.wait_applied(commit, SOON_S)
    server = pipeline.server.get()
    assert server["spec"]["slo"]["interTokenLatency"]["target"] == "80ms"
    assert server["status"]["observedGeneration"] == generation(server)
    assert server["spec"]["replicas"] == 1, "what the autoscaler wrote was taken away"
    assert pipeline.server.engines() == engines


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        pytest.param("--max-num-seqs=8", "ReconciliationFailed", id="told by the API server"),
        # What argparse would take for it; the API server's rules know whole names only.
        pytest.param("--max-num-se=8", "HealthCheckFailed", id="told by the operator"),
    ],
)
def test_a_mistake_fails_at_once_and_costs_nothing(pipeline: Pipeline, flag: str, reason: str) -> None:
    engines, good = pipeline.server.engines(), json.dumps(pipeline.manifest)
    pipeline.manifest["spec"]["engine"]["extraArgs"].append(flag)
    failed = pipeline.flux.wait_failed(pipeline.commit("a flag that is the operator's"), SOON_S)
    assert failed["reason"] == reason
    told = failed["message"]
    if reason == "HealthCheckFailed":
        told = pipeline.server.wait_condition("Stalled", "True", 10)["message"]
    assert "spec.engine.maxNumSeqs" in told
    assert pipeline.server.engines() == engines, "what served has to go on"

    pipeline.manifest = json.loads(good)
    pipeline.flux.wait_applied(pipeline.commit("without it"), SOON_S)
    assert pipeline.server.engines() == engines


def test_what_leaves_git_leaves_the_cluster(pipeline: Pipeline) -> None:
    pipeline.flux.unfollow()
    kube = pipeline.flux.kube

    def left() -> list[str]:
        if kube.kubectl("get", "namespace", NAMESPACE, "-o", "name", "--ignore-not-found") == "":
            return []
        found = kube.list(f"llamaservers,{CHILDREN}", NAMESPACE, f"{NAME_LABEL}={NAME}")
        return [f"{item['kind']}/{item['metadata']['name']}" for item in found]

    until("everything to be pruned", lambda: not left(), 120, every=1.0, seen=left)
    assert pipeline.server.find() is None
