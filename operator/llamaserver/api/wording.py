"""pydantic's findings in the words of whoever wrote the resource: the field's path, what to write, what
was there.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from llamaserver.api.errors import Problem


def alias_of(field: FieldInfo, name: str) -> str:
    """The name of a field on the wire."""
    return field.alias or name


def problem_of(detail: ErrorDetails, model: type[BaseModel]) -> Problem:
    """A finding of pydantic in `spec`, whose model is `model`, in the user's terms and with a cure."""
    loc = [part for part in detail["loc"] if not _is_union_arm(part)]
    return Problem(_path(loc), _message(detail, loc, model))


def _is_union_arm(part: int | str) -> bool:
    """pydantic names the arm of a union (`int`, `constrained-str`) in the location; users never wrote
    that.
    """
    return isinstance(part, str) and part in ("int", "str", "constrained-str", "[key]")


def _path(loc: list[int | str]) -> str:
    path = "spec"
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _message(detail: ErrorDetails, loc: list[int | str], model: type[BaseModel]) -> str:
    context: Mapping[str, Any] = detail.get("ctx", {})
    got = f"(got {json.dumps(detail['input'], default=str)[:80]})"
    kind = detail["type"]
    if kind == "missing":
        return "is required: set it"
    if kind == "extra_forbidden":
        return _unknown_field(loc, model)
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    words = {
        "int_type": "write a whole number",
        "float_type": "write a number",
        "bool_type": "write true or false",
        "string_type": "write text in quotes",
        "tuple_type": "write a list",
        "dict_type": "write a mapping",
        "model_type": "write a mapping of fields",
        "enum": f"write one of {context.get('expected')}",
        "greater_than": f"must be more than {context.get('gt')}",
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "less_than_equal": f"must be at most {context.get('le')}",
        "string_too_long": f"must have at most {context.get('max_length')} characters",
        "string_too_short": "must not be empty",
        "too_long": f"must have at most {context.get('max_length')} entries",
        "too_short": f"must have at least {context.get('min_length')} entry, or be left out",
    }
    return f"{words.get(kind, detail['msg'])} {got}"


def _unknown_field(loc: list[int | str], model: type[BaseModel]) -> str:
    """Say that a field does not exist, and which one was probably meant."""
    known = sorted(_fields_at(model, loc[:-1]))
    near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    return "is no field of this resource: " + (
        f"did you mean {near[0]}?" if near else f"the fields here are {', '.join(known)}"
    )


def _fields_at(model: type[BaseModel], loc: list[int | str]) -> set[str]:
    for part in loc:
        if isinstance(part, int):
            continue
        for name, field in model.model_fields.items():
            if alias_of(field, name) == part:
                model = _model_in(field.annotation) or model
    return {alias_of(field, name) for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (found := _model_in(inner)) is not None:
            return found
    return None
