"""From nothing to a cluster that can be used, and back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cluster import binaries, engine, packages
from cluster.errors import ClusterError
from cluster.images import ImageSet, reference
from cluster.lock import exclusive
from cluster.node import Node
from cluster.progress import Progress
from cluster.settings import PACKAGE

MANIFESTS = PACKAGE / "manifests"
DNS_READY = "/api/v1/namespaces/kube-system/services/kube-dns:ready/proxy/ready"
"""CoreDNS's own word, asked through its Service; a Deployment's status may be of an earlier life."""


@dataclass(frozen=True)
class Options:
    """What `up` brings up."""

    engine: bool = True
    """Have the CPU engine: its environment, its image and its RuntimeClass."""
    full_engine_image: bool = False
    """Put the engine's environment into the image instead of mounting it."""


def up(options: Options = Options(), node: Node | None = None, progress: Progress | None = None) -> Node:
    """Bring up a node, or whatever of it is missing, and return it ready for use.

    Everything is looked at and nothing is done twice, so this also repairs a node that was stopped halfway,
    and after a change of the code it brings in the images that changed.
    """
    node, progress = node or Node(), progress or Progress()
    packages.check_host()
    with exclusive(_lock_file(node), progress):
        packages.ensure(progress)
        programs, environment = _programs(options, node, progress)
        images = ImageSet(node.settings, progress, programs, environment, options.full_engine_image)
        archives = {name: images.ensure(images.images[name]) for name in images.usual}
        booted = node.boot(environment)
        progress.say("started the node" if booted else "the node is up already")
        with progress.step("waiting for the node to be Ready"):
            node.wait_ready()
        _import(node, progress, archives)
        with progress.step("waiting for the cluster's DNS"):
            node.kubectl("apply", "--server-side", "-f", MANIFESTS / "coredns.yaml")
            if options.engine:
                node.kubectl("apply", "--server-side", "-f", MANIFESTS / "runtimeclass.yaml")
            node.wait_for(lambda: node.kubectl_says("get", "--raw", DNS_READY) == "OK", "the cluster's DNS")
    return node


def _programs(options: Options, node: Node, progress: Progress) -> tuple[Path, Path | None]:
    """What the node runs: Kubernetes, which has to be compiled, and the engine, which has to be downloaded.

    The two do not stand in each other's way, so they are had at the same time.
    """
    binaries.check(node.settings)
    with ThreadPoolExecutor(max_workers=1) as beside:
        downloading = beside.submit(engine.ensure, node.settings, progress) if options.engine else None
        programs = binaries.ensure(node.settings, progress)
        return programs, downloading.result() if downloading is not None else None


def down(node: Node | None = None, progress: Progress | None = None) -> None:
    """End the node and delete all it wrote; the cache stays."""
    node, progress = node or Node(), progress or Progress()
    packages.check_host()
    with (
        exclusive(_lock_file(node), progress),
        progress.step(f"ending the node and deleting {node.settings.state}"),
    ):
        node.destroy()


def refresh_images(names: list[str], options: Options, node: Node, progress: Progress) -> list[str]:
    """Build and import those of the named images (none: the usual) that changed; return their names."""
    with exclusive(_lock_file(node), progress):
        environment = engine.ensure(node.settings, progress) if options.engine else None
        images = ImageSet(node.settings, progress, node.programs, environment, options.full_engine_image)
        if unknown := set(names) - set(images.images):
            known = ", ".join(images.images)
            raise ClusterError(f"No image is called {', '.join(sorted(unknown))}; there are {known}.")
        archives = {name: images.ensure(images.images[name]) for name in names or images.usual}
        return _import(node, progress, archives)


def _import(node: Node, progress: Progress, archives: dict[str, Path]) -> list[str]:
    """Import the archives the node does not have yet; return their images' names."""
    record = node.settings.state / "imported.json"
    imported: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    new = [name for name, archive in archives.items() if imported.get(name) != archive.name]
    for name in new:
        with progress.step(f"importing {reference(name)}"):
            node.exec("ctr", "--namespace=k8s.io", "images", "import", archives[name])
        imported[name] = archives[name].name
        record.write_text(json.dumps(imported, indent=1))
    return new


def _lock_file(node: Node) -> Path:
    return Path("/run/lock", f"llamaserver-cluster-{node.settings.name}.lock")
