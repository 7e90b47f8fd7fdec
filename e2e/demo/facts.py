"""Which machine and which versions the figures are about."""

from __future__ import annotations

import json

from demo.recording import Reading
from demo.report import Machine
from harness.kube import Kube, Object
from harness.machine import fast_dtype, processor


def machine(node: Object, *, local: bool) -> Machine:
    """The engine's node. The processor's name is known only when the node is this machine."""
    info, capacity = node["status"]["nodeInfo"], node["status"]["capacity"]
    memory_ki = int(str(capacity["memory"]).removesuffix("Ki"))
    return Machine(
        cpu=processor() if local else info["architecture"],
        cores=int(capacity["cpu"]),
        memory_gib=round(memory_ki / 2**20, 1),
        kernel=info["kernelVersion"],
        dtype=fast_dtype(),
    )


def versions(kube: Kube, reading: Reading) -> dict[str, str]:
    """Kubernetes, helm, vLLM and the tuner, as they say themselves."""
    server = json.loads(kube.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    helm = kube.helm("version", "--short").strip()
    return {"Kubernetes": server.removeprefix("v"), "helm": helm.removeprefix("v"), **reading.versions}
