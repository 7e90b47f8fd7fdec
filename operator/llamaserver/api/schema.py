"""pydantic models -> structural schemas, the strict subset of OpenAPI that Kubernetes takes for a CRD.

Fails closed: whatever the converter does not know, or the policy does not allow, is a SchemaError that names
the place. The policy, beyond what Kubernetes asks for:

- every field has a description, for `kubectl explain` is the reference;
- every text has a maxLength, every list a maxItems and a list type, every map a maxProperties: the cost of
  CEL rules is estimated from them, and no status can grow without bound;
- no defaults: what the API server fills in shows up as drift in GitOps tools. Defaults are resolved in code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from llamaserver.api.base import PRESERVE
from llamaserver.api.errors import SchemaError

Schema = dict[str, Any]

_SCALARS: Final = ("string", "integer", "number", "boolean")
_COPIED: Final = (
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "pattern",
    "format",
    "enum",
)
_KUBERNETES: Final = (
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-int-or-string",
    PRESERVE,
)
_RULES: Final = "x-kubernetes-validations"
_IGNORED: Final = ("title", "default", "$defs")
_HANDLED: Final = (
    "$ref",
    "anyOf",
    "type",
    "description",
    "properties",
    "required",
    "items",
    "additionalProperties",
    "const",
    "exclusiveMinimum",
    "exclusiveMaximum",
    _RULES,
)
_FORMATS: Final = ("date-time",)


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of a model, the same on every run.

    Raises SchemaError, with the place, for what cannot be said.
    """
    generated = model.model_json_schema(by_alias=True, mode="validation")
    return _Converter(generated.get("$defs", {})).convert(generated, model.__name__, top=True)


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def convert(self, node: Mapping[str, Any], place: str, *, top: bool = False) -> Schema:
        """Convert one node of pydantic's schema. Only the top and list items may lack a description."""
        node = self._resolved(node, place)
        unknown = sorted(set(node) - {*_COPIED, *_KUBERNETES, *_IGNORED, *_HANDLED})
        if unknown:
            raise SchemaError(f"{place}: no structural schema can say {', '.join(unknown)}")
        if not top and not node.get("description"):
            raise SchemaError(f"{place}: has no description, and `kubectl explain` is the reference")
        made: Schema = {}
        if node.get("description"):
            made["description"] = " ".join(node["description"].split())
        made |= self._typed(node, place)
        made |= {key: node[key] for key in (*_COPIED, *_KUBERNETES) if key in node}
        made |= _exclusive(node)
        if _RULES in node:
            made[_RULES] = node[_RULES]
        _check_policy(made, place)
        return made

    def _resolved(self, node: Mapping[str, Any], place: str) -> Schema:
        """Inline references and None-unions; what stands outside wins, rules are added up."""
        merged = dict(node)
        while "$ref" in merged or "anyOf" in merged:
            if "$ref" in merged:
                name = str(merged.pop("$ref")).rpartition("/")[2]
                inner: Mapping[str, Any] = self._definitions[name]
            else:
                arms = [arm for arm in merged.pop("anyOf") if arm != {"type": "null"}]
                if len(arms) != 1:
                    raise SchemaError(f"{place}: a union of {len(arms)} types is not structural")
                inner = arms[0]
            rules = [*inner.get(_RULES, ()), *merged.get(_RULES, ())]
            merged = {**inner, **merged, **({_RULES: rules} if rules else {})}
        if "const" in merged:
            merged["enum"] = [merged.pop("const")]
        return merged

    def _typed(self, node: Mapping[str, Any], place: str) -> Schema:
        kind = node.get("type")
        if node.get("x-kubernetes-int-or-string"):
            return {}
        if kind in _SCALARS:
            return {"type": kind}
        if kind == "array":
            return {"type": "array", "items": self._items(node, place)}
        if kind == "object":
            return {"type": "object", **self._members(node, place)}
        raise SchemaError(f"{place}: has no type that Kubernetes knows (type {kind!r})")

    def _items(self, node: Mapping[str, Any], place: str) -> Schema:
        if not isinstance(node.get("items"), Mapping):
            raise SchemaError(f"{place}: a list needs one type for all its items")
        return self.convert(node["items"], f"{place}[]", top=True)

    def _members(self, node: Mapping[str, Any], place: str) -> Schema:
        values = node.get("additionalProperties", False)
        if node.get(PRESERVE):
            # What else there is needs no schema: Kubernetes' own API checks it where it is used.
            if "properties" not in node:
                return {}
            values = False
        if "properties" not in node:
            if not isinstance(values, Mapping):
                raise SchemaError(f"{place}: a map needs a type for its values")
            return {"additionalProperties": self.convert(values, f"{place}{{}}", top=True)}
        if values is not False:
            raise SchemaError(f"{place}: known and unknown fields side by side are not structural")
        fields = {name: self.convert(field, f"{place}.{name}") for name, field in node["properties"].items()}
        required = [name for name in node["properties"] if name in node.get("required", ())]
        return {"properties": fields, **({"required": required} if required else {})}


def _exclusive(node: Mapping[str, Any]) -> Schema:
    """JSON Schema's exclusive bounds are numbers, OpenAPI 3.0's are flags beside the bound."""
    made: Schema = {}
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in node:
            made |= {bound: node[exclusive], exclusive: True}
    return made


def _check_policy(made: Schema, place: str) -> None:
    kind = made.get("type")
    if kind == "string" and "maxLength" not in made and "enum" not in made:
        raise SchemaError(f"{place}: a text needs a maxLength")
    if made.get("format") is not None and made["format"] not in _FORMATS:
        raise SchemaError(f"{place}: the API server does not know the format {made['format']}")
    if kind == "array":
        for needed in ("maxItems", "x-kubernetes-list-type"):
            if needed not in made:
                raise SchemaError(f"{place}: a list needs {needed}")
    if kind == "object" and "additionalProperties" in made and "maxProperties" not in made:
        raise SchemaError(f"{place}: a map needs maxProperties")
