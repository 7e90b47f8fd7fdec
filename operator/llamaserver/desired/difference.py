"""The reason for a rollout, as a value: the first thing in which two objects differ, as text for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from llamaserver.api.names import FIELD_MANAGER
from llamaserver.api.quantity import quantity_value
from llamaserver.desired.lists import item_key

ABSENT: Final = "(absent)"
LONGEST_VALUE: Final = 160

_QUANTITIES: Final = re.compile(r"\.(limits|requests|sizeLimit)([.\[]|$)")
"""Where quantities stand: under these keys, whose own keys may hold dots (`limits[nvidia.com/gpu]`)."""

Owned = Mapping[str, Any] | None
"""The part of managedFields that is about the place compared; None where everything is taken for ours."""

_EVERYTHING: Final[Owned] = None
_NOTHING: Final[Mapping[str, Any]] = {}


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first difference, such as `spec.replicas: 2 -> 3`; empty when applying `new` over `old` changes
    nothing.

    `old` is an object as it was built before, or as the API server has it: then what others added to it
    (defaults, injected sidecars) is no difference, which its managedFields tell. The pod template comes
    first, for it is what makes pods roll.
    """
    fields = old.get("metadata", {}).get("managedFields")
    owned = _EVERYTHING if fields is None else _ours(fields)
    template = ("spec", "template")
    below = _descend(owned, *template)
    for line in _differences("spec.template", _at(old, *template), _at(new, *template), below):
        return line
    for key in new:
        for line in _differences(key, old.get(key), new[key], _descend(owned, key)):
            return line
    return ""


def differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """Every difference between two plain values at `path`, each as `path: old -> new`."""
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        old, new = old or {}, new or {}
    yield from _differences(path, old, new, _EVERYTHING)


def _ours(managed_fields: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for entry in managed_fields:
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply":
            fields: Mapping[str, Any] = entry.get("fieldsV1", {})
            return fields
    return _NOTHING


def _at(obj: Mapping[str, Any], *path: str) -> Any:
    found: Any = obj
    for key in path:
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    return found


def _descend(owned: Owned, *path: str) -> Owned:
    for key in path:
        if owned is None:
            return None
        owned = owned.get(f"f:{key}", _NOTHING)
    return owned


def _differences(path: str, old: Any, new: Any, owned: Owned) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _in_mapping(path, old, new, owned)
    elif _listed(old) and _listed(new) and not (old is None and new is None):
        yield from _in_list(path, old or [], new or [], owned)
    elif not _same(path, old, new):
        yield f"{path}: {_text(old)} -> {_text(new)}"


def _listed(value: Any) -> bool:
    """A list, or none, which is told item by item as well."""
    return value is None or isinstance(value, list)


def _in_mapping(path: str, old: Mapping[str, Any], new: Mapping[str, Any], owned: Owned) -> Iterator[str]:
    for key, value in new.items():
        yield from _differences(_join(path, key), old.get(key), value, _descend(owned, key))
    for key, value in old.items():
        if key not in new and not _empty(value) and (owned is None or f"f:{key}" in owned):
            yield f"{_join(path, key)}: {_text(value)} -> {ABSENT}"


def _in_list(path: str, old: list[Any], new: list[Any], owned: Owned) -> Iterator[str]:
    key = item_key(path.rpartition(".")[2], old, new)
    if key is None:
        yield from _in_plain_list(path, old, new)
        return
    before = {item[key]: item for item in old}
    after = {item[key]: item for item in new}
    for name, item in after.items():
        if name not in before:
            yield f"{path}[{name}]: {ABSENT} -> {_text(item)}"
        else:
            yield from _differences(f"{path}[{name}]", before[name], item, _item(owned, item))
    for name, item in before.items():
        if name not in after and (owned is None or _item(owned, item) is not _NOTHING):
            yield f"{path}[{name}]: {_text(item)} -> {ABSENT}"


def _in_plain_list(path: str, old: list[Any], new: list[Any]) -> Iterator[str]:
    """For lists of words only the words that changed; items of objects are compared one by one."""
    if all(isinstance(item, Mapping) for item in (*old, *new)) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            # What the API server filled in cannot be told from what is ours inside such an item: only what we
            # want is looked at.
            yield from _differences(f"{path}[{index}]", before, after, _NOTHING)
    elif old != new:
        gone = [item for item in old if item not in new]
        come = [item for item in new if item not in old]
        same_words = not gone and not come
        before, after = (old, new) if same_words else (gone, come)
        yield f"{path}: {_words(before)} -> {_words(after)}"


def _item(owned: Owned, item: Mapping[str, Any]) -> Owned:
    """The part of managedFields about a list item, whose key there is the JSON of its key fields."""
    if owned is None:
        return None
    for name, fields in owned.items():
        if name.startswith("k:") and all(item.get(k) == v for k, v in json.loads(name[2:]).items()):
            found: Owned = fields
            return found
    return _NOTHING


def _same(path: str, old: Any, new: Any) -> bool:
    if old == new or (_empty(old) and _empty(new)):
        return True
    if _QUANTITIES.search(path) and _is_quantity(old) and _is_quantity(new):
        # The API server writes quantities its own way: 1000m comes back as 1.
        return quantity_value(old) == quantity_value(new)
    return False


def _is_quantity(value: Any) -> bool:
    try:
        quantity_value(value)
    except ValueError:
        return False
    return True


def _empty(value: Any) -> bool:
    return value is None or value in ({}, [], "")


def _join(path: str, key: str) -> str:
    return f"{path}[{key}]" if "." in key or "/" in key else f"{path}.{key}"


def _words(items: list[Any]) -> str:
    return " ".join(map(_text, items)) or ABSENT


def _text(value: Any) -> str:
    if value is None:
        return ABSENT
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
