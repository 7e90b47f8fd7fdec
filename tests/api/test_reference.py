"""docs/reference.md is made from the schema: every field, every refusal, readable on GitHub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llamaserver.api.crd import crd
from llamaserver.api.reference import FILE_NAME, reference

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = reference()
SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def section(path: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"^#+ ", re.split(rf"^#+ `{re.escape(path)}`$", PAGE, flags=re.M)[1], flags=re.M)[0]


def cells(path: str, field: str) -> list[str]:
    """Type, default, bounds and meaning of a field."""
    (row,) = re.findall(rf"^\| `{field}` \|.*$", section(path), re.M)
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[2:-1]]


def groups(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if "properties" in node:
        yield path, node["properties"]
    for name, field in node.get("properties", {}).items():
        yield from groups(field, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(node.get(key), dict):
            yield from groups(node[key], path + mark)


def rules(node: dict[str, Any]) -> Iterator[str]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield rule["message"]
    for inner in node.get("properties", {}).values():
        yield from rules(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from rules(node[key])


def test_the_stored_page_is_what_the_models_say() -> None:
    stored = (DOCS / FILE_NAME).read_text()
    assert stored == PAGE, f"docs/{FILE_NAME} is stale: renew it with `make crds`, and read the diff"


def test_every_field_has_its_row_or_its_section_names_the_one_that_has() -> None:
    for part in ("spec", "status"):
        for path, fields in groups(SCHEMA["properties"][part], part):
            text = section(path)
            if twin := re.search(r"^The same fields as \[`(.*?)`\]", text, re.M):
                text = section(twin[1])
            assert re.findall(r"^\| `(\w+)` \|", text, re.M) == list(fields), path


def test_every_message_of_the_api_server_is_there() -> None:
    plain = PAGE.replace("\\", "")
    assert [message for message in rules(SCHEMA) if message.replace("\\", "") not in plain] == []


@pytest.mark.parametrize(
    ("path", "field", "kind", "default", "bounds"),
    [
        ("spec", "model", "[object](#specmodel)", "**required**", ""),
        ("spec", "replicas", "integer", "1 in mode Fixed; in mode External", "0 to 1000"),
        ("spec.engine", "gpuMemoryUtilization", "number", "vLLM's own (0.9", "more than 0; at most 1"),
        ("spec.engine", "env", "list: [object](#specengineenv)", "none", "each `name` once"),
        ("spec.engine.resources", "limits", "map: integer or string", "none", "at most 16 entries"),
        ("spec.engine.kvOffloading", "size", "integer or string", "**required**", "at most 32 characters"),
        ("spec.scaling", "mode", "string", "Auto", "one of `Auto`, `Recommend`, `Fixed`, `External`"),
        ("spec.scheduling.affinity", "podAffinity", "object, as in a pod", "none", ""),
        ("status", "observedGeneration", "integer", "-1 at first", "at least -1"),
        ("status.diagnosis", "since", "date-time", "when known", ""),
        ("status.conditions[]", "status", "string", "always", "one of `True`, `False`, `Unknown`"),
    ],
)
def test_a_row_says_type_default_and_bounds(
    path: str, field: str, kind: str, default: str, bounds: str
) -> None:
    said = cells(path, field)
    assert said[0] == kind
    assert said[1].startswith(default)
    assert bounds in said[2]
    assert said[3]
    assert "Default:" not in said[3]


def test_a_refusal_stands_where_its_field_is() -> None:
    """Also of a rule that the schema has at the top, for it compares two groups."""
    assert "- `spec.engine.maxNumBatchedTokens`: must be at least spec.engine.maxNumSeqs" in section(
        "spec.engine"
    )
    assert "- `spec.replicas`: is read only when" in section("spec")


def test_every_link_inside_the_page_leads_to_one_heading() -> None:
    headings = [
        re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", PAGE, re.M)
    ]
    assert len(set(headings)) == len(headings)
    assert set(re.findall(r"\]\(#(.*?)\)", PAGE)) <= set(headings)


def test_nothing_of_a_description_is_taken_for_markup() -> None:
    """An asterisk, a bracket or a tag outside of code would be read as one."""
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)|\*\*required\*\*|<!--.*?-->", "", PAGE)
    assert re.findall(r"(?<!\\)[*<].{0,20}", prose) == []
    assert all(line.count("`") % 2 == 0 for line in PAGE.splitlines())
