"""The least that a HorizontalPodAutoscaler needs to decide by the operator's own metrics: an adapter, in this
process, that serves their sums as external metrics, as prometheus-adapter would from a Prometheus.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from cluster import pki
from cluster.node import Node
from harness import aggregated
from harness.kube import Kube, Object
from harness.listening import served
from harness.manifests import namespace
from harness.wait import until

NAME, PORT = "figures", 6445
GROUP, VERSION = aggregated.EXTERNAL_METRICS
ROOT = f"/apis/{GROUP}/{VERSION}"
AVAILABLE_S = 60.0

Read = Callable[[str], float]
"""The value of a metric, by its name."""


def summed(exposition: str, name: str, /, **labels: str) -> float:
    """The sum of the series of a metric that have these labels. Raises KeyError where there is none."""
    series = re.findall(rf"^{re.escape(name)}\{{(.*)\}}\s+(\S+)$", exposition, re.MULTILINE)
    found = [
        float(value)
        for written, value in series
        if labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', written)).items()
    ]
    if not found:
        raise KeyError(f"no series {name} with {labels}")
    return sum(found)


def answer(path: str, read: Read) -> tuple[HTTPStatus, Object]:
    """What is said at a path: what is there, or one metric of a namespace."""
    asked = urlsplit(path).path.rstrip("/")
    if asked == ROOT:
        resources: list[Object] = []
        return HTTPStatus.OK, {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{GROUP}/{VERSION}",
            "resources": resources,
        }
    found = re.fullmatch(rf"{ROOT}/namespaces/[^/]+/([^/]+)", asked)
    try:
        value = read(found[1]) if found else None
    except KeyError:
        value = None
    if found is None or value is None:
        return HTTPStatus.NOT_FOUND, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
    item = {
        "metricName": found[1],
        "metricLabels": {},
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "value": f"{round(value * 1000)}m",
    }
    kind = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
    return HTTPStatus.OK, {**kind, "items": [item]}


@contextmanager
def running(kube: Kube, folder: Path, read: Read) -> Iterator[None]:
    """Serve external metrics in the cluster until the end of the block. `folder` takes the certificate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, said = answer(self.path, read)
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    node = Node()
    pki.sign(folder, pki.Certificate("tls", f"/CN={NAME}", "serverAuth", "DNS:figures"), node.settings.pki)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    listener = context.wrap_socket(
        node.listen(node.settings.node_ip, PORT), server_side=True, do_handshake_on_connect=False
    )
    kube.apply(namespace(NAME))
    kube.apply(*aggregated.objects(NAME, NAME, aggregated.EXTERNAL_METRICS, node.settings.node_ip, PORT))
    name = aggregated.api_service(aggregated.EXTERNAL_METRICS)
    path = "jsonpath={.status.conditions[?(@.type=='Available')].status}"
    try:
        with served(listener, Handler):
            until(
                "the figures to be served",
                lambda: kube.kubectl("get", "apiservice", name, "-o", path) == "True",
                AVAILABLE_S,
            )
            yield
    finally:
        kube.kubectl("delete", "apiservice", name, "--ignore-not-found")
        kube.kubectl("delete", "namespace", NAME, "--ignore-not-found", timeout=120)


def autoscaler(name: str, in_namespace: str, *, most: int, metric: str, target: int) -> Object:
    """A HorizontalPodAutoscaler as a user writes it: one replica for every `target` of a metric's sum."""
    soon = {"stabilizationWindowSeconds": 15, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 5}]}
    wanted = {"type": "AverageValue", "averageValue": str(target)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": in_namespace},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "llamaserver.dev/v1alpha1",
                "kind": "LlamaServer",
                "name": name,
            },
            "minReplicas": 1,
            "maxReplicas": most,
            "metrics": [{"type": "External", "external": {"metric": {"name": metric}, "target": wanted}}],
            "behavior": {"scaleUp": soon, "scaleDown": soon},
        },
    }
