"""What all groups of fields have in common, and the small types they are made of."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic.alias_generators import to_camel

DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
KEY: Final = r"^([-_a-zA-Z0-9]|[.][-_a-zA-Z0-9])[-._a-zA-Z0-9]*$"
QUALIFIED_NAME: Final = (
    r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
LABEL_VALUE: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

OBJECT_NAME_CURE: Final = (
    "write the name of an object: a-z, 0-9, '-' and '.', with a letter or digit first, last and beside each "
    "'.'"
)
PART_NAME_CURE: Final = "write a-z, 0-9 and '-', with a letter or digit first and last"
KEY_CURE: Final = "write a key of that object: letters, digits, '-', '_' and '.', not only dots in front"
LABEL_KEY_CURE: Final = (
    "write a label's key: at most 63 letters, digits, '-', '_' and '.', with a letter or digit first and "
    "last, and where it has one the prefix and a '/' in front, e.g. nvidia.com/gpu.product"
)
LABEL_VALUE_CURE: Final = (
    "write a label's value: at most 63 letters, digits, '-', '_' and '.', with a letter or digit first and "
    "last"
)


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


def formed(pattern: str, cure: str) -> AfterValidator:
    """The check of a text's form in `parse`: what `matching` is for the API server."""

    def check(value: str) -> str:
        if re.search(pattern, value) is None or "\n" in value:
            raise ValueError(f"{cure} (got {value!r})")
        return value

    return AfterValidator(check)


def matching(pattern: str, cure: str) -> dict[str, JsonValue]:
    """The CEL rule that a text has a form."""
    return rules(cel(f"self.matches({pattern!r})", cure))


ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253, json_schema_extra=matching(DNS_SUBDOMAIN, OBJECT_NAME_CURE)),
    formed(DNS_SUBDOMAIN, OBJECT_NAME_CURE),
]
"""The name of another object in the same namespace."""

PartName = Annotated[
    str,
    Field(min_length=1, max_length=63, json_schema_extra=matching(DNS_LABEL, PART_NAME_CURE)),
    formed(DNS_LABEL, PART_NAME_CURE),
]
"""The name of a part of a pod: a container, a volume."""

KeyName = Annotated[
    str,
    Field(min_length=1, max_length=253, json_schema_extra=matching(KEY, KEY_CURE)),
    formed(KEY, KEY_CURE),
]
"""A key inside a Secret or ConfigMap."""

LabelKey = Annotated[
    str,
    Field(min_length=1, max_length=316, json_schema_extra=matching(QUALIFIED_NAME, LABEL_KEY_CURE)),
    formed(QUALIFIED_NAME, LABEL_KEY_CURE),
]
"""The key of a label or a taint."""

LabelValue = Annotated[
    str,
    Field(max_length=63, json_schema_extra=matching(LABEL_VALUE, LABEL_VALUE_CURE)),
    formed(LABEL_VALUE, LABEL_VALUE_CURE),
]
"""The value of a label or a taint."""
