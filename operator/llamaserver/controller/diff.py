"""Is what we want already there? Compares the fields we own with a live object, as server-side apply would
see them.

Fields that only the live object has belong to others (defaults of the API server, an injected sidecar) and do
not count. List items are matched as server-side apply matches them, by the key their schema names.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from llamaserver.api.quantity import quantity_value
from llamaserver.cluster.kinds import Object
from llamaserver.desired.lists import item_key

HASH_ANNOTATION = "llamaserver.dev/desired-hash"
"""On children only: what they were last made from, so that a field we no longer want is noticed after a
restart.
"""


def digest(obj: Object) -> str:
    """A short digest of an object's content, independent of the order of its keys."""
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def mark_of(live: Object) -> str:
    """What a live child says it was last made from, or an empty text."""
    return str((live["metadata"].get("annotations") or {}).get(HASH_ANNOTATION) or "")


def fingerprint(live: Object) -> str:
    """Changes whenever anything of a live object changes that could be a field of ours.

    Status alone must not change it, so a kind that counts generations is known by that and its metadata.
    """
    metadata = live["metadata"]
    if "generation" not in metadata:
        return f"{metadata['uid']}/{metadata['resourceVersion']}"
    marks = {
        "labels": metadata.get("labels"),
        "owners": metadata.get("ownerReferences"),
        "made from": mark_of(live),
    }
    return f"{metadata['uid']}/{metadata['generation']}/{digest(marks)}"


def covers(live: Any, wanted: Any, field: str = "") -> bool:
    """True when every field of `wanted`, the value of `field`, has that value in `live`."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            _covers_field(live, key, value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and _covers_items(live, wanted, field)
    return _same(live, wanted)


def _covers_field(live: dict[str, Any], key: str, wanted: Any) -> bool:
    if key in live:
        return covers(live[key], wanted, key)
    # The API server drops empty containers and nulls.
    return wanted is None or wanted in ({}, [])


def _covers_items(live: list[Any], wanted: list[Any], field: str) -> bool:
    key = item_key(field, wanted) if wanted else None
    if key is None:
        return len(live) == len(wanted) and all(map(covers, live, wanted))
    by_key = {item[key]: item for item in live if isinstance(item, dict) and key in item}
    return all(item[key] in by_key and covers(by_key[item[key]], item) for item in wanted)


def _same(live: Any, wanted: Any) -> bool:
    if live == wanted and isinstance(live, bool) == isinstance(wanted, bool):
        return True
    if isinstance(live, bool) or isinstance(wanted, bool):
        return False
    if isinstance(live, int | float | str) and isinstance(wanted, int | float | str):
        try:
            return quantity_value(str(live)) == quantity_value(str(wanted))
        except ValueError:
            return False
    return False
