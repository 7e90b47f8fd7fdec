"""The converter from models to structural schemas: it says what it can, and refuses the rest by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from llamaserver.api import SchemaError
from llamaserver.api.crd import FILE_NAME, crd, crd_yaml
from llamaserver.api.schema import structural_schema

REPOSITORY = Path(__file__).resolve().parents[2]

DESCRIBED = Field(description="d")
NAME = Annotated[str, Field(max_length=9)]


class Inner(BaseModel):
    word: Literal["on", "off"] = DESCRIBED
    share: float | None = Field(default=None, gt=0, lt=1, description="d")


class Outer(BaseModel):
    inner: Inner | None = Field(default=None, description="outer wins")
    names: tuple[NAME, ...] = Field(
        max_length=3, description="d", json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    labels: dict[str, NAME] | None = Field(default=None, max_length=4, description="d")
    one: Literal["only"] = DESCRIBED


def test_references_options_words_and_bounds_become_structural() -> None:
    schema = structural_schema(Outer)
    assert schema == {
        "type": "object",
        "required": ["names", "one"],
        "properties": {
            "inner": {
                "description": "outer wins",
                "type": "object",
                "required": ["word"],
                "properties": {
                    "word": {"description": "d", "type": "string", "enum": ["on", "off"]},
                    "share": {
                        "description": "d",
                        "type": "number",
                        "minimum": 0,
                        "exclusiveMinimum": True,
                        "maximum": 1,
                        "exclusiveMaximum": True,
                    },
                },
            },
            "names": {
                "description": "d",
                "type": "array",
                "items": {"type": "string", "maxLength": 9},
                "maxItems": 3,
                "x-kubernetes-list-type": "set",
            },
            "labels": {
                "description": "d",
                "type": "object",
                "additionalProperties": {"type": "string", "maxLength": 9},
                "maxProperties": 4,
            },
            "one": {"description": "d", "type": "string", "enum": ["only"]},
        },
    }


REFUSED: list[tuple[Any, Any, str]] = [
    (int | NAME, DESCRIBED, "a union of 2 types"),
    (Any, DESCRIBED, "no type that Kubernetes knows"),
    (set[NAME], Field(description="d", max_length=3), "uniqueItems"),
    (tuple[int, int], DESCRIBED, "prefixItems"),
    (dict[str, Any], Field(description="d", max_length=3), "a map needs a type for its values"),
    (str, DESCRIBED, "a text needs a maxLength"),
    (tuple[NAME, ...], Field(description="d", max_length=3), "x-kubernetes-list-type"),
    (tuple[NAME, ...], DESCRIBED, "a list needs maxItems"),
    (dict[str, NAME], DESCRIBED, "a map needs maxProperties"),
    (int, Field(), "has no description"),
    (float, Field(description="d", multiple_of=0.5), "multipleOf"),
    (NAME, Field(description="d", json_schema_extra={"x-mine": 1}), "x-mine"),
    (NAME, Field(description="d", json_schema_extra={"format": "colour"}), "does not know the format colour"),
]


@pytest.mark.parametrize(("kind", "field", "words"), REFUSED)
def test_what_cannot_be_said_is_refused_with_its_place(kind: Any, field: Any, words: str) -> None:
    model = type("Odd", (BaseModel,), {"__annotations__": {"value": kind}, "value": field})
    with pytest.raises(SchemaError, match=r"Odd\.value") as caught:
        structural_schema(model)
    assert words in str(caught.value)


def _nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from _nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _nodes(schema[key], f"{path}[]")


NODES = dict(
    node
    for part in ("spec", "status")
    for node in _nodes(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part], part)
)


def test_every_optional_field_says_what_it_is_when_left_out() -> None:
    """`kubectl explain` is the reference: unit, default and when to change it stand in the description."""
    silent = [
        f"{path}.{name}"
        for path, node in NODES.items()
        if path.startswith("spec")
        for name, field in node.get("properties", {}).items()
        if name not in node.get("required", ())
        and "Default:" not in field["description"]
        and not path.endswith(("valueFrom", "env[]"))
    ]
    assert silent == []


def test_the_api_server_fills_in_nothing_of_the_spec() -> None:
    """Of the spec; a status says from the first moment that nobody has seen the resource."""
    assert {path: node["default"] for path, node in NODES.items() if "default" in node} == {
        "status": {"observedGeneration": -1}
    }


def test_the_installed_file_is_what_the_models_say() -> None:
    stored = (REPOSITORY / "crds" / FILE_NAME).read_text()
    assert stored == crd_yaml(), f"crds/{FILE_NAME} is stale: renew it with `make crds`, and read the diff"


def test_the_schema_is_the_same_in_every_process() -> None:
    program = "from llamaserver.api.crd import crd_yaml; print(crd_yaml(), end='')"
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY / "operator")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] == crd_yaml()
