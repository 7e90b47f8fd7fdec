"""KEDA on the project's own node: its operator and its metrics adapter, and a ScaledObject.

Both run as processes in the node's network, with the administrator's kubeconfig, and not as pods. The adapter
serves external.metrics.k8s.io, which the HorizontalPodAutoscalers that KEDA makes are decided by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster import binaries, pki
from cluster.progress import Progress
from cluster.settings import Settings
from harness import aggregated, process
from harness.kube import Kube, Object
from harness.manifests import namespace
from harness.wait import until

NAMESPACE = "keda"
ADAPTER, API = "keda-adapter", aggregated.api_service(aggregated.EXTERNAL_METRICS)
ADAPTER_PORT, GRPC_PORT = 6444, 9666
PASSED_ON_S = 60.0


def scaled_object(
    name: str, namespace: str, *, most: int, url: str, metrics: Mapping[str, str], target: int
) -> Object:
    """Asks `url` for metrics in Prometheus' format, and wants one replica for every `target` of their sum."""
    asked = {"url": url, "format": "prometheus", "targetValue": str(target)}
    triggers = [
        {"type": "metrics-api", "name": each, "metadata": {**asked, "valueLocation": metric}}
        for each, metric in metrics.items()
    ]
    together = {"formula": " + ".join(metrics), "target": str(target), "metricType": "AverageValue"}
    soon = {"stabilizationWindowSeconds": 15, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 5}]}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "llamaserver.dev/v1alpha1",
                "kind": "LlamaServer",
                "name": name,
            },
            "minReplicaCount": 1,
            "maxReplicaCount": most,
            "pollingInterval": 5,
            "advanced": {
                "horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": soon, "scaleDown": soon}},
                "scalingModifiers": together,
            },
            "triggers": triggers,
        },
    }


@contextmanager
def running(kube: Kube, folder: Path) -> Iterator[None]:
    """KEDA, until the end of the block. `folder` takes its certificates and logs."""
    settings = Settings.from_environment()
    programs = binaries.ensure_module(binaries.KEDA, settings, Progress())
    definitions = programs / binaries.DEFINITIONS
    _certificates(folder, settings)
    kube.apply(namespace(NAMESPACE, "privileged"))
    kube.kubectl("apply", "--server-side", "-f", str(definitions), timeout=120)
    at = settings.node_ip, ADAPTER_PORT
    kube.apply(*aggregated.objects(ADAPTER, NAMESPACE, aggregated.EXTERNAL_METRICS, *at))
    try:
        with process.running(kube, _commands(programs, settings, folder), folder):
            until("KEDA to serve metrics", lambda: _available(kube), PASSED_ON_S, seen=lambda: _log(folder))
            yield
    finally:
        kube.kubectl("delete", "apiservice", API, "--ignore-not-found")
        kube.kubectl("delete", "-f", str(definitions), "--ignore-not-found", timeout=120)
        kube.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=120)


def _available(kube: Kube) -> bool:
    path = "jsonpath={.status.conditions[?(@.type=='Available')].status}"
    return kube.kubectl("get", "apiservice", API, "-o", path) == "True"


def _log(folder: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log")))


def _certificates(folder: Path, settings: Settings) -> None:
    """One certificate for either end of KEDA's own connection, which both verify."""
    both = pki.Certificate("tls", "/CN=keda", "serverAuth,clientAuth", "IP:127.0.0.1")
    pki.sign(folder, both, settings.pki)
    (folder / "ca.crt").write_bytes((settings.pki / "ca.crt").read_bytes())


def _commands(programs: Path, settings: Settings, folder: Path) -> dict[str, list[str]]:
    environment = [
        "env",
        f"POD_NAMESPACE={NAMESPACE}",
        f"KEDA_CLUSTER_OBJECT_NAMESPACE={NAMESPACE}",
        "WATCH_NAMESPACE=",
    ]
    grpc = f"127.0.0.1:{GRPC_PORT}"
    kubeconfigs = (f"--{use}-kubeconfig={settings.kubeconfig}" for use in ("authentication", "authorization"))
    return {
        "keda-operator": [
            *environment,
            str(programs / "keda-operator"),
            f"--metrics-service-bind-address={grpc}",
            "--metrics-bind-address=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
            f"--cert-dir={folder}",
        ],
        ADAPTER: [
            *environment,
            str(programs / ADAPTER),
            f"--secure-port={ADAPTER_PORT}",
            f"--bind-address={settings.node_ip}",
            f"--metrics-service-address={grpc}",
            f"--cert-dir={folder}",
            f"--tls-cert-file={folder / 'tls.crt'}",
            f"--tls-private-key-file={folder / 'tls.key'}",
            f"--lister-kubeconfig={settings.kubeconfig}",
            *kubeconfigs,
            "--port=8081",
        ],
    }
