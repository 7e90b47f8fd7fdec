"""Names that other objects, tools and people refer to: group, kind, labels, annotations, ports."""

from __future__ import annotations

from typing import Final

GROUP: Final = "llamaserver.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "LlamaServer"
PLURAL: Final = "llamaservers"
SINGULAR: Final = "llamaserver"
SHORT_NAME: Final = "lls"
CATEGORY: Final = "llm"

FIELD_MANAGER: Final = "llamaserver-operator"
"""The owner of every field the operator writes, by server-side apply."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
NAME_LABEL: Final = f"{GROUP}/name"
"""On every child: the name of its LlamaServer. With `MANAGED_BY_LABEL`, the selector of its pods."""

ENGINE_CONTAINER: Final = "vllm"
DOWNLOAD_CONTAINER: Final = "model-download"
ENGINE_PORT: Final = 8000
ENGINE_PORT_NAME: Final = "http"
ENGINE_TLS_PORT_NAME: Final = "https"
"""Of the same port, where the engine serves TLS: so each pod tells by itself how it is asked."""
SERVICE_PORT: Final = 80
SERVICE_TLS_PORT: Final = 443


def selector_labels(name: str) -> dict[str, str]:
    """The labels that select the engine pods of the LlamaServer `name`; never changed once a Deployment
    exists.
    """
    return {MANAGED_BY_LABEL: FIELD_MANAGER, NAME_LABEL: name}


def child_labels(name: str) -> dict[str, str]:
    """The labels of every object made for the LlamaServer `name`."""
    return {
        "app.kubernetes.io/name": SINGULAR,
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/part-of": SINGULAR,
        **selector_labels(name),
    }


def selector_text(name: str) -> str:
    """The selector as `status.selector` and `kubectl get -l` write it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector_labels(name).items()))
