"""Kubernetes resource quantities: a whole number, or text such as `500m`, `1.5`, `16Gi`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import PlainValidator, WithJsonSchema

CURE: Final = "write a Kubernetes quantity, e.g. 500m, 2 or 16Gi"

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


def _checked(quantity: object) -> int | str:
    if not isinstance(quantity, int | str) or isinstance(quantity, bool) or len(str(quantity)) > _MAX_LENGTH:
        raise ValueError(f"{CURE} (got {quantity!r})")
    if quantity_value(quantity) < 0:
        raise ValueError(f"{CURE}; it must not be negative (got {quantity!r})")
    return quantity


_SCHEMA: Final[dict[str, Any]] = {
    "x-kubernetes-int-or-string": True,
    "maxLength": _MAX_LENGTH,
    "x-kubernetes-validations": [
        {
            "rule": "type(self) == int ? self >= 0 : "
            "(isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('0')) >= 0)",
            "message": CURE,
        },
    ],
}

Quantity = Annotated[int | str, PlainValidator(_checked), WithJsonSchema(_SCHEMA)]
"""A non-negative quantity, kept as it was written."""
