"""A plan's LlamaServer as text, with comments for what a plan cannot know."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from llamaserver.simulate.planning import Plan, manifest
from llamaserver.simulate.profiles import NO_MODEL, STOCK_IMAGE, Calibrated

_NO_MODEL = ("Put your model here: a profile given as figures names none",)
_GATED = (
    "A gated model: accept its licence on the hub, and name a Secret with a token of yours:",
    "tokenSecretRef:",
    "  name: hf-token # kubectl create secret generic hf-token --from-literal=HF_TOKEN=...",
)
_ANY_IMAGE = ("Put your vLLM image here, if it is another one",)
_BUILT = ("Build this image from images/engine-cpu, and name it as your registry does",)


def snippet(found: Plan) -> str:
    """The manifest as YAML, each line that needs a hand followed by comments of the same depth."""
    lines = yaml.safe_dump(manifest(found), sort_keys=False, width=10_000).splitlines()
    return "\n".join(told for line in lines for told in (line, *_remarks(line, found.calibrated)))


def _remarks(line: str, calibrated: Calibrated) -> Iterator[str]:
    depth = line[: len(line) - len(line.lstrip())]
    for remark in _about(line.strip().partition(":")[0], calibrated):
        yield f"{depth}# {remark}"


def _about(key: str, calibrated: Calibrated) -> tuple[str, ...]:
    """What to say of the field of this name; fields of a plan's manifest have names of their own."""
    if key == "uri":
        return _NO_MODEL if calibrated.model == NO_MODEL else _GATED if calibrated.gated else ()
    if key == "image" and calibrated.image != STOCK_IMAGE:
        return _BUILT
    if key == "image" and calibrated.model == NO_MODEL:
        return _ANY_IMAGE
    return ()
