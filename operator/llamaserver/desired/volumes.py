"""Where the engine may write, and what it reads."""

from __future__ import annotations

from typing import Any, Final

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.model import Scheme
from llamaserver.api.server import LlamaServer
from llamaserver.desired.arguments import MODEL_MOUNT
from llamaserver.desired.environment import CACHE_DIR, HOME_DIR, KEYS_DIR, TUNER_DIR
from llamaserver.desired.keys import keys_name

TUNER_VOLUME: Final = "tuner"
SHM_GIB_PER_WORKER: Final = 2


def volumes(server: LlamaServer, effective: EffectiveSpec) -> list[dict[str, Any]]:
    """The pod's volumes, all but the tuner's."""
    made = [
        {"name": "cache", **_cache(server)},
        {"name": "tmp", "emptyDir": {}},
        # The container runtime's own /dev/shm holds 64 MB; vLLM's workers need more to start at all. It is a
        # limit and not a reservation, and what is used counts into the container's memory.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_shm_gib(effective)}Gi"}},
        {"name": "tuner-keys", "configMap": {"name": keys_name(server.metadata.name), "optional": True}},
    ]
    if effective.source.scheme is Scheme.PVC:
        claim = {"claimName": effective.source.claim, "readOnly": True}
        made.append({"name": "model", "persistentVolumeClaim": claim})
    return made


def mounts(effective: EffectiveSpec) -> list[dict[str, Any]]:
    """Where the engine's container has them, all but the tuner."""
    made: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": CACHE_DIR},
        {"name": "tmp", "mountPath": HOME_DIR},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own
        {"name": "tuner-keys", "mountPath": KEYS_DIR, "readOnly": True},
    ]
    if effective.source.scheme is Scheme.PVC:
        made.append({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True})
    return made


def tuner_mount() -> dict[str, Any]:
    """Where the tuner's files are found by Python."""
    return {"name": TUNER_VOLUME, "mountPath": TUNER_DIR, "readOnly": True}


def _cache(server: LlamaServer) -> dict[str, Any]:
    cache = server.spec.model.cache
    if cache is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim.claim_name}}


def _shm_gib(effective: EffectiveSpec) -> int:
    return SHM_GIB_PER_WORKER * effective.tensor_parallel_size
