"""The certificate in the pod: where it is, how a renewed one is noticed, and how a missing one is told.

The kubelet replaces the files of a Secret by turning a symbolic link. What vLLM's --enable-ssl-refresh waits
for is a change of the file that the link led to when it began: that comes once, with the first renewal, after
which the file is gone and no later one is seen. So the library that it waits by (watchfiles) is told to look
at the files every few seconds instead.

The kubelet tells of a Secret that is missing in the pod's status where a variable is made of it, and nowhere
but in Events, which the operator does not read, where a volume is: such a pod would wait without a word. So
the volume may be empty, and the certificate, which is public, is a variable as well.
"""

from __future__ import annotations

from typing import Any, Final

from llamaserver.api.names import ENGINE_PORT_NAME, ENGINE_TLS_PORT_NAME
from llamaserver.api.spec import LlamaServerSpec

TLS_DIR: Final = "/etc/llamaserver/tls"
TLS_VOLUME: Final = "engine-tls"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
"""The keys of a Secret of type kubernetes.io/tls, which has both of them."""
CERTIFICATE_VARIABLE: Final = "LLAMASERVER_TLS_CERTIFICATE"
LOOK_MS: Final = 10_000
"""Milliseconds between two looks at the files; the kubelet itself takes up to two minutes."""
MODE: Final = 0o440
"""For the pod's own user, who is in the group that the kubelet gives the files to, and for no other."""


def port_name(spec: LlamaServerSpec) -> str:
    """What the engine's port is called."""
    return ENGINE_PORT_NAME if spec.engine.tls is None else ENGINE_TLS_PORT_NAME


def tls_environment(spec: LlamaServerSpec) -> list[dict[str, Any]]:
    """The variables of an engine that serves TLS."""
    if spec.engine.tls is None:
        return []
    ref = {"name": spec.engine.tls.secret_name, "key": CERTIFICATE}
    return [
        {"name": CERTIFICATE_VARIABLE, "valueFrom": {"secretKeyRef": ref}},
        {"name": "WATCHFILES_FORCE_POLLING", "value": "true"},
        {"name": "WATCHFILES_POLL_DELAY_MS", "value": str(LOOK_MS)},
    ]


def tls_volumes(spec: LlamaServerSpec) -> list[dict[str, Any]]:
    """The volume with certificate and key; other keys of the Secret stay out."""
    if spec.engine.tls is None:
        return []
    source = {
        "secretName": spec.engine.tls.secret_name,
        "items": [{"key": key, "path": key} for key in (CERTIFICATE, KEY)],
        "defaultMode": MODE,
        "optional": True,
    }
    return [{"name": TLS_VOLUME, "secret": source}]


def tls_mounts(spec: LlamaServerSpec) -> list[dict[str, Any]]:
    """Where the engine's container has it."""
    if spec.engine.tls is None:
        return []
    return [{"name": TLS_VOLUME, "mountPath": TLS_DIR, "readOnly": True}]
