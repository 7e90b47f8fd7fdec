"""LlamaServers of simulated engines, which start in seconds and leave the processor to others."""

from __future__ import annotations

from typing import Any

from cluster import lifecycle
from cluster.images import reference
from cluster.node import Node
from cluster.progress import Progress
from harness.fleet import Fleet
from harness.kube import Kube, Object
from harness.manifests import namespace

ENGINE = "engine-sim"
IMAGE = reference(ENGINE)
SMALL = {"requests": {"cpu": "20m", "memory": "64Mi"}}


def load_image() -> None:
    """Have the simulator's image on the node, as the checkout says now."""
    lifecycle.refresh_images([ENGINE], lifecycle.Options(), Node(), Progress())


def fleet(kube: Kube, name: str, in_namespace: str, target_ms: int) -> Fleet:
    """A fleet that is still to be declared, with its image on the node and its namespace there."""
    load_image()
    kube.apply(namespace(in_namespace))
    return Fleet(kube, name, in_namespace, IMAGE, None, target_ms)


def resource(fleet: Fleet, arguments: list[str], engine: Object | None = None, **changes: Any) -> Object:
    """The manifest of simulated engines with these arguments; `engine` is more of spec.engine, `changes` are
    for `Fleet.resource`.
    """
    made = fleet.resource(**changes)
    made["spec"]["engine"] |= {"extraArgs": arguments, "resources": SMALL, **(engine or {})}
    return made
