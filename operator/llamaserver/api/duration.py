"""Durations as people write them: a number and a unit, such as `50ms`, `1.5s` or `2m`."""

from __future__ import annotations

import math
import re
from typing import Any, Final, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from llamaserver.api.base import cel

PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"
MAX_LENGTH: Final = 16
CURE: Final = "write a positive number and one unit (ms, s, m or h), e.g. 50ms, 90s or 24h"

_PARTS: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds in `text`. Raises ValueError, with the cure, for anything but a positive number and a known
    unit.
    """
    found = _PARTS.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if found is None or float(found[1]) == 0:
        raise ValueError(f"{CURE} (got {text!r})")
    return float(found[1]) * _SECONDS[found[2]]


def format_duration(seconds: float) -> str:
    """`seconds` in three significant digits and the unit people would choose: 0.0412 -> 41.2ms, 90 -> 90s,
    300 -> 5m.

    Zero is `0s`. Raises ValueError for a negative or unbounded duration, which no status should ever show.
    """
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"not a duration: {seconds!r} seconds")
    if seconds == 0:
        return "0s"
    for unit, size, least in (("h", 3600.0, 7200.0), ("m", 60.0, 300.0), ("s", 1.0, 0.9995)):
        if seconds >= least and (unit == "s" or seconds % size == 0):
            return f"{_short(seconds / size)}{unit}"
    return f"{_short(seconds * 1e3)}ms"


def _short(number: float) -> str:
    """Three significant digits, all digits of larger whole numbers, no exponent and no idle zeros."""
    if number >= 100:
        return str(round(number))
    digits = max(0, 2 - math.floor(math.log10(number)))
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def bounded(field: str, relation: str, bound: Duration, message: str) -> dict[str, str]:
    """The CEL rule that the duration `field` of a group is `relation` (<= or >=) `bound`; silent where the
    text is no duration.
    """
    unread = f"!has(self.{field}) || !self.{field}.matches({PATTERN!r})"
    return cel(f"{unread} || duration(self.{field}) {relation} duration('{bound}')", message, f".{field}")


class Duration(str):
    """A positive duration that remembers how it was written: equal by text, with its length in `seconds`."""

    __slots__ = ("seconds",)

    seconds: float

    def __new__(cls, text: str) -> Self:
        """Raises ValueError, with the cure, when `text` is not a positive duration."""
        made = super().__new__(cls, text)
        made.seconds = parse_duration(text)
        return made

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def _validated(cls, value: object) -> Self:
        """A bare number is the commonest mistake; it gets the same answer as a number without a unit."""
        if not isinstance(value, str):
            raise ValueError(f"{CURE} (got {value!r})")
        return cls(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            "type": "string",
            "maxLength": MAX_LENGTH,
            "x-kubernetes-validations": [
                {"rule": f"self.matches({PATTERN!r}) && self.matches('[1-9]')", "message": CURE},
            ],
        }
