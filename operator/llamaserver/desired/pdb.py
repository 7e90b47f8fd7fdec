"""The PodDisruptionBudget: node drains take one engine at a time."""

from __future__ import annotations

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.names import selector_labels
from llamaserver.api.server import LlamaServer
from llamaserver.desired.objects import KubeObject, child


def disruption_budget(server: LlamaServer, effective: EffectiveSpec) -> KubeObject | None:
    """None where there can only be one replica, which a budget could not protect but only make immovable.

    Engines that are not ready never block a drain.
    """
    if effective.max_replicas is not None and effective.max_replicas <= 1:
        return None
    name = server.metadata.name
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector_labels(name)},
    }
    return child(server, "policy/v1", "PodDisruptionBudget", name, spec=spec)
