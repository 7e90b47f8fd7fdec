"""An API that the API server passes on to a program at the node's address, as an adapter's chart makes it."""

from __future__ import annotations

from harness.kube import Object

EXTERNAL_METRICS = ("external.metrics.k8s.io", "v1beta1")
"""What HorizontalPodAutoscalers ask for metrics of type External."""


def api_service(api: tuple[str, str]) -> str:
    """The name of the APIService of a group and version."""
    group, version = api
    return f"{version}.{group}"


def objects(name: str, namespace: str, api: tuple[str, str], address: str, port: int) -> tuple[Object, ...]:
    """A Service without a selector, where it leads, and the APIService that names it; TLS is not verified."""
    metadata = {"name": name, "namespace": namespace}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
    }
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }
    group, version = api
    registered = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": api_service(api)},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": name, "namespace": namespace, "port": 443},
        },
    }
    return service, slice_, registered
