"""Kubernetes resource quantities: a whole number, or text such as `500m`, `1.5`, `16Gi`."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from llamaserver.api.base import cel, rules

CURE: Final = "write a Kubernetes quantity, e.g. 500m or 2"
MEMORY_CURE: Final = "write an amount of memory as a Kubernetes quantity, e.g. 512Mi or 16Gi"
LEAST_MEMORY: Final = "1Mi"
LEAST_CURE: Final = f"must be at least {LEAST_MEMORY}: write it with its unit, e.g. 16Gi"
NAME_CURE: Final = (
    "write cpu, memory, ephemeral-storage, hugepages-SIZE or the full name of what a device plugin offers, "
    "e.g. rdma/hca"
)

_FORM: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE]([+-]?[0-9]+))?"
)
_BINARY: Final = {
    unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}
_TENS: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SCALE: Final = _BINARY | {unit: Decimal(10) ** power for unit, power in _TENS.items()}
_MAX_EXPONENT: Final = 30
_MAX_LENGTH: Final = 32


def quantity_value(quantity: int | str) -> Decimal:
    """The number a quantity stands for: `500m` -> 0.5. Raises ValueError, with the cure, for what is not
    one.
    """
    found = _FORM.fullmatch(str(quantity))
    if found is None or abs(int(found[3] or 0)) > _MAX_EXPONENT:
        raise ValueError(f"{CURE} (got {quantity!r})")
    scale = Decimal(10) ** int(found[3]) if found[3] else _SCALE.get(found[2] or "", Decimal(1))
    return Decimal(found[1]) * scale


def format_bytes(count: int) -> str:
    """A number of bytes in the largest binary unit that writes it whole: 17179869184 -> `16Gi`."""
    for unit, scale in sorted(_BINARY.items(), key=lambda pair: -pair[1]):
        if count and count % int(scale) == 0:
            return f"{count // int(scale)}{unit}"
    return str(count)


def _check(cure: str) -> Callable[[object], int | str]:
    def check(quantity: object) -> int | str:
        if (
            not isinstance(quantity, int | str)
            or isinstance(quantity, bool)
            or len(str(quantity)) > _MAX_LENGTH
        ):
            raise ValueError(f"{cure} (got {quantity!r})")
        try:
            value = quantity_value(quantity)
        except ValueError:
            raise ValueError(f"{cure} (got {quantity!r})") from None
        if value < 0:
            raise ValueError(f"{cure}; it must not be negative (got {quantity!r})")
        return quantity

    return check


def _is_quantity(value: str) -> str:
    """CEL for: the int or text `value` is a quantity, and not negative."""
    return (
        f"(type({value}) == int ? {value} >= 0 : (isQuantity(string({value})) && "
        f"quantity(string({value})).compareTo(quantity('0')) >= 0))"
    )


_TYPE: Final[dict[str, Any]] = {"x-kubernetes-int-or-string": True, "maxLength": _MAX_LENGTH}

IS_MEMORY: Final = cel(_is_quantity("self"), MEMORY_CURE)

Memory = Annotated[int | str, PlainValidator(_check(MEMORY_CURE)), WithJsonSchema(_TYPE)]
"""An amount of memory, kept as it was written. A field of this type has `IS_MEMORY` among its rules: its own
rules take the place of a type's.
"""


def is_memory(resource: str) -> bool:
    """Whether a container's resource is counted in bytes."""
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def _checked(amounts: dict[str, int | str]) -> dict[str, int | str]:
    for name, amount in amounts.items():
        if not (is_memory(name) or name == "cpu" or "/" in name):
            raise ValueError(f"{NAME_CURE} (got {name!r})")
        try:
            _check(MEMORY_CURE if is_memory(name) else CURE)(amount)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if name == "memory" and 0 < quantity_value(amount) < quantity_value(LEAST_MEMORY):
            raise ValueError(f"memory {LEAST_CURE} (got {amount!r})")
    return amounts


_OF_MEMORY: Final = "(k == 'memory' || k == 'ephemeral-storage' || k.startsWith('hugepages-'))"
_ASKED: Final = "quantity(string(self['memory']))"
_AMOUNT_RULES: Final = rules(
    cel(f"self.all(k, {_OF_MEMORY} || k == 'cpu' || k.contains('/'))", NAME_CURE),
    cel(f"self.all(k, !{_OF_MEMORY} || {_is_quantity('self[k]')})", f"memory and storage: {MEMORY_CURE}"),
    cel(f"self.all(k, {_OF_MEMORY} || {_is_quantity('self[k]')})", f"cpu and devices: {CURE}"),
    cel(
        "!('memory' in self) || !isQuantity(string(self['memory'])) || "
        f"{_ASKED}.compareTo(quantity('0')) <= 0 || {_ASKED}.compareTo(quantity('{LEAST_MEMORY}')) >= 0",
        f"memory {LEAST_CURE}",
    ),
)

Amounts = Annotated[
    dict[str, Annotated[int | str, PlainValidator(lambda value: value), WithJsonSchema(_TYPE)]],
    Field(max_length=16, json_schema_extra=_AMOUNT_RULES),
    AfterValidator(_checked),
]
"""Amounts of a container's resources by their names, kept as they were written: the example that an error
gives fits the resource, so the map is checked and not each amount.
"""
