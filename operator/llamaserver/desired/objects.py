"""What all children have in common: name, namespace, labels, and the owner with whom they go."""

from __future__ import annotations

from typing import Any

from llamaserver.api.names import API_VERSION, KIND, child_labels
from llamaserver.api.server import LlamaServer

KubeObject = dict[str, Any]
"""A Kubernetes object with the fields we own and no others, ready for server-side apply."""


def child(server: LlamaServer, api_version: str, kind: str, name: str, **content: Any) -> KubeObject:
    """An object owned by `server`. Without a uid (rendered, never stored) it names no owner."""
    owner = server.metadata
    metadata: KubeObject = {"name": name, "labels": child_labels(owner.name)}
    if owner.namespace:
        metadata["namespace"] = owner.namespace
    if owner.uid:
        metadata["ownerReferences"] = [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}
