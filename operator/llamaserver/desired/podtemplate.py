"""What the user adds to the pods, merged as a strategic merge patch would be: lists of named things by name,
maps key by key, everything else replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llamaserver.api.podtemplate import PodTemplateSpec
from llamaserver.desired.lists import ITEM_KEYS

_Items = Sequence[Mapping[str, Any]]

_MERGED: Final = {"containers", "initContainers"}
"""Lists whose items are merged."""

_REPLACED: Final = {"volumes", "volumeMounts", "ports"}
"""Lists whose items take the place of one of the same name: two kinds of source in one volume are none."""


def merged(template: dict[str, Any], added: PodTemplateSpec | None) -> dict[str, Any]:
    """The pod template with what the user adds; the operator's own order is kept, what is new comes last."""
    return template if added is None else _mapping(template, added.to_dict())


def _mapping(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(ours)
    for key, value in theirs.items():
        made[key] = _value(key, ours.get(key), value)
    return made


def _value(key: str, ours: Any, theirs: Any) -> Any:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return _mapping(ours, theirs)
    if isinstance(ours, list) and isinstance(theirs, list) and key in _MERGED | _REPLACED:
        # The schema has seen to it that every item has its key; a port may be there by TCP and by UDP.
        return _items(ours, theirs, ITEM_KEYS[key][0], merge=key in _MERGED)
    return theirs


def _items(ours: _Items, theirs: _Items, key: str, *, merge: bool) -> list[Mapping[str, Any]]:
    given = {item[key]: item for item in theirs}
    known = {item[key] for item in ours}
    kept = [
        item if item[key] not in given else _mapping(item, given[item[key]]) if merge else given[item[key]]
        for item in ours
    ]
    return [*kept, *(item for item in theirs if item[key] not in known)]
