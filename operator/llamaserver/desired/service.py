"""The Service in front of the engines."""

from __future__ import annotations

from typing import Any, Final

from llamaserver.api.names import (
    ENGINE_PORT_NAME,
    ENGINE_TLS_PORT_NAME,
    SERVICE_PORT,
    SERVICE_TLS_PORT,
    selector_labels,
)
from llamaserver.api.server import LlamaServer
from llamaserver.desired.objects import KubeObject, child

_PLAIN: Final = (ENGINE_PORT_NAME, SERVICE_PORT)
_TLS: Final = (ENGINE_TLS_PORT_NAME, SERVICE_TLS_PORT)


def service(server: LlamaServer) -> KubeObject:
    """Named like the LlamaServer. A ClusterIP does not balance by load; put a router in front where that
    matters.

    With TLS the plain port stays, for the pods from before it that a rollout has not come to yet: a Service
    finds a port by its name, pod by pod. Once they are gone no pod has one of that name, and it is refused.
    """
    ports = (_PLAIN,) if server.spec.engine.tls is None else (_TLS, _PLAIN)
    name = server.metadata.name
    spec = {"selector": selector_labels(name), "ports": [_port(*port) for port in ports]}
    return child(server, "v1", "Service", name, spec=spec)


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP", "appProtocol": name}
