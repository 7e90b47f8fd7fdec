"""Whether a cache can be shared by as many pods as there may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.server import LlamaServer


def claim_problem(server: LlamaServer, effective: EffectiveSpec, claim: Mapping[str, Any]) -> str | None:
    """Why the cache's PersistentVolumeClaim would keep a second pod from starting, be it a replica or the
    additional pod of a rollout, with the cure; else None.

    ReadWriteOnce binds all pods to one node, where the next accelerator may not be; ReadWriteOncePod admits
    only one pod at all, so that not even a rollout can overlap.
    """
    cache = server.spec.model.cache
    alone = effective.max_replicas is not None and effective.max_replicas <= 1
    if cache is None or (alone and effective.max_surge == 0):
        return None
    modes = sorted(claim.get("spec", {}).get("accessModes", ()))
    if not modes or "ReadWriteMany" in modes:
        return None
    surge = "set spec.rollout.maxSurge: 0" if effective.max_surge else ""
    who = "the additional pod of a rollout cannot start" if alone else "replicas on other nodes cannot start"
    fewer = surge if alone else f"allow one replica and {surge}" if surge else "allow one replica"
    return (
        f"the claim {cache.persistent_volume_claim.claim_name} of spec.model.cache allows "
        f"{', '.join(modes)} alone, so {who}: {fewer}, use a claim with ReadWriteMany, or remove "
        "spec.model.cache to give each pod its own"
    )
