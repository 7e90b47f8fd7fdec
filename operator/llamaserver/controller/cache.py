"""What the cluster looks like, as the watches told: trimmed objects by kind, and whom each change concerns.

The watches may lose a deletion while they are disconnected, so `reconcile_with` compares a kind with a fresh
list and drops what is gone. What was seen after that list began is kept: a list is a picture of the past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from llamaserver.api.names import ENGINE_CONTAINER, FIELD_MANAGER, MANAGED_BY_LABEL, NAME_LABEL
from llamaserver.api.podtemplate import DELETION_COST
from llamaserver.cluster.kinds import (
    CHILDREN,
    DEPLOYMENT,
    LLAMASERVER,
    POD,
    SCALE_DOWN_MANAGER,
    Kind,
    Object,
)
from llamaserver.controller.diff import HASH_ANNOTATION, digest
from llamaserver.controller.queue import Key
from llamaserver.controller.rollouts import CAUSE_ANNOTATION

WATCHED: tuple[Kind, ...] = (LLAMASERVER, *CHILDREN, POD)

TEMPLATE_DIGEST = "templateDigest"
"""In a Deployment that is kept here, beside what the API server has."""
_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "deletionTimestamp",
    "creationTimestamp",
    "labels",
    "ownerReferences",
)


_CONTAINER = ("name", "ready", "started", "restartCount", "state", "lastState")


class Cache:
    """Objects by kind, namespace and name. `monotonic` dates what was seen."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._objects: dict[Kind, dict[tuple[str, str], Object]] = {kind: {} for kind in WATCHED}
        self._seen: dict[tuple[Kind, str, str], float] = {}
        self._pods: dict[Key, set[str]] = {}

    def put(self, kind: Kind, obj: Object) -> Key | None:
        """Take in what a watch or a write told of an object, unless something newer is known of it.

        Returns whom it concerns: its owner, the one it had before when it has none now, or None.
        """
        known = self._objects[kind].get((obj["metadata"]["namespace"], obj["metadata"]["name"]))
        return None if known is not None and _is_older(obj, known) else self._store(kind, obj)

    def _store(self, kind: Kind, obj: Object) -> Key | None:
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        key, known = owner(kind, obj), self._objects[kind].get((namespace, name))
        before = None if known is None else owner(kind, known)
        if before is not None and before != key:
            self.drop(kind, namespace, name)
        if key is None:
            return before
        self._objects[kind][namespace, name] = trim(kind, obj)
        self._seen[kind, namespace, name] = self._monotonic()
        if kind is POD:
            self._pods.setdefault(key, set()).add(name)
        return key

    def drop(self, kind: Kind, namespace: str, name: str) -> Key | None:
        """Forget an object that is gone. Returns the LlamaServer it concerned."""
        obj = self._objects[kind].pop((namespace, name), None)
        self._seen.pop((kind, namespace, name), None)
        key = None if obj is None else owner(kind, obj)
        if kind is POD and key is not None:
            names = self._pods.get(key, set())
            names.discard(name)
            if not names:
                self._pods.pop(key, None)
        return key

    def reconcile_with(
        self, kind: Kind, listed: Iterable[Object], began: float, namespace: str | None = None
    ) -> set[Key]:
        """Make a kind equal to a list whose reading began at `began`. Returns the LlamaServers concerned.

        A list of one `namespace` says nothing of the others.
        """
        within = namespace
        concerned: set[Key] = set()
        present: set[tuple[str, str]] = set()
        for obj in listed:
            namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
            present.add((namespace, name))
            if self._seen.get((kind, namespace, name), began) > began:
                continue
            before = self._objects[kind].get((namespace, name))
            version = (before or {}).get("metadata", {}).get("resourceVersion")
            if (
                version != obj["metadata"].get("resourceVersion")
                and (key := self._store(kind, obj)) is not None
            ):
                concerned.add(key)
        gone = [
            entry
            for entry in self._objects[kind]
            if entry not in present and (within is None or entry[0] == within)
        ]
        for namespace, name in gone:
            if (
                self._seen[kind, namespace, name] <= began
                and (key := self.drop(kind, namespace, name)) is not None
            ):
                concerned.add(key)
        return concerned

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The trimmed object, or None."""
        return self._objects[kind].get((namespace, name))

    def server(self, key: Key) -> Object | None:
        """The LlamaServer as its author wrote it, status included."""
        return self._objects[LLAMASERVER].get(key)

    def servers(self) -> Iterator[Key]:
        """All LlamaServers."""
        return (Key(*entry) for entry in list(self._objects[LLAMASERVER]))

    def deployment(self, key: Key) -> Object | None:
        """The Deployment of a LlamaServer, which has its name."""
        return self._objects[DEPLOYMENT].get(key)

    def pods(self, key: Key) -> list[Object]:
        """The pods of a LlamaServer in order of their names, those that are ending included."""
        pods = self._objects[POD]
        found = (pods.get((key.namespace, name)) for name in sorted(self._pods.get(key, ())))
        return [pod for pod in found if pod is not None]


def owner(kind: Kind, obj: Object) -> Key | None:
    """The LlamaServer an object belongs to by its labels, or None when it is not the operator's."""
    metadata = obj["metadata"]
    if kind is LLAMASERVER:
        return Key(metadata["namespace"], metadata["name"])
    labels: dict[str, str] = metadata.get("labels") or {}
    if labels.get(MANAGED_BY_LABEL) != FIELD_MANAGER or not labels.get(NAME_LABEL):
        return None
    return Key(metadata["namespace"], labels[NAME_LABEL])


def _is_older(obj: Object, known: Object) -> bool:
    """Whether `obj` is an earlier state of the very object that is `known`.

    resourceVersions of one object are numbers that grow; others cannot be compared, and count as newer.
    """
    new, old = obj["metadata"], known["metadata"]
    if new.get("uid") != old.get("uid"):
        return False
    try:
        return int(new["resourceVersion"]) < int(old["resourceVersion"])
    except (KeyError, ValueError):
        return False


def trim(kind: Kind, obj: Object) -> Object:
    """What is kept of an object. A child's content is not: its generation or resourceVersion shows drift.
    Of a Deployment's pod template a digest is.
    """
    metadata = {field: obj["metadata"][field] for field in _METADATA if field in obj["metadata"]}
    kept: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    if kind is LLAMASERVER:
        return {**kept, "spec": obj.get("spec"), "status": obj.get("status") or {}}
    annotations: dict[str, str] = obj["metadata"].get("annotations") or {}
    names: tuple[str, ...] = (HASH_ANNOTATION, CAUSE_ANNOTATION)
    if kind is POD:
        names = (DELETION_COST,) if _wrote(SCALE_DOWN_MANAGER, obj) else ()
    if told := {name: annotations[name] for name in names if name in annotations}:
        metadata["annotations"] = told
    if kind is DEPLOYMENT:
        spec = obj.get("spec") or {}
        return {
            **kept,
            "spec": {"replicas": spec.get("replicas")},
            TEMPLATE_DIGEST: digest(spec.get("template") or {}),
            "status": obj.get("status") or {},
        }
    if kind is POD:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        return {**kept, "spec": {"containers": _engines_ports(spec)}, "status": _pod_status(status)}
    return kept


def _wrote(manager: str, obj: Object) -> bool:
    """Whether fields of an object are held by this field manager."""
    return any(entry.get("manager") == manager for entry in obj["metadata"].get("managedFields") or ())


def _engines_ports(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The engine's container with its ports, which tell how it is asked, and nothing else."""
    return [
        {"name": ENGINE_CONTAINER, "ports": container.get("ports") or []}
        for container in spec.get("containers") or ()
        if container.get("name") == ENGINE_CONTAINER
    ]


def _pod_status(status: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        field: status[field]
        for field in ("phase", "podIP", "conditions", "reason", "message")
        if field in status
    }
    for group in ("initContainerStatuses", "containerStatuses"):
        kept[group] = [
            {field: container[field] for field in _CONTAINER if field in container}
            for container in status.get(group) or ()
        ]
    return kept
