"""Which fields a schema has."""

from __future__ import annotations

from collections.abc import Iterator

from specs.mistake import Object


def leaves(schema: Object, path: str) -> Iterator[str]:
    """Paths of the fields that hold values; lists of objects are followed once, with `[]`."""
    for name, field in schema.get("properties", {}).items():
        below = field.get("items", field)
        inner = f"{path}.{name}" + ("[]" if below is not field else "")
        if "properties" in below:
            yield from leaves(below, inner)
        else:
            yield f"{path}.{name}"
