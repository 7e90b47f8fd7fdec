"""The CRD's schema as JSON Schema, for who checks manifests without a cluster: kubeconform, editors.

It is as strict as `kubectl --validate=strict` about names and types, and as the CRD about bounds. CEL rules
and what the operator alone can say are not in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from llamaserver.api import names
from llamaserver.api.base import PRESERVE
from llamaserver.api.crd import crd

FILE_NAME: Final = f"{names.SINGULAR}_{names.VERSION}.json"
"""As kubeconform calls a resource by its kind and its version."""

_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_BOUNDS: Final = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


def json_schema() -> dict[str, Any]:
    """The schema of a LlamaServer, draft 7."""
    (version,) = crd()["spec"]["versions"]
    root = _converted(version["schema"]["openAPIV3Schema"])
    fields = root["properties"]
    fields["apiVersion"]["enum"] = [f"{names.GROUP}/{names.VERSION}"]
    fields["kind"]["enum"] = [names.KIND]
    fields["metadata"] = {"type": "object"}
    return {"$schema": _DIALECT, **root, "required": ["apiVersion", "kind", "metadata", "spec"]}


def json_schema_text() -> str:
    """The schema as a file holds it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _converted(node: Mapping[str, Any]) -> dict[str, Any]:
    """One node of OpenAPI's subset for CRDs: what Kubernetes would prune is refused, and what only it
    understands is left out.
    """
    made = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    if node.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    for bound, exclusive in _BOUNDS:
        if made.pop(exclusive, False):
            made[exclusive] = made.pop(bound)
    if "properties" in node:
        made["properties"] = {name: _converted(field) for name, field in node["properties"].items()}
        if not node.get(PRESERVE):
            made["additionalProperties"] = False
    for inner in ("items", "additionalProperties"):
        if isinstance(node.get(inner), Mapping):
            made[inner] = _converted(node[inner])
    return made
