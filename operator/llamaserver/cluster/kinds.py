"""The kinds of objects the operator touches, and how each is addressed in the Kubernetes API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llamaserver.api.names import FIELD_MANAGER, GROUP, KIND, PLURAL, VERSION

__all__ = ["FIELD_MANAGER", "Kind", "Object", "Objects", "kind_of"]

Object = dict[str, Any]
"""A Kubernetes object as the API server sends it."""

Objects = list[Object]
"""Several of them; a name of its own, for `Kube` has a method called list."""

SCALE_DOWN_MANAGER = f"{FIELD_MANAGER}-scale-down"
"""Field manager of what is written on pods."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One namespaced kind. `group` is empty for the core group."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        """`apiVersion` as objects of this kind carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of one object, of a namespace's collection, or (namespace None) of all of them."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part is not None]
        return "/".join(parts)


LLAMASERVER = Kind(GROUP, VERSION, KIND, PLURAL)
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
SERVICE = Kind("", "v1", "Service", "services")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
POD = Kind("", "v1", "Pod", "pods")
SECRET = Kind("", "v1", "Secret", "secrets")
CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENT = Kind("", "v1", "Event", "events")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")

CHILDREN = (DEPLOYMENT, SERVICE, CONFIG_MAP, POD_DISRUPTION_BUDGET)
"""What a LlamaServer owns directly; each is watched, so that drift is noticed."""

_ALL = (LLAMASERVER, *CHILDREN, POD, SECRET, EVENT, LEASE)
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in _ALL}


def kind_of(obj: Object) -> Kind:
    """The kind an object says it is of.

    Raises:
        KeyError: for a kind the operator has nothing to do with.
    """
    return _BY_NAME[str(obj["apiVersion"]), str(obj["kind"])]
