"""How this machine reaches its Python package index, handed on to uv and to image builds.

Nothing about an index is written in this repository: whatever pip is configured with here (files and PIP_*
variables) is read from pip itself.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from cluster.shell import run

UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""pip's options that uv knows by another name."""


def parse(listing: str) -> dict[str, str]:
    """Options by name from what `pip config list` prints; variables win over files, as they do in pip."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in sections:
            sections[section][option] = str(ast.literal_eval(value))
    return sections["global"] | sections["install"] | sections[":env:"]


def read(pip: Path) -> dict[str, str]:
    """The options in force for this user, asked of the given pip."""
    return parse(run([pip, "config", "list"]))


def for_uv(options: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that make uv behave as pip is configured to."""
    return {UV_VARIABLES[name]: value for name, value in options.items() if name in UV_VARIABLES}


def as_file(options: Mapping[str, str]) -> str:
    """The text of a pip.conf with the same options."""
    lines = [f"{name} = {' '.join(value.split())}" for name, value in sorted(options.items())]
    return "\n".join(["[global]", *lines, ""])


def paths(options: Mapping[str, str]) -> list[Path]:
    """Files and folders of this machine that the options speak of: certificates, folders of wheels."""
    words = [word for value in options.values() for word in value.split() if word.startswith("/")]
    return [path for path in dict.fromkeys(map(Path, words)) if path.exists()]
