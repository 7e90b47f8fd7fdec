"""Where the pods may run."""

from __future__ import annotations

from typing import Any, Final

from llamaserver.api.names import selector_labels
from llamaserver.api.server import LlamaServer

SPREAD: Final = {
    "topologyKey": "kubernetes.io/hostname",
    "maxSkew": 1,
    "whenUnsatisfiable": "ScheduleAnyway",
}
"""A node that fails should not take all replicas; no pod waits for that."""


def placement(server: LlamaServer) -> dict[str, Any]:
    """The fields of a pod's spec that say where it may run."""
    given = server.spec.scheduling.to_dict() if server.spec.scheduling else {}
    ours = {"labelSelector": {"matchLabels": selector_labels(server.metadata.name)}}
    spreads = [{**spread, **ours} for spread in given.pop("topologySpreadConstraints", [SPREAD])]
    return {"topologySpreadConstraints": spreads, **given}
