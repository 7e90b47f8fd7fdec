"""spec.model: which weights are served, from where, under which names."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pydantic import ConfigDict, Field

from llamaserver.api.base import Group, KeyName, ObjectName, cel, rules

HF_URI: Final = r"^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
PVC_URI: Final = r"^pvc://[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._/@+=-]*$"
FILE_URI: Final = r"^file:///[A-Za-z0-9][A-Za-z0-9._/@+=-]*$"
URI_CURE: Final = (
    "write hf://organisation/name, pvc://claim/path or file:///path/in/the/image"
    ", e.g. hf://meta-llama/Llama-3.1-8B-Instruct"
)
ONLY_HF: Final = (
    "has a meaning for hf:// models only; remove it, or set spec.model.uri to hf://organisation/name"
)


class Scheme(StrEnum):
    """Where the weights come from."""

    HF = "hf"
    PVC = "pvc"
    FILE = "file"


class Source(NamedTuple):
    """A model URI taken apart: `claim` is set for pvc alone; `path` is a repository for hf, absolute for
    file.
    """

    scheme: Scheme
    path: str
    claim: str = ""


class SecretKey(Group):
    """One key of a Secret in the LlamaServer's namespace."""

    name: ObjectName = Field(description="Name of the Secret, in the namespace of the LlamaServer.")
    key: KeyName = Field(
        default="HF_TOKEN", description="Key in the Secret that holds the token. Default: HF_TOKEN."
    )


class ClaimName(Group):
    """A PersistentVolumeClaim by name."""

    claim_name: ObjectName = Field(
        description="Name of a PersistentVolumeClaim in the namespace of the LlamaServer. With more than one "
        "replica on more than one node it must allow ReadWriteMany."
    )


class ModelCache(Group):
    """Where downloads and compiled kernels outlive a pod."""

    persistent_volume_claim: ClaimName = Field(
        description="The claim that holds downloaded weights (HF_HOME) and vLLM's compiled kernels "
        "(VLLM_CACHE_ROOT), so that a new pod starts without the download and without "
        "compiling. Default: none, each pod has a cache of its own that ends with it."
    )


SERVED_NAME: Final = r"^[A-Za-z0-9][^\s]*$"
SERVED_NAME_CURE: Final = (
    "write a name without spaces that starts with a letter or digit: vLLM takes -x for a flag"
)

ServedName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        json_schema_extra=rules(cel(f"self.matches({SERVED_NAME!r})", SERVED_NAME_CURE)),
    ),
]


class ModelSpec(Group):
    """The model that is served."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.revision) || self.uri.startsWith('hf://')",
                ONLY_HF,
                ".revision",
            ),
            cel(
                "!has(self.tokenSecretRef) || self.uri.startsWith('hf://')",
                ONLY_HF,
                ".tokenSecretRef",
            ),
        )
    )

    uri: str = Field(
        min_length=1,
        max_length=512,
        description="Where the weights are. hf://organisation/name is downloaded from the Hugging Face hub "
        "(or the mirror that HF_ENDPOINT in spec.engine.env names); pvc://claim/path is a "
        "directory on a PersistentVolumeClaim, mounted read-only; file:///path is a directory "
        "inside the engine's image. A change rolls the pods.",
        json_schema_extra=rules(
            cel(
                f"self.matches({HF_URI!r}) || self.matches({PVC_URI!r}) || self.matches({FILE_URI!r})",
                URI_CURE,
            ),
            cel("!self.contains('/../') && !self.endsWith('/..')", "write the path without '..'"),
        ),
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Commit, tag or branch of an hf:// model. Write the 40-digit commit to have every pod "
        "serve the same weights, whatever is pushed later. Default: the repository's default "
        "branch at each pod's start. A change rolls the pods.",
    )
    served_names: tuple[ServedName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="Names that clients may write as `model` in their requests; the first is also the "
        "model_name label of vLLM's metrics. Default: organisation/name for hf://, else the "
        "last part of the path. A change rolls the pods.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    token_secret_ref: SecretKey | None = Field(
        default=None,
        description="Secret with a Hugging Face token, for gated or private hf:// models. It reaches the "
        "engine as the environment variable HF_TOKEN; the operator never reads it. Default: no "
        "token.",
    )
    cache: ModelCache | None = Field(
        default=None,
        description="Where downloads and compiled kernels outlive a pod. Set it when starts are slow. "
        "Default: a cache in each pod that ends with it. A change rolls the pods.",
    )


def parse_uri(uri: str) -> Source:
    """Take a model URI apart. Raises ValueError, with the cure, for a form that is not known."""
    if "/../" in uri or uri.endswith("/.."):
        raise ValueError("write the path without '..'")
    if re.match(HF_URI, uri):
        return Source(Scheme.HF, uri.removeprefix("hf://"))
    if re.match(FILE_URI, uri):
        return Source(Scheme.FILE, uri.removeprefix("file://"))
    if re.match(PVC_URI, uri):
        claim, _, path = uri.removeprefix("pvc://").partition("/")
        return Source(Scheme.PVC, path, claim)
    raise ValueError(f"{URI_CURE} (got {uri!r})")
