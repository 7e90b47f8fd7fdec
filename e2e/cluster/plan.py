"""What the supervisor runs: a list of programs, each with the condition it waits for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Component:
    """One program of the node."""

    name: str
    argv: tuple[str, ...]
    waits_for: str = ""
    """`unix://PATH` (someone listens there), `https://...` (answers 200 to the administrator), or empty."""


@dataclass(frozen=True)
class Plan:
    """All that the supervisor needs to know; it reads no other configuration."""

    name: str
    state: str
    node_address: str
    """Address with prefix length, such as 10.66.0.1/24."""
    service_cidr: str
    visible: tuple[str, ...]
    """Folders that have to stay where they are, even below a path the node puts a folder of its own on."""
    path: str
    """Value of PATH for every component."""
    components: tuple[Component, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def load(cls, file: Path) -> Plan:
        """Read what `to_json` wrote."""
        raw = json.loads(file.read_text())
        components = tuple(
            Component(item["name"], tuple(item["argv"]), item["waits_for"]) for item in raw.pop("components")
        )
        return cls(**{**raw, "visible": tuple(raw["visible"])}, components=components)
