"""spec.model: which weights are served, from where, under which names."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from llamaserver.api.base import Group, KeyName, ObjectName, cel, formed, matching, rules
from llamaserver.api.features import NAME_TAKEN, ChatTemplate, LoRASpec, ServedName
from llamaserver.api.source import Uri

ONLY_HF: Final = (
    "has a meaning for hf:// models only; remove it, or set spec.model.uri to hf://organisation/name"
)
NOTHING_FROM_HF: Final = (
    "has a meaning for models and adapters from hf:// only; remove it, or set spec.model.uri or an "
    "adapter's uri to hf://organisation/name"
)


REVISION: Final = r"^[^\s]+$"
REVISION_CURE: Final = "write a commit, tag or branch, without spaces"
Revision = Annotated[
    str,
    Field(min_length=1, max_length=256, json_schema_extra=matching(REVISION, REVISION_CURE)),
    formed(REVISION, REVISION_CURE),
]


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
        "compiling. An hf:// model is downloaded to it before the engine starts. Default: none, each "
        "pod has a cache of its own that ends with it."
    )


class ModelSpec(Group):
    """The model that is served."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            NAME_TAKEN,
            cel(
                "!has(self.revision) || self.uri.startsWith('hf://')",
                ONLY_HF,
                ".revision",
            ),
            cel(
                "!has(self.tokenSecretRef) || self.uri.startsWith('hf://') || (has(self.lora) && "
                "self.lora.adapters.exists(a, a.uri.startsWith('hf://')))",
                NOTHING_FROM_HF,
                ".tokenSecretRef",
            ),
        )
    )

    uri: Uri = Field(
        description="Where the weights are. hf://organisation/name is downloaded from the Hugging Face hub "
        "(or the mirror that HF_ENDPOINT in spec.engine.env names); pvc://claim/path is a "
        "directory on a PersistentVolumeClaim, oci://registry/image:tag/path one in an image that is "
        "mounted as a volume (Kubernetes 1.33 or newer), both read-only; file:///path is a directory "
        "inside the engine's image. A change rolls the pods.",
    )
    revision: Revision | None = Field(
        default=None,
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
        description="Secret with a Hugging Face token, for gated or private hf:// models and adapters. It "
        "reaches the engine and its download as the environment variable HF_TOKEN; the operator never "
        "reads it. Default: no token.",
    )
    lora: LoRASpec | None = Field(
        default=None,
        description="LoRA adapters that are served beside the model, each under its own name. Default: none. "
        "A change rolls the pods.",
    )
    chat_template: ChatTemplate | None = Field(
        default=None,
        description="Template that turns a conversation into a prompt (--chat-template). Default: the "
        "tokenizer's own. A change rolls the pods.",
    )
    cache: ModelCache | None = Field(
        default=None,
        description="Where downloads and compiled kernels outlive a pod. Set it when starts are slow. "
        "Default: a cache in each pod that ends with it. A change rolls the pods.",
    )
