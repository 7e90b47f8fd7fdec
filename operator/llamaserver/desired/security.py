"""Who the engine runs as.

Stock vLLM images name no user, so they would run as root. They run as well as any user once HOME and the
caches are writable, with two exceptions, which decide what is set here:

- The NVIDIA container runtime's hooks write links into the container's root before the engine starts, so the
  root file system stays writable where there is an accelerator. Without one it is read-only.
- Device nodes of other vendors (/dev/kfd, /dev/dri, /dev/vfio) belong to root and to groups whose numbers
  differ from node to node, and of a resource claim nobody can tell the vendor. There the image's own user
  stays, without capabilities and without a way to more privileges.

The first two kinds meet the Pod Security Standard `restricted`; the third meets `baseline`.
"""

from __future__ import annotations

from typing import Any, Final

from llamaserver.api.accelerator import AcceleratorSpec

USER_ID: Final = 65532
"""The user `nonroot` of common minimal images; it owns nothing in vLLM's."""

_SECCOMP: Final = {"type": "RuntimeDefault"}


def pod_security(accelerator: AcceleratorSpec | None) -> dict[str, Any]:
    """The pod's security context. `fsGroup` makes claims writable for the caches."""
    group = {"fsGroup": USER_ID, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": dict(_SECCOMP)}
    if accelerator is not None and not accelerator.is_nvidia:
        return group
    return {"runAsNonRoot": True, "runAsUser": USER_ID, "runAsGroup": USER_ID, **group}


def engine_security(accelerator: AcceleratorSpec | None) -> dict[str, Any]:
    """The engine container's security context."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": accelerator is None,
    }


def helper_security() -> dict[str, Any]:
    """The security context of a container of ours, which needs nothing at all."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
    }
