"""The resource itself, and the way in: `parse` takes what the API server holds and gives a typed
LlamaServer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llamaserver.api.errors import InvalidSpec, Problem
from llamaserver.api.names import API_VERSION, KIND
from llamaserver.api.rules import problems
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.status import Status
from llamaserver.api.wording import problem_of


class Metadata(BaseModel):
    """The part of an object's metadata that the operator reads. Unknown fields are Kubernetes' business."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    namespace: str = ""
    uid: str = ""
    generation: int = 0


class LlamaServer(BaseModel):
    """A LlamaServer that can be acted upon: parsed, and consistent in itself."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    metadata: Metadata
    spec: LlamaServerSpec
    status: Status = Status()


MAX_NAME_LENGTH: Final = 63
NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_CURE: Final = (
    "must have at most 63 characters, all a-z, 0-9 or '-', start with a letter and not end with '-': "
    "the Service has the same name"
)


def parse(obj: Mapping[str, Any]) -> LlamaServer:
    """The typed resource in `obj`, a plain object as the API server gives it.

    Raises InvalidSpec with every problem found, each with its field in the user's terms and the cure. The
    status is read kindly: parts that another version wrote differently are left out, they never make a
    resource invalid.
    """
    found = list(_identity(obj))
    metadata, spec = obj.get("metadata"), obj.get("spec")
    if not isinstance(spec, Mapping):
        found.append(Problem("spec", "is missing: give at least spec.model.uri and spec.engine.image"))
    if found or not isinstance(spec, Mapping):
        raise _invalid(found)
    try:
        parsed = LlamaServerSpec.model_validate_json(json.dumps(spec), strict=True)
    except ValidationError as error:
        raise _invalid([problem_of(detail, LlamaServerSpec) for detail in error.errors()]) from None
    if broken := list(problems(parsed)):
        raise _invalid(broken)
    return LlamaServer(
        metadata=Metadata.model_validate(metadata), spec=parsed, status=read_status(obj.get("status"))
    )


def read_status(status: object) -> Status:
    """The status in a resource. What does not fit this version's form is left out, and nothing beside it: a
    field of a later version costs this one nothing that it knows.
    """
    if not isinstance(status, Mapping):
        return Status()
    kept: dict[str, Any] = dict(status)
    while True:
        try:
            return Status.model_validate(kept)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
        # Without a field that it needs the whole of a group is left out.
        places = {one["loc"][: len(one["loc"]) - (one["type"] == "missing")] for one in found}
        fewer = _without(kept, places, ())
        if fewer == kept:
            fewer = _without(kept, {one["loc"][:1] for one in found}, ())
        if fewer == kept:
            return Status()
        kept = fewer


def _without(value: Any, places: set[tuple[int | str, ...]], here: tuple[int | str, ...]) -> Any:
    """A plain value without what stands at these places."""
    if isinstance(value, Mapping):
        return {
            key: _without(inner, places, (*here, key))
            for key, inner in value.items()
            if (*here, key) not in places
        }
    if isinstance(value, list | tuple):
        return [
            _without(inner, places, (*here, index))
            for index, inner in enumerate(value)
            if (*here, index) not in places
        ]
    return value


def _identity(obj: Mapping[str, Any]) -> Iterator[Problem]:
    if obj.get("apiVersion") != API_VERSION:
        yield Problem("apiVersion", f"must be {API_VERSION} (got {obj.get('apiVersion')!r})")
    if obj.get("kind") != KIND:
        yield Problem("kind", f"must be {KIND} (got {obj.get('kind')!r})")
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        yield Problem("metadata.name", "is missing: name the LlamaServer")
    elif len(name) > MAX_NAME_LENGTH or not re.fullmatch(NAME, name):
        yield Problem("metadata.name", NAME_CURE)


def _invalid(found: list[Problem]) -> InvalidSpec:
    first, *more = found
    return InvalidSpec(first.field, first.message, *more)
