"""The CRD's schema as a page to read: every field with its type, default, bounds and meaning, and what the
API server refuses, in the words of the rules. `docs/reference.md` holds what `reference` returns, and a test
compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from llamaserver.api import names
from llamaserver.api.base import PRESERVE
from llamaserver.api.crd import crd

FILE_NAME: Final = "reference.md"

_INTRO: Final = f"""\
<!-- Made by `llamaserver crd --markdown`; change the models in operator/llamaserver/api instead. -->

# Reference: every field of a {names.KIND}

`{names.GROUP}/{names.VERSION}`, kind `{names.KIND}`. Each section below is one object, and each row one of
its fields; nested objects have sections of their own. [resource.md](resource.md) is the guide: what the
fields are for, how they go together, and which of them make pods roll.
[status-reference.md](status-reference.md) says what conditions, reasons and causes mean.

Below a table stands what the API server refuses, in the words of its message. A field that is not here is
refused by kubectl, whose default is `--validate=strict`, and dropped where a client does not ask for that.
Where the operator alone can tell that something is wrong, the condition `Accepted` says so in the same form.
"""
_DEEPEST: Final = 6
"""Levels of headings that Markdown has."""
_LONG: Final = 6
"""A section with as many fields as another one that is alike refers to that one instead."""
_PLACE: Final = re.compile(r"(\[\]|\{\})$")
_DEFAULT: Final = re.compile(r"\s*\bDefault: (?P<default>.*?)(?:\.\s+(?=[A-Z])|\.?$)", re.S)
_UNITS: Final = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minProperties", "maxProperties", " entries"),
)

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Section:
    """An object of the schema that has fields of its own."""

    path: str
    node: Node
    meaning: str
    depth: int


def reference() -> str:
    """The page as a file holds it, in GitHub's Markdown."""
    (version,) = crd()["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    parts = [(part, root["properties"][part]) for part in ("spec", "status")]
    sections = [found for part, node in parts for found in _sections(part, node, node["description"], 2)]
    refusals = _refusals([("", root), *parts], {section.path for section in sections})
    pages = [_INTRO, _contents(sections), _name_section(refusals)]
    seen: dict[str, str] = {}
    for section in sections:
        twin = seen.setdefault(repr(section.node["properties"]), section.path)
        alike = twin != section.path and len(section.node["properties"]) >= _LONG
        pages.append(_page(section, refusals.get(section.path, []), twin if alike else None))
    return "\n".join(pages)


def _sections(path: str, node: Node, meaning: str, depth: int) -> Iterator[_Section]:
    if "properties" not in node:
        return
    yield _Section(path, node, meaning, depth)
    for name, field in node["properties"].items():
        inner, below = _inside(field, f"{path}.{name}")
        yield from _sections(below, inner, field["description"], depth + 1)


def _inside(field: Node, path: str) -> tuple[Node, str]:
    """What a list or a map holds, and its place; the field itself otherwise."""
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(field.get(key), Mapping):
            return field[key], path + mark
    return field, path


def _refusals(parts: list[tuple[str, Node]], sections: set[str]) -> dict[str, list[tuple[str, str]]]:
    """Places and messages of all rules, by the section that has the field at which the error points."""
    found: dict[str, list[tuple[str, str]]] = {}
    for part, node in parts:
        for place, rule in _rules(part, node) if part else _own_rules(part, node):
            owner = place if place in sections else _PLACE.sub("", place).rpartition(".")[0]
            messages = found.setdefault(owner, [])
            if (place, rule["message"]) not in messages:
                messages.append((place, rule["message"]))
    return found


def _own_rules(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield path + rule.get("fieldPath", ""), rule


def _rules(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    yield from _own_rules(path, node)
    for name, field in node.get("properties", {}).items():
        yield from _rules(f"{path}.{name}", field)
    inner, below = _inside(node, path)
    if inner is not node:
        yield from _rules(below, inner)


def _contents(sections: list[_Section]) -> str:
    lines = [f"{'  ' * (s.depth - 2)}- [`{s.path}`](#{_anchor(s.path)})" for s in sections]
    return "\n".join(["## Sections", "", *lines, ""])


def _name_section(refusals: dict[str, list[tuple[str, str]]]) -> str:
    lines = [f"- {_prose(message)}" for _, message in refusals.get("", [])]
    return "\n".join(["## `metadata`", "", "As in every Kubernetes object. Refused:", "", *lines, ""])


def _page(section: _Section, refusals: list[tuple[str, str]], twin: str | None) -> str:
    meaning, default = _split(section.meaning)
    lines = [f"{'#' * min(section.depth, _DEEPEST)} `{section.path}`", "", _prose(meaning)]
    if default:
        lines.append(f"Default: {_prose(default)}.")
    if twin is not None:
        return "\n".join([*lines, "", f"The same fields as [`{twin}`](#{_anchor(twin)}).", ""])
    lines += ["", *_table(section)]
    if section.node.get(PRESERVE):
        lines += ["", "All other fields are as Kubernetes has them, and are passed on."]
    if refusals:
        lines += ["", "Refused:", ""]
        lines += [f"- `{_PLACE.sub('', place)}`: {_prose(message)}" for place, message in refusals]
    return "\n".join([*lines, ""])


def _table(section: _Section) -> list[str]:
    told = section.path.startswith("status")
    rows = [
        f"| field | type | {'there' if told else 'default'} | bounds | meaning |",
        "|---|---|---|---|---|",
    ]
    required = section.node.get("required", ())
    for name, field in section.node["properties"].items():
        meaning, default = _split(field["description"])
        if told:
            first = section.node.get("default", {}).get(name)
            default = "always" if name in required else "when known" if first is None else f"{first} at first"
        else:
            default = "**required**" if name in required else _prose(default or "none")
        kind = _kind(field, f"{section.path}.{name}")
        rows.append(f"| `{name}` | {kind} | {default} | {_bounds(field)} | {_prose(meaning)} |")
    return rows


def _split(description: str) -> tuple[str, str]:
    """Meaning and default of a description, which names its default after `Default:`."""
    if (found := _DEFAULT.search(description)) is None:
        return description, ""
    rest = description[found.end() :].strip()
    return f"{description[: found.start()]} {rest}".strip(), found["default"]


def _kind(field: Node, path: str) -> str:
    inner, below = _inside(field, path)
    if "properties" in inner:
        kind = f"[object](#{_anchor(below)})"
    elif inner.get(PRESERVE):
        kind = "object, as in a pod"
    elif inner.get("x-kubernetes-int-or-string"):
        kind = "integer or string"
    else:
        kind = str(inner.get("format", inner["type"]))
    if "items" in field:
        return f"list: {kind}"
    return f"map: {kind}" if inner is not field else kind


def _bounds(field: Node) -> str:
    inner, _ = _inside(field, "")
    said = [*_own_bounds(field)]
    if field.get("x-kubernetes-list-type") == "set":
        said.append("each once")
    said += [f"each `{key}` once" for key in field.get("x-kubernetes-list-map-keys", ())]
    if inner is not field:
        said += [f"each {bound}" for bound in _own_bounds(inner)]
    return "; ".join(said)


def _own_bounds(node: Node) -> Iterator[str]:
    if "enum" in node:
        yield "one of " + ", ".join(f"`{word}`" for word in node["enum"])
    for low, high, unit in _UNITS:
        least, most = node.get(low), node.get(high)
        open_below, open_above = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
        if least is not None and most is not None and not (unit == "" and (open_below or open_above)):
            yield f"{least} to {most}{unit}"
            continue
        if least is not None:
            yield f"{'more than' if unit == '' and open_below else 'at least'} {least}{unit}"
        if most is not None:
            yield f"{'less than' if unit == '' and open_above else 'at most'} {most}{unit}"
    if "pattern" in node:
        yield f"matches `{_in_a_cell(node['pattern'])}`"


def _anchor(path: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^a-z0-9_-]", "", path.lower())


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _prose(text: str) -> str:
    """Text in which nothing but what stands in backticks is Markdown."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([\\*<\[])", r"\\\1", part) for part in parts[::2]]
    return _in_a_cell("`".join(parts))
