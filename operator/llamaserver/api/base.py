"""What all groups of fields have in common, and the small types they are made of."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic.alias_generators import to_camel

DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class Group(BaseModel):
    """A group of fields. Unknown fields are errors, values never change, and the wire's names are
    camelCase.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    def to_dict(self) -> dict[str, Any]:
        """The wire's form: camelCase names, plain values, nothing for what is absent."""
        dumped: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return dumped


PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


class Open(Group):
    """A group of which some fields are known here; all others are Kubernetes' own, and passed on as
    written.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra={PRESERVE: True})


Fragment = Annotated[dict[str, Any], WithJsonSchema({"type": "object", PRESERVE: True})]
"""A part of a pod whose content is Kubernetes' own: passed on as written, and checked by the API server."""


def cel(rule: str, message: str, field: str = "") -> dict[str, str]:
    """One CEL rule. `field`, such as `.replicas`, is where the error points, below the place of the rule."""
    return {**({"fieldPath": field} if field else {}), "message": message, "rule": rule}


def rules(*validations: dict[str, str]) -> dict[str, JsonValue]:
    """The CEL rules of a group or a field, for `json_schema_extra`."""
    return {"x-kubernetes-validations": [dict(rule) for rule in validations]}


ObjectName = Annotated[str, Field(min_length=1, max_length=253)]
"""The name of another object in the same namespace. The API server checks its form when the pods are made."""

KeyName = Annotated[str, Field(min_length=1, max_length=253)]
"""A key inside a Secret or ConfigMap."""
