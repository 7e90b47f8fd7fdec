"""What an engine can do beside generating text: adapters, templates, parsers, speculation. Each field stands
for flags of `vllm serve`, which may be given in extraArgs instead, but not as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field

from llamaserver.api.base import Group, KeyName, ObjectName, cel, rules
from llamaserver.api.managed import flag_name, pattern_of
from llamaserver.api.source import Uri

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

WORD: Final = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$"
WORD_CURE: Final = "write the name that vLLM uses: letters, digits, '_', '.' and '-'"

Word = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        json_schema_extra=rules(cel(f"self.matches({WORD!r})", WORD_CURE)),
    ),
]

MOST_ADAPTERS_AT_ONCE: Final = 8
CPU_LORAS_CURE: Final = "must be at least maxLoras: raise it, or lower maxLoras"
SAME_NAME_CURE: Final = "is a name of the model already: give the adapter another one"


class LoRAAdapter(Group):
    """One adapter, served under its own name."""

    name: ServedName = Field(description="Name that clients write as `model` to have this adapter.")
    uri: Uri = Field(
        description="Where its weights are, in the forms of spec.model.uri. An hf:// adapter is downloaded "
        "at the repository's default branch."
    )


class LoRASpec(Group):
    """LoRA adapters of the model."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.maxCpuLoras) || self.maxCpuLoras >= (has(self.maxLoras) ? self.maxLoras : "
                f"(self.adapters.size() < {MOST_ADAPTERS_AT_ONCE} ? self.adapters.size() : "
                f"{MOST_ADAPTERS_AT_ONCE}))",
                CPU_LORAS_CURE,
                ".maxCpuLoras",
            )
        )
    )

    adapters: tuple[LoRAAdapter, ...] = Field(
        min_length=1,
        max_length=64,
        description="The adapters (--lora-modules), loaded when an engine starts.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    max_loras: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Adapters that one batch can hold (--max-loras); requests for others wait, whatever the "
        "cap. Each takes accelerator memory. Default: all of them, at most 8.",
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = Field(
        default=None,
        description="Highest rank of an adapter (--max-lora-rank). Raise it when an engine says that an "
        "adapter's rank is greater. Default: 16.",
    )
    max_cpu_loras: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Adapters kept in the host's memory (--max-cpu-loras), at least maxLoras. Default: "
        "maxLoras.",
    )

    @property
    def at_once(self) -> int:
        """Adapters that one batch can hold."""
        return self.max_loras or min(len(self.adapters), MOST_ADAPTERS_AT_ONCE)


class ConfigMapKey(Group):
    """One key of a ConfigMap in the LlamaServer's namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    key: KeyName = Field(description="Key in it.")


class ChatTemplate(Group):
    """Where a chat template is."""

    config_map_key_ref: ConfigMapKey = Field(
        description="ConfigMap with the template, in Jinja. Engines read it when they start: give a changed "
        "template a ConfigMap of another name, and the pods roll."
    )


LOOKUP_CURE: Final = "must not be more than promptLookupMax: lower it, or raise promptLookupMax"


class SpeculativeConfig(Group):
    """Speculative decoding (--speculative-config)."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.promptLookupMin) || !has(self.promptLookupMax) || "
                "self.promptLookupMin <= self.promptLookupMax",
                LOOKUP_CURE,
                ".promptLookupMin",
            )
        )
    )

    method: Word = Field(
        description="How tokens are proposed, e.g. ngram, eagle3, mtp or draft_model; vLLM knows the list."
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="The proposing model, a repository on the hub or a path in the container, for the "
        "methods that need one. Default: none.",
    )
    num_speculative_tokens: int = Field(
        ge=1,
        le=64,
        description="Tokens proposed for each step and sequence. maxNumBatchedTokens must have room for "
        "maxNumSeqs times one more than these.",
    )
    prompt_lookup_max: int | None = Field(
        default=None, ge=1, le=1024, description="Longest n-gram, for method ngram. Default: vLLM's own."
    )
    prompt_lookup_min: int | None = Field(
        default=None, ge=1, le=1024, description="Shortest n-gram, for method ngram. Default: vLLM's own."
    )


class Twin(NamedTuple):
    """A field that stands for flags, by its path below spec. The flags are refused where the field is set."""

    path: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def cure(self) -> str:
        """The message of a refusal."""
        flags = " or ".join(self.flags)
        return f"{flags} cannot stand beside spec.{'.'.join(self.path)}: remove the flag, or the field"


TWINS: Final = (
    Twin(("engine", "toolCallParser"), ("--tool-call-parser", "--enable-auto-tool-choice")),
    Twin(("engine", "reasoningParser"), ("--reasoning-parser",)),
    Twin(("engine", "quantization"), ("--quantization", "-q")),
    Twin(("engine", "speculativeConfig"), ("--speculative-config", "-sc")),
    # vLLM puts its own connector in the place of one in --kv-transfer-config, without a word.
    Twin(
        ("engine", "kvOffloading"),
        ("--kv-offloading-size", "--kv-offloading-backend", "--kv-transfer-config"),
    ),
    Twin(("model", "chatTemplate"), ("--chat-template",)),
    Twin(
        ("model", "lora"),
        ("--enable-lora", "--lora-modules", "--max-loras", "--max-lora-rank", "--max-cpu-loras"),
    ),
)

TWIN_RULES: Final[tuple[dict[str, str], ...]] = tuple(
    cel(
        f"!has(self.{'.'.join(twin.path)}) || !has(self.engine.extraArgs) || "
        f"!self.engine.extraArgs.exists(a, a.matches({pattern_of(twin.flags)!r}))",
        twin.cure,
        ".engine.extraArgs",
    )
    for twin in TWINS
)


def given_twice(twin: Twin, arguments: tuple[str, ...]) -> Iterator[int]:
    """The places in extraArgs that say what the field of `twin` says."""
    for index, argument in enumerate(arguments):
        if flag_name(argument) in twin.flags:
            yield index


NAME_TAKEN: Final = cel(
    "!has(self.lora) || !has(self.servedNames) || "
    "!self.lora.adapters.exists(a, self.servedNames.exists(n, n == a.name))",
    f"the name of an adapter {SAME_NAME_CURE}",
    ".lora.adapters",
)
