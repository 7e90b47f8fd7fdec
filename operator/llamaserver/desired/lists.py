"""Lists in Kubernetes objects that are maps by nature, and the key by which their items are told apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ITEM_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "hostAliases": ("ip",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "port"),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey",),
}
"""By the name of the field that holds the list; ports of containers and of Services are told apart by
different keys. All other lists are compared as wholes.
"""


def item_key(field: str, *lists: list[Any]) -> str | None:
    """The key that tells the items of each of these lists apart; None where none does, as when one port is
    there by TCP and by UDP, or an item lacks its name.
    """
    for key in ITEM_KEYS.get(field, ()):
        if all(_tells_apart(key, items) for items in lists):
            return key
    return None


def _tells_apart(key: str, items: list[Any]) -> bool:
    names = [item.get(key) if isinstance(item, Mapping) else None for item in items]
    return all(isinstance(name, str | int) for name in names) and len(set(names)) == len(names)
