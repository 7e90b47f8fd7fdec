"""Where the engine may write, and what it reads."""

from __future__ import annotations

import math
from typing import Any, Final

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.offloading import GIB
from llamaserver.api.podtemplate import ADAPTER_PREFIX
from llamaserver.api.server import LlamaServer
from llamaserver.api.source import Scheme, Source
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.weights import is_downloaded_first
from llamaserver.desired.arguments import (
    ADAPTERS_MOUNT,
    CHAT_TEMPLATE_DIR,
    CHAT_TEMPLATE_FILE,
    adapter_volumes,
)
from llamaserver.desired.environment import CACHE_DIR, HOME_DIR, KEYS_DIR, TUNER_DIR
from llamaserver.desired.keys import keys_name
from llamaserver.desired.tls import tls_mounts, tls_volumes
from llamaserver.desired.weights import MODEL_MOUNT

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
    if effective.source.scheme in (Scheme.PVC, Scheme.OCI):
        made.append({"name": "model", **_carrier(effective.source)})
    elif is_downloaded_first(server.spec):
        # Holds nothing but the link to what was downloaded, which is this pod's own.
        made.append({"name": "model", "emptyDir": {"sizeLimit": "1Mi"}})
    for number, carrier in enumerate(adapter_volumes(server.spec)):
        made.append({"name": f"{ADAPTER_PREFIX}{number}", **_carrier(carrier)})
    if (template := server.spec.model.chat_template) is not None:
        ref = template.config_map_key_ref
        items = [{"key": ref.key, "path": CHAT_TEMPLATE_FILE}]
        made.append({"name": "chat-template", "configMap": {"name": ref.name, "items": items}})
    return [*made, *tls_volumes(server.spec)]


def mounts(spec: LlamaServerSpec, effective: EffectiveSpec) -> list[dict[str, Any]]:
    """Where the engine's container has them, all but the tuner."""
    made: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": CACHE_DIR},
        {"name": "tmp", "mountPath": HOME_DIR},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own
        {"name": "tuner-keys", "mountPath": KEYS_DIR, "readOnly": True},
    ]
    if effective.source.scheme in (Scheme.PVC, Scheme.OCI) or is_downloaded_first(spec):
        made.append({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True})
    for number, _ in enumerate(adapter_volumes(spec)):
        place = {"name": f"{ADAPTER_PREFIX}{number}", "mountPath": f"{ADAPTERS_MOUNT}/{number}"}
        made.append({**place, "readOnly": True})
    if spec.model.chat_template is not None:
        made.append({"name": "chat-template", "mountPath": CHAT_TEMPLATE_DIR, "readOnly": True})
    return [*made, *tls_mounts(spec)]


def tuner_mount() -> dict[str, Any]:
    """Where the tuner's files are found by Python."""
    return {"name": TUNER_VOLUME, "mountPath": TUNER_DIR, "readOnly": True}


def _carrier(source: Source) -> dict[str, Any]:
    """The volume that holds a model or adapters: a claim, or an image, which Kubernetes mounts read-only."""
    if source.scheme is Scheme.OCI:
        return {"image": {"reference": source.image}}
    return {"persistentVolumeClaim": {"claimName": source.claim, "readOnly": True}}


def _cache(server: LlamaServer) -> dict[str, Any]:
    cache = server.spec.model.cache
    if cache is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim.claim_name}}


def _shm_gib(effective: EffectiveSpec) -> int:
    """The workers' own, and the offloaded KV cache, which vLLM 0.32 keeps there. It is a limit and no
    reservation, so it costs nothing where a release keeps the cache elsewhere.
    """
    return SHM_GIB_PER_WORKER * effective.workers + math.ceil(effective.kv_offloading_bytes / GIB)
