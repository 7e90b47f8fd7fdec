"""What a namespace does not allow, and what a spec names that is not there: told with what to do, mended
without another spec, and no matter to who serves already. All under the Pod Security level `restricted`,
beside a LlamaServer named `vllm`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.node import Node
from harness import simulated
from harness.fleet import ENGINE_PORT, HEALTH, SNAPSHOT, Fleet
from harness.kube import Kube, KubeError, Object
from harness.manifests import claim_of_folder, namespace, secret
from harness.server import condition
from harness.wait import stays, until

TENANT = "llamaserver-tenant"
MEMORY_MI = 64
NO_MATTER_MS = 1000
UP_S = 60.0
TOLD_S = 45.0
"""Status is looked at every 20 s while a pod is not ready."""
MENDED_S = 120.0
"""The kubelet and the ReplicaSet's controller try again after a while that grows with every try."""

Make = Callable[..., Fleet]


def resource(fleet: Fleet, **changes: Any) -> Object:
    """The manifest of a small simulated engine; `changes` are for groups of spec, and win field by field."""
    made = fleet.resource(scaling={"mode": "Fixed"}, replicas=1, drain="1s")
    made["spec"]["engine"] |= {
        "extraArgs": ["--profile=CPU"],
        "resources": {"requests": {"cpu": "20m", "memory": f"{MEMORY_MI}Mi"}, "limits": {"memory": "256Mi"}},
    }
    for group, value in changes.items():
        made["spec"][group] = {**made["spec"].get(group, {}), **value}
    if made["spec"]["scaling"]["mode"] != "Fixed":
        del made["spec"]["replicas"]
    return made


@pytest.fixture(scope="module")
def tenant(kube: Kube, operator: None) -> Iterator[Kube]:  # noqa: ARG001
    """A namespace of its own, which enforces `restricted`."""
    simulated.load_image()
    kube.apply(namespace(TENANT))
    yield kube
    kube.kubectl("delete", "llamaservers", "--all", "-n", TENANT, "--timeout=60s", timeout=70)
    kube.kubectl("delete", "namespace", TENANT, "--timeout=120s", timeout=130)


@pytest.fixture(scope="module")
def serving(tenant: Kube) -> Fleet:
    """A LlamaServer named `vllm` that serves, and goes on whatever becomes of its neighbours."""
    fleet = Fleet(tenant, "vllm", TENANT, simulated.IMAGE, None, NO_MATTER_MS)
    fleet.apply(resource(fleet))
    fleet.wait_ready(timeout=UP_S)
    return fleet


@pytest.fixture
def make(tenant: Kube, serving: Fleet) -> Iterator[Make]:
    """Makes a neighbour, which goes with the test; what serves has to be as it was."""
    made: list[Fleet] = []
    before = serving.engines()

    def neighbour(name: str, **changes: Any) -> Fleet:
        fleet = Fleet(tenant, name, TENANT, simulated.IMAGE, None, NO_MATTER_MS)
        made.append(fleet)
        fleet.apply(resource(fleet, **changes))
        return fleet

    yield neighbour
    for fleet in made:
        tenant.delete("llamaserver", fleet.name, TENANT)
    assert serving.engines() == before, "a neighbour's trouble was not its own"
    assert answers(serving)


def answers(fleet: Fleet) -> bool:
    """Whether an engine behind the Service says that it is well."""
    fleet.kube.run("curl", "-sf", "-m", "10", f"{fleet.address()}/health", timeout=20)
    return True


def said(fleet: Fleet, reason: str, type_: str = "Ready") -> str:
    """What is told of a trouble, once it is."""
    return str(fleet.wait_condition(type_, "False", TOLD_S, reason=reason)["message"])


def test_an_engine_named_vllm_serves_where_pods_may_do_next_to_nothing(serving: Fleet) -> None:
    intruder = {"containers": [{"name": "c", "image": "none"}], "hostNetwork": True}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": TENANT},
        "spec": intruder,
    }
    with pytest.raises(KubeError, match="violates PodSecurity"):
        serving.kube.apply(pod)
    # Its Service would set VLLM_PORT in every pod that is made from now on, were they not told otherwise.
    first = serving.engine_pod()["metadata"]
    serving.kube.delete("pod", first["name"], TENANT)

    def replaced() -> bool:
        pods = serving.pods()
        return len(pods) == 1 and pods[0]["metadata"]["uid"] != first["uid"]

    until("another pod", replaced, UP_S)
    serving.wait_ready(timeout=UP_S)
    assert serving.engine_pod()["spec"]["enableServiceLinks"] is False
    assert answers(serving)


def test_pods_that_break_the_namespaces_security_are_told_and_the_old_one_serves(make: Make) -> None:
    fleet = make("secured", rollout={"maxSurge": 1})
    fleet.wait_ready(timeout=UP_S)
    engines = fleet.engines()
    root = {"spec": {"securityContext": {"runAsNonRoot": False, "runAsUser": 0}}}
    fleet.apply(resource(fleet, rollout={"maxSurge": 1}, podTemplate=root))
    told = said(fleet, "PodsRefused")
    assert 'violates PodSecurity "restricted' in told
    assert "take out of spec.podTemplate what does not meet it" in told
    assert fleet.engines() == engines
    assert answers(fleet)
    fleet.apply(resource(fleet, rollout={"maxSurge": 1}))
    fleet.wait_ready(timeout=UP_S)
    assert fleet.engines() == engines


def test_a_quota_that_is_too_small_is_told_and_a_larger_one_is_enough(make: Make) -> None:
    fleet = make("limited")
    fleet.wait_ready(timeout=UP_S)
    engines = fleet.engines()

    def ending() -> list[Object]:
        return [pod for pod in fleet.kube.list("pod", TENANT) if "deletionTimestamp" in pod["metadata"]]

    # What they give back would make room for one more.
    until("other pods to end", lambda: not ending(), MENDED_S, every=1.0)
    used = MEMORY_MI * len(fleet.kube.list("pod", TENANT))
    quota: Object = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "memory", "namespace": TENANT},
        "spec": {"hard": {"requests.memory": f"{used + MEMORY_MI // 2}Mi"}},
    }
    fleet.kube.apply(quota)
    try:
        fleet.kube.kubectl("scale", "lls", fleet.name, "-n", TENANT, "--replicas=2")
        told = said(fleet, "PodsRefused")
        assert "exceeded quota: memory" in told
        assert "raise the namespace's quota" in told
        assert fleet.engines() == engines
        quota["spec"]["hard"]["requests.memory"] = "8Gi"
        fleet.kube.apply(quota)
        fleet.wait_ready(timeout=MENDED_S)
        assert engines < fleet.engines()
    finally:
        fleet.kube.delete("resourcequota", "memory", TENANT)


def test_a_key_that_a_secret_has_not_is_told_and_used_as_soon_as_it_is_there(
    tenant: Kube, make: Make
) -> None:
    name, key = "clients", "VLLM_API_KEY"
    tenant.apply(secret(name, TENANT, {"other": "x"}))
    fleet = make("keyed", engine={"apiKeySecretRef": {"name": name, "key": key}})
    told = said(fleet, "StartupFailed")
    assert f"couldn't find key {key} in Secret {TENANT}/{name}" in told
    assert "add the key to that Secret, and the pod starts" in told
    pod = fleet.engine_pod()["metadata"]["uid"]
    tenant.apply(secret(name, TENANT, {"other": "x", key: "sesame"}))
    fleet.wait_ready(timeout=MENDED_S)
    assert fleet.engine_pod()["metadata"]["uid"] == pod
    models = f"{fleet.address()}/v1/models"
    tenant.run("curl", "-sf", "-m", "10", "-H", "Authorization: Bearer sesame", models, timeout=20)
    with pytest.raises(KubeError):
        tenant.run("curl", "-sf", "-m", "10", models, timeout=20)


def certificate(folder: Path, host: str) -> dict[str, str]:
    """What a Secret of type kubernetes.io/tls holds, for one name."""
    files = {"tls.crt": folder / "tls.crt", "tls.key": folder / "tls.key"}
    command = ["openssl", "req", "-x509", "-nodes"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}", "-days", "2"]
    command += ["-out", str(files["tls.crt"]), "-keyout", str(files["tls.key"])]
    subprocess.run(command, check=True, capture_output=True)
    return {key: file.read_text() for key, file in files.items()}


def test_an_engine_waits_for_its_certificate_and_is_probed_and_tuned_by_tls(
    tenant: Kube, make: Make, tmp_path: Path
) -> None:
    name, most = "sealed-tls", 8
    fleet = make("sealed", engine={"tls": {"secretName": name}}, tuning={"numSeqs": {"max": most}})
    told = said(fleet, "StartupFailed")
    assert f'secret "{name}" not found' in told
    assert "spec.engine.tls" in told
    pod = fleet.engine_pod()["metadata"]["uid"]
    host = f"{fleet.name}.{TENANT}.svc"
    tenant.apply(secret(name, TENANT, certificate(tmp_path, host), "kubernetes.io/tls"))
    fleet.wait_ready(timeout=MENDED_S)
    assert fleet.engine_pod()["metadata"]["uid"] == pod

    address = fleet.engine_pod()["status"]["podIP"]
    asked = ("curl", "-sf", "-m", "5")

    def capped() -> bool:
        said = tenant.run(*asked, "-k", f"https://{address}:{ENGINE_PORT}{SNAPSHOT}", timeout=10)
        snapshot = json.loads(said)
        return bool(snapshot["engines"][0]["max_num_active_seqs"] == most)

    until("the cap to be that of the spec", capped, UP_S, seen=fleet.describe)
    service = tenant.get("service", fleet.name, TENANT)
    assert service is not None
    where = service["spec"]["clusterIP"]
    verified = ("--cacert", str(tmp_path / "tls.crt"), "--connect-to", f"{host}:443:{where}:443")
    tenant.run(*asked, *verified, f"https://{host}{HEALTH}", timeout=10)
    for plain in (f"http://{address}:{ENGINE_PORT}{HEALTH}", f"http://{where}:80{HEALTH}"):
        with pytest.raises(KubeError):
            tenant.run(*asked, plain, timeout=10)


def test_requests_that_no_node_can_meet_are_told_and_ask_for_no_more_pods(make: Make) -> None:
    huge = {"resources": {"requests": {"memory": "64Ti"}}}
    fleet = make("huge", engine=huge, scaling={"mode": "Auto", "minReplicas": 1, "maxReplicas": 4})
    told = said(fleet, "Unschedulable")
    assert "Insufficient memory" in told
    assert "ask for less in spec.engine.resources" in told

    def lone() -> bool:
        deployment = fleet.kube.get("deployment", fleet.name, TENANT)
        return deployment is not None and deployment["spec"]["replicas"] == 1 and len(fleet.pods()) == 1

    stays("one pod", lone, 15)
    fleet.apply(resource(fleet))
    fleet.wait_ready(timeout=UP_S)
    assert lone()


def test_a_claim_that_is_not_there_is_told_at_once_and_replaces_nothing_before_it_is(
    make: Make, tmp_path: Path
) -> None:
    fleet = make("claimed")
    fleet.wait_ready(timeout=UP_S)
    engines = fleet.engines()
    claim, field = "tenant-weights", "spec.model.cache.persistentVolumeClaim.claimName"
    fleet.apply(resource(fleet, model={"cache": {"persistentVolumeClaim": {"claimName": claim}}}))
    told = said(fleet, "ReferenceNotFound", "Accepted")
    assert f"{field}: there is no PersistentVolumeClaim {claim} in namespace {TENANT}: create it" in told
    assert fleet.engines() == engines
    assert answers(fleet)
    stalled = condition(fleet.get(), "Stalled")
    assert stalled is not None
    assert stalled["status"] == "False"

    fleet.kube.apply(*claim_of_folder(claim, TENANT, str(tmp_path), Node().settings.name))
    try:
        fleet.wait_ready(timeout=MENDED_S)
        volumes = fleet.engine_pod()["spec"]["volumes"]
        assert {"claimName": claim} in [volume.get("persistentVolumeClaim") for volume in volumes]
    finally:
        fleet.kube.delete("llamaserver", fleet.name, TENANT)
        until("its pods to end", lambda: not fleet.pods(), MENDED_S, every=1.0)
        fleet.kube.delete("persistentvolumeclaim", claim, TENANT)
        fleet.kube.delete("persistentvolume", claim, TENANT)
