"""spec.engine: the container that serves, and what it starts with."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from llamaserver.api.base import Group, KeyName, ObjectName, cel, formed, matching, rules
from llamaserver.api.features import SpeculativeConfig, Word
from llamaserver.api.managed import ENV_RULES, EXTRA_ARGS_RULES
from llamaserver.api.offloading import KVOffloading
from llamaserver.api.quantity import Amounts
from llamaserver.api.tls import TLSSpec

ENV_NAME: Final = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
ENV_NAME_CURE: Final = "write letters, digits, '_', '-' and '.', with no digit in front"
IMAGE_CURE: Final = "write an image reference, without spaces"
Argument = Annotated[str, Field(max_length=8192)]
PLUGIN_NAME: Final = r"^[A-Za-z0-9_.-]+$"
PLUGIN_NAME_CURE: Final = "write the name of the plugin's entry point: letters, digits, '_', '.' and '-'"

PluginName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        json_schema_extra=rules(cel(f"self.matches({PLUGIN_NAME!r})", PLUGIN_NAME_CURE)),
    ),
]


class ImagePullPolicy(StrEnum):
    """When the kubelet pulls the engine's image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class KeyRef(Group):
    """One key of a Secret or a ConfigMap in the LlamaServer's namespace."""

    name: ObjectName = Field(description="Name of the object, in the namespace of the LlamaServer.")
    key: KeyName = Field(description="Key inside the object.")
    optional: bool | None = Field(
        default=None,
        description="Whether the pod may start without it. Default: false, the pod waits for it.",
    )


FIELD_PATH: Final = (
    r"^(metadata[.](name|namespace|uid|(labels|annotations)\['[^']+'\])|spec[.](nodeName|serviceAccountName)"
    r"|status[.](hostIPs?|podIPs?))$"
)
FIELD_PATH_CURE: Final = (
    "write a field that a variable can have: metadata.name, metadata.namespace, metadata.uid, "
    "metadata.labels['KEY'], metadata.annotations['KEY'], spec.nodeName, spec.serviceAccountName, "
    "status.hostIP, status.hostIPs, status.podIP or status.podIPs"
)
FieldPath = Annotated[
    str,
    Field(min_length=1, max_length=256, json_schema_extra=matching(FIELD_PATH, FIELD_PATH_CURE)),
    formed(FIELD_PATH, FIELD_PATH_CURE),
]


class FieldRef(Group):
    """One field of the pod."""

    field_path: FieldPath = Field(
        description="Path of the field, e.g. status.hostIP, spec.nodeName or metadata.labels['team']."
    )


ONE_SOURCE: Final = "set exactly one of secretKeyRef, configMapKeyRef and fieldRef"


class EnvSource(Group):
    """Where a variable's value comes from: exactly one of the three."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)]"
                ".filter(given, given).size() == 1",
                ONE_SOURCE,
            )
        )
    )

    secret_key_ref: KeyRef | None = Field(default=None, description="A key of a Secret.")
    config_map_key_ref: KeyRef | None = Field(default=None, description="A key of a ConfigMap.")
    field_ref: FieldRef | None = Field(default=None, description="A field of the pod itself.")

    @property
    def given(self) -> int:
        """How many sources are named; one is right."""
        return sum(ref is not None for ref in (self.secret_key_ref, self.config_map_key_ref, self.field_ref))


class EnvVar(Group):
    """One environment variable of the engine's container."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("!(has(self.value) && has(self.valueFrom))", "set either value or valueFrom, not both"),
        )
    )

    name: str = Field(
        min_length=1,
        max_length=256,
        description="Name of the variable.",
        json_schema_extra=rules(cel(f"self.matches({ENV_NAME!r})", ENV_NAME_CURE)),
    )
    value: str | None = Field(
        default=None, max_length=8192, description="Value as plain text. Default: the empty string."
    )
    value_from: EnvSource | None = Field(
        default=None,
        description="A Secret's or ConfigMap's key, or a field of the pod, that holds the value, instead of "
        "`value`.",
    )


MORE_THAN_LIMIT: Final = "must not be more than the limit of the same resource: lower it, or raise the limit"


class Resources(Group):
    """CPU and memory of the engine's container; accelerators are asked for in spec.accelerator."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits) || "
                "!isQuantity(string(self.requests[k])) || !isQuantity(string(self.limits[k])) || "
                "quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",
                MORE_THAN_LIMIT,
                ".requests",
            )
        )
    )

    requests: Amounts | None = Field(
        default=None,
        description="What the scheduler sets aside for a pod, e.g. {cpu: 8, memory: 32Gi}. Default: none.",
    )
    limits: Amounts | None = Field(
        default=None,
        description="What a pod may use at most. What the engine keeps in /dev/shm counts as memory. "
        "Default: none.",
    )


class APIKey(Group):
    """One key of a Secret in the LlamaServer's namespace."""

    name: ObjectName = Field(description="Name of the Secret, in the namespace of the LlamaServer.")
    key: KeyName = Field(
        default="VLLM_API_KEY", description="Key in the Secret that holds it. Default: VLLM_API_KEY."
    )


class EngineSpec(Group):
    """vLLM's container: image, what the engine is started with, and everything else that is passed on to
    it.
    """

    image: str = Field(
        min_length=1,
        max_length=512,
        description="Image of vLLM whose entrypoint is `vllm serve`, e.g. vllm/vllm-openai:v0.32.0. Flags "
        "that came with a certain release are used when the tag is such a release; a tag that "
        "is no version (a digest, `latest`) is taken for a current one. A change rolls the pods.",
        json_schema_extra=rules(cel("!self.matches('\\\\s')", IMAGE_CURE)),
    )
    image_pull_policy: ImagePullPolicy | None = Field(
        default=None,
        description="Always, IfNotPresent or Never. Default: Kubernetes' own (Always for the tag latest, "
        "else IfNotPresent). A change rolls the pods.",
    )
    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        le=16384,
        description="Sequences that one engine can run at once (--max-num-seqs): the ceiling of the live "
        "cap, which sizes buffers and CUDA graphs at start. Choose what memory admits; the "
        "operator lowers the cap live, and only a restart can raise this. Default: 256. A "
        "change rolls the pods.",
    )
    max_num_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1048576,
        description="Tokens that one engine step may carry (--max-num-batched-tokens): the ceiling of the "
        "live prefill budget. At least maxNumSeqs. Default: 2048. A change rolls the pods.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        le=10485760,
        description="Longest prompt plus answer in tokens (--max-model-len). Set it lower than the model's "
        "own when the KV cache does not fit. Default: the model's own. A change rolls the pods.",
    )
    tensor_parallel_size: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Accelerators that share one model (--tensor-parallel-size). Equal to "
        "spec.accelerator.count, unless extraArgs has --pipeline-parallel-size or "
        "--data-parallel-size for the rest. Default: 1. A change rolls the pods.",
    )
    gpu_memory_utilization: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of an accelerator's memory that the engine may use (--gpu-memory-utilization), "
        "more than 0 and at most 1. Lower it when the engine runs out of memory at start. "
        "Default: vLLM's own (0.9 in most releases). A change rolls the pods.",
    )
    kv_offloading: KVOffloading | None = Field(
        default=None,
        description="KV cache that has to leave the accelerator is kept in the host's memory and loaded from "
        "there where a prompt begins alike, instead of being computed again. Needs vLLM 0.14 or newer and an "
        "accelerator. Default: none, it is dropped. A change rolls the pods.",
    )
    quantization: Word | None = Field(
        default=None,
        description="How the weights are quantised (--quantization), e.g. fp8. Needed only where the model "
        "does not say so itself. Default: the model's own. A change rolls the pods.",
    )
    tool_call_parser: Word | None = Field(
        default=None,
        description="How tool calls are read from what the model writes (--tool-call-parser, with "
        "--enable-auto-tool-choice), e.g. llama3_json. Default: none, the model calls no tools by itself. A "
        "change rolls the pods.",
    )
    reasoning_parser: Word | None = Field(
        default=None,
        description="How reasoning is told from the answer (--reasoning-parser), e.g. deepseek_r1. Default: "
        "none, it is not told apart. A change rolls the pods.",
    )
    speculative_config: SpeculativeConfig | None = Field(
        default=None,
        description="Speculative decoding. One step then gives a stream several tokens at once, and the "
        "inter-token latency, which counts outputs, is longer than the time per token: set the objective by "
        "the pause that users see. Default: none. A change rolls the pods.",
    )
    api_key_secret_ref: APIKey | None = Field(
        default=None,
        description="Secret with the key that clients have to send (VLLM_API_KEY). It guards /v1, not "
        "/metrics and /health; the operator neither reads nor needs it. Default: none, everybody who reaches "
        "the Service is served. A change rolls the pods.",
    )
    tls: TLSSpec | None = Field(
        default=None,
        description="Serve HTTPS: the whole port, so /metrics and the probes, too. The Service then has port "
        "443, called https. Default: none, plain HTTP inside the cluster. A change rolls the pods.",
    )
    extra_args: tuple[Argument, ...] | None = Field(
        default=None,
        max_length=64,
        description="Further arguments of `vllm serve`, one list item for each word, e.g. "
        '["--kv-cache-dtype", "fp8"]. Arguments that a field stands for, and those the operator needs for '
        "itself, are refused with the name of the field to use. Default: none. A change rolls the pods.",
        json_schema_extra={"x-kubernetes-list-type": "atomic", **EXTRA_ARGS_RULES},
    )
    env: tuple[EnvVar, ...] | None = Field(
        default=None,
        max_length=64,
        description="Further environment variables of the engine. They win over the operator's own; "
        "VLLM_PLUGINS and PYTHONPATH are merged with them. Secrets must come by valueFrom. "
        "Default: none. A change rolls the pods.",
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            **ENV_RULES,
        },
    )
    plugins: tuple[PluginName, ...] | None = Field(
        default=None,
        max_length=32,
        description="Names of further vLLM plugins in the image that must load. vLLM loads only what is "
        "named once anything is named, and the operator names its own plugin. Default: none; "
        "the built-in LoRA resolvers are added when env configures them. A change rolls the "
        "pods.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    resources: Resources | None = Field(
        default=None,
        description="CPU and memory of the engine's container. Default: none asked for. A change rolls the "
        "pods.",
    )
