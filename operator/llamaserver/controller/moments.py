"""Times as Kubernetes writes them in a pod's status."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def moment(text: Any) -> datetime | None:
    """The time that a field holds; None for one that is absent or no time."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def transition(conditions: dict[str, Any], type_: str) -> datetime | None:
    """When the condition of this type last changed its status."""
    return moment((conditions.get(type_) or {}).get("lastTransitionTime"))


def latest(*moments: datetime | None) -> datetime | None:
    """The last of those that are known."""
    return max((one for one in moments if one is not None), default=None)
