"""Where weights come from: the URIs of models and adapters."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from llamaserver.api.base import cel, rules

_PATH: Final = "[A-Za-z0-9][A-Za-z0-9._/@+=-]*"

HF_URI: Final = r"^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
PVC_URI: Final = rf"^pvc://[a-z0-9][a-z0-9.-]*/{_PATH}$"
OCI_URI: Final = (
    r"^oci://(?P<image>[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)+"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]*|@sha256:[0-9a-f]+))"
    rf"(/(?P<path>{_PATH}))?$"
)
FILE_URI: Final = rf"^file:///{_PATH}$"
URI_CURE: Final = (
    "write hf://organisation/name, pvc://claim/path, oci://registry/image:tag/path or "
    "file:///path/in/the/image, e.g. hf://meta-llama/Llama-3.1-8B-Instruct"
)
NO_WAY_UP: Final = "write the path without '..'"


class Scheme(StrEnum):
    """Where the weights come from."""

    HF = "hf"
    PVC = "pvc"
    OCI = "oci"
    FILE = "file"


class Source(NamedTuple):
    """A URI taken apart: `claim` is set for pvc alone, `image` for oci alone; `path` is a repository for hf,
    absolute for file, and below the claim's or image's root for the others, where it may be empty for oci.
    """

    scheme: Scheme
    path: str
    claim: str = ""
    image: str = ""


_FORMS: Final = (HF_URI, PVC_URI, OCI_URI.replace("?P<image>", "").replace("?P<path>", ""), FILE_URI)

Uri = Annotated[
    str,
    Field(
        min_length=1,
        max_length=512,
        json_schema_extra=rules(
            cel(" || ".join(f"self.matches({form!r})" for form in _FORMS), URI_CURE),
            cel("!self.contains('/../') && !self.endsWith('/..')", NO_WAY_UP),
        ),
    ),
]


def parse_uri(uri: str) -> Source:
    """Take a URI apart. Raises ValueError, with the cure, for a form that is not known."""
    if "/../" in uri or uri.endswith("/.."):
        raise ValueError(NO_WAY_UP)
    if re.match(HF_URI, uri):
        return Source(Scheme.HF, uri.removeprefix("hf://"))
    if re.match(FILE_URI, uri):
        return Source(Scheme.FILE, uri.removeprefix("file://"))
    if re.match(PVC_URI, uri):
        claim, _, path = uri.removeprefix("pvc://").partition("/")
        return Source(Scheme.PVC, path, claim=claim)
    if found := re.match(OCI_URI, uri):
        return Source(Scheme.OCI, found["path"] or "", image=found["image"])
    raise ValueError(f"{URI_CURE} (got {uri!r})")


def own_name(source: Source) -> str:
    """What a model is called that has no other name: its repository, or the last part of its path or
    image.
    """
    if source.scheme is Scheme.HF:
        return source.path
    if source.path:
        return source.path.rstrip("/").rpartition("/")[2]
    return source.image.rpartition("/")[2].partition("@")[0].partition(":")[0]
