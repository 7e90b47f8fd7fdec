"""Mistakes about the engine: its limits, arguments, variables and image."""

from __future__ import annotations

from llamaserver.api.features import TWINS
from llamaserver.api.managed import MANAGED
from specs.mistake import GIVEN, GPU, Bad, Object


def _offloading(**changes: Object) -> Object:
    """A GPU server that offloads 16 GiB and has the memory for it, but for these changes."""
    given = {"kvOffloading": {"size": "16Gi"}, "resources": {"requests": {"memory": "32Gi"}}, **changes}
    return {"spec.accelerator": GPU, **{f"spec.engine.{field}": value for field, value in given.items()}}


BAD = {
    "a budget below one token a sequence": Bad(
        {"spec.engine.maxNumSeqs": 4096}, "spec.engine.maxNumBatchedTokens", "raise it or lower maxNumSeqs"
    ),
    "no quantity": Bad(
        {"spec.engine.resources.limits": {"memory": "32GB"}},
        "spec.engine.resources.limits",
        "e.g. 512Mi or 16Gi",
    ),
    "a negative quantity": Bad(
        {"spec.engine.resources.requests": {"cpu": -1}}, "spec.engine.resources.requests", "quantity"
    ),
    "no number of cores": Bad(
        {"spec.engine.resources.requests": {"cpu": "two"}}, "spec.engine.resources.requests", "e.g. 500m or 2"
    ),
    "memory without its unit": Bad(
        {"spec.engine.resources.limits": {"memory": 16}},
        "spec.engine.resources.limits",
        "write it with its unit, e.g. 16Gi",
    ),
    "a resource that is none": Bad(
        {"spec.engine.resources.limits": {"mem": "16Gi"}},
        "spec.engine.resources.limits",
        "write cpu, memory, ephemeral-storage",
    ),
    "more set aside than allowed": Bad(
        {"spec.engine.resources": {"requests": {"memory": "32Gi"}, "limits": {"memory": "16384Mi"}}},
        "spec.engine.resources.requests",
        "lower it, or raise the limit",
    ),
    "all of the memory and more": Bad(
        {"spec.engine.gpuMemoryUtilization": 90}, "spec.engine.gpuMemoryUtilization", "1"
    ),
    "a parser that is two words": Bad(
        {"spec.engine.toolCallParser": "llama3 json"}, "spec.engine.toolCallParser", "the name that vLLM uses"
    ),
    "a speculation without room": Bad(
        {"spec.engine.speculativeConfig": {"method": "ngram", "numSpeculativeTokens": 8}},
        "spec.engine.maxNumBatchedTokens",
        "lower maxNumSeqs",
    ),
    "a speculation of nothing": Bad(
        {"spec.engine.speculativeConfig": {"method": "ngram", "numSpeculativeTokens": 0}},
        "spec.engine.speculativeConfig.numSpeculativeTokens",
        "1",
    ),
    "a speculation by a method of two words": Bad(
        {"spec.engine.speculativeConfig": {"method": "n gram", "numSpeculativeTokens": 1}},
        "spec.engine.speculativeConfig.method",
        "the name that vLLM uses",
    ),
    "a speculation by no model": Bad(
        {"spec.engine.speculativeConfig": {"method": "eagle3", "model": "", "numSpeculativeTokens": 1}},
        "spec.engine.speculativeConfig.model",
        "",
    ),
    "n-grams that are longer at least than at most": Bad(
        {
            "spec.engine.speculativeConfig": {
                "method": "ngram",
                "numSpeculativeTokens": 1,
                "promptLookupMin": 4,
                "promptLookupMax": 2,
            }
        },
        "spec.engine.speculativeConfig.promptLookupMin",
        "raise promptLookupMax",
    ),
    "n-grams of no token": Bad(
        {
            "spec.engine.speculativeConfig": {
                "method": "ngram",
                "numSpeculativeTokens": 1,
                "promptLookupMax": 0,
            }
        },
        "spec.engine.speculativeConfig.promptLookupMax",
        "1",
    ),
    "a ceiling of nothing": Bad({"spec.engine.maxNumSeqs": 0}, "spec.engine.maxNumSeqs", "1"),
    "a length that vLLM is to find out": Bad({"spec.engine.maxModelLen": -1}, "spec.engine.maxModelLen", "1"),
    "a length in thousands": Bad({"spec.engine.maxModelLen": "8k"}, "spec.engine.maxModelLen", ""),
    "a quantization that is two words": Bad(
        {"spec.engine.quantization": "fp8 e4m3"}, "spec.engine.quantization", "the name that vLLM uses"
    ),
    "a reasoning parser by its flag": Bad(
        {"spec.engine.reasoningParser": "--deepseek_r1"},
        "spec.engine.reasoningParser",
        "the name that vLLM uses",
    ),
    "a pull policy in small letters": Bad(
        {"spec.engine.imagePullPolicy": "always"}, "spec.engine.imagePullPolicy", "Always"
    ),
    "offloading by a number without its unit": Bad(
        _offloading(kvOffloading={"size": 16}), "spec.engine.kvOffloading.size", "with its unit, e.g. 16Gi"
    ),
    "offloading from the CPU": Bad(
        {**_offloading(), "spec.accelerator": None}, "spec.engine.kvOffloading", "set spec.accelerator"
    ),
    **{
        f"offloading with {image}": Bad(
            _offloading(image=image), "spec.engine.kvOffloading", "needs vLLM 0.14 or newer"
        )
        for image in ("vllm/vllm-openai:v0.13.0", "r:5000/vllm:0.9", f"vllm:v0.11.1-x@sha256:{'0' * 64}")
    },
    "offloading into memory that nobody set aside": Bad(
        _offloading(resources={"requests": {"cpu": 4}}),
        "spec.engine.kvOffloading",
        "set memory in spec.engine.resources.requests or limits",
    ),
    "offloading into all the memory that is set aside": Bad(
        _offloading(resources={"requests": {"memory": "17179869184"}}),
        "spec.engine.resources.requests",
        "raise it, or lower the size",
    ),
    "offloading beyond the limit": Bad(
        _offloading(resources={"requests": {"memory": "32Gi"}, "limits": {"memory": "15Gi"}}),
        "spec.engine.resources.limits",
        "which is taken whole from this memory",
    ),
    "offloading into gigabytes by a wrong unit": Bad(
        _offloading(kvOffloading={"size": "16GB"}), "spec.engine.kvOffloading.size", "e.g. 512Mi or 16Gi"
    ),
    "an API key from a Secret that can have no such name": Bad(
        {"spec.engine.apiKeySecretRef": {"name": "API_KEYS"}},
        "spec.engine.apiKeySecretRef.name",
        "write the name of an object",
    ),
    "an API key by a key with a slash": Bad(
        {"spec.engine.apiKeySecretRef": {"name": "k", "key": "vllm/key"}},
        "spec.engine.apiKeySecretRef.key",
        "letters, digits, '-', '_' and '.'",
    ),
    "a certificate from a Secret that can have no such name": Bad(
        {"spec.engine.tls": {"secretName": "chat_tls"}},
        "spec.engine.tls.secretName",
        "write the name of an object",
    ),
    "a certificate from no Secret": Bad({"spec.engine.tls": {}}, "spec.engine.tls.secretName", ""),
    **{
        f"a variable by a {kind} of no name": Bad(
            {"spec.engine.env": [{"name": "A", "valueFrom": {kind: {"name": "a/b", "key": "k"}}}]},
            f"spec.engine.env[0].valueFrom.{kind}.name",
            "write the name of an object",
        )
        for kind in ("secretKeyRef", "configMapKeyRef")
    },
    **{
        f"a variable by a {kind} of no key": Bad(
            {"spec.engine.env": [{"name": "A", "valueFrom": {kind: {"name": "a", "key": ".."}}}]},
            f"spec.engine.env[0].valueFrom.{kind}.key",
            "write a key of that object",
        )
        for kind in ("secretKeyRef", "configMapKeyRef")
    },
    **{
        f"a variable by a {kind} that is perhaps there": Bad(
            {
                "spec.engine.env": [
                    {"name": "A", "valueFrom": {kind: {"name": "a", "key": "k", "optional": "yes"}}}
                ]
            },
            f"spec.engine.env[0].valueFrom.{kind}.optional",
            "",
        )
        for kind in ("secretKeyRef", "configMapKeyRef")
    },
    "a variable by a field that none can have": Bad(
        {"spec.engine.env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.hostname"}}}]},
        "spec.engine.env[0].valueFrom.fieldRef.fieldPath",
        "status.hostIP",
    ),
    "a variable that is a number": Bad(
        {"spec.engine.env": [{"name": "OMP_NUM_THREADS", "value": 4}]}, "spec.engine.env[0].value", ""
    ),
    "an API key given twice": Bad(
        {
            "spec.engine.apiKeySecretRef": {"name": "k"},
            "spec.engine.env": [
                {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "k", "key": "k"}}}
            ],
        },
        "spec.engine.env",
        "remove it from spec.engine.env",
    ),
    **{
        f"{flag} beside its field": Bad(
            {
                f"spec.{'.'.join(twin.path)}": GIVEN[twin.path[1]],
                "spec.engine.extraArgs": ["--enforce-eager", flag],
            },
            "spec.engine.extraArgs",
            f"cannot stand beside spec.{'.'.join(twin.path)}: remove",
        )
        for twin in TWINS
        for flag in (*twin.flags, f"{twin.flags[0]}.method=x", f"{twin.flags[0].replace('-', '_')}=x")
        if not flag.startswith("__")
    },
    "two plugins in one word": Bad(
        {"spec.engine.plugins": ["one,two"]}, "spec.engine.plugins[0]", "name of the plugin's entry point"
    ),
    "a token given twice": Bad(
        {
            "spec.model.tokenSecretRef": {"name": "t"},
            "spec.engine.env": [
                {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "t", "key": "k"}}}
            ],
        },
        "spec.engine.env",
        "remove it from spec.engine.env",
    ),
    "a key in plain text": Bad(
        {"spec.engine.env": [{"name": "VLLM_API_KEY", "value": "example"}]},
        "spec.engine.env",
        "valueFrom.secretKeyRef",
    ),
    "a variable of the operator's": Bad(
        {"spec.engine.env": [{"name": "LLAMASERVER_TUNER_KEYS_DIR", "value": "/"}]},
        "spec.engine.env",
        "remove it",
    ),
    "a folder of old metrics": Bad(
        {"spec.engine.env": [{"name": "PROMETHEUS_MULTIPROC_DIR", "value": "/tmp"}]},
        "spec.engine.env",
        "remove PROMETHEUS_MULTIPROC_DIR",
    ),
    "plugins that cannot be merged": Bad(
        {
            "spec.engine.env": [
                {"name": "VLLM_PLUGINS", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
            ]
        },
        "spec.engine.env",
        "write it as value",
    ),
    "a variable with two values": Bad(
        {
            "spec.engine.env": [
                {"name": "A", "value": "b", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
            ]
        },
        "spec.engine.env[0]",
        "either value or valueFrom",
    ),
    "a variable from nowhere": Bad(
        {"spec.engine.env": [{"name": "A", "valueFrom": {}}]},
        "spec.engine.env[0].valueFrom",
        "set exactly one",
    ),
    "a variable twice": Bad(
        {"spec.engine.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        "spec.engine.env[1]",
        "",
    ),
    "a variable with a digit in front": Bad(
        {"spec.engine.env": [{"name": "1A", "value": "1"}]}, "spec.engine.env[0].name", "no digit in front"
    ),
    "an image with a space": Bad(
        {"spec.engine.image": "vllm/vllm-openai: v0.32.0"}, "spec.engine.image", "spaces"
    ),
    "an empty image": Bad({"spec.engine.image": ""}, "spec.engine.image", ""),
    **{
        f"the managed flag {spelled}": Bad(
            {"spec.engine.extraArgs": ["--enforce-eager", spelled]}, "spec.engine.extraArgs", entry.cure
        )
        for entry in MANAGED
        for flag in entry.flags
        for spelled in dict.fromkeys((flag, f"{flag}=1", flag[:2] + flag[2:].replace("-", "_")))
    },
}
