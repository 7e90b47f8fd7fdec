"""The Service in front of the engines."""

from __future__ import annotations

from llamaserver.api.names import ENGINE_PORT_NAME, SERVICE_PORT, selector_labels
from llamaserver.api.server import LlamaServer
from llamaserver.desired.objects import KubeObject, child


def service(server: LlamaServer) -> KubeObject:
    """Named like the LlamaServer. A ClusterIP does not balance by load; put a router in front where that
    matters.
    """
    port = {
        "name": ENGINE_PORT_NAME,
        "port": SERVICE_PORT,
        "targetPort": ENGINE_PORT_NAME,
        "protocol": "TCP",
        "appProtocol": "http",
    }
    name = server.metadata.name
    return child(server, "v1", "Service", name, spec={"selector": selector_labels(name), "ports": [port]})
