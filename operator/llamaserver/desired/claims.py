"""Whether a cache can be shared by as many pods as there may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.server import LlamaServer


def claim_problem(server: LlamaServer, effective: EffectiveSpec, claim: Mapping[str, Any]) -> str | None:
    """Why the cache's PersistentVolumeClaim would keep a second replica from starting, with the cure; else
    None.

    ReadWriteOnce binds all pods to one node, where the next accelerator may not be; ReadWriteOncePod admits
    only one pod at all, so that not even a rollout can overlap.
    """
    cache = server.spec.model.cache
    if cache is None or (effective.max_replicas is not None and effective.max_replicas <= 1):
        return None
    modes = sorted(claim.get("spec", {}).get("accessModes", ()))
    if not modes or "ReadWriteMany" in modes:
        return None
    return (
        f"the claim {cache.persistent_volume_claim.claim_name} of spec.model.cache allows "
        f"{', '.join(modes)} alone, so replicas on other nodes cannot start: use a claim with ReadWriteMany, "
        "allow one replica, or remove spec.model.cache to give each pod its own"
    )
