"""Mistakes about the model, its adapters and names."""

from __future__ import annotations

from specs.mistake import ADAPTER, Bad

BAD = {
    "a model by its bare name": Bad(
        {"spec.model.uri": "meta-llama/Llama-3.1-8B"}, "spec.model.uri", "hf://organisation/name"
    ),
    "an OCI image without a tag": Bad(
        {"spec.model.uri": "oci://ghcr.io/models/llama"}, "spec.model.uri", "oci://registry/image:tag/path"
    ),
    "an OCI image without a registry": Bad(
        {"spec.model.uri": "oci://llama:1"}, "spec.model.uri", "oci://registry/image:tag/path"
    ),
    "an adapter from nowhere": Bad(
        {"spec.model.lora": {"adapters": [{"name": "a", "uri": "s3://bucket/a"}]}},
        "spec.model.lora.adapters[0].uri",
        "pvc://claim/path",
    ),
    "no adapters": Bad({"spec.model.lora": {"adapters": []}}, "spec.model.lora.adapters", "at least 1"),
    "an adapter with the model's name": Bad(
        {
            "spec.model.servedNames": ["llama"],
            "spec.model.lora": {"adapters": [{**ADAPTER, "name": "llama"}]},
        },
        "spec.model.lora.adapters",
        "give the adapter another one",
    ),
    "a rank that vLLM has not": Bad(
        {"spec.model.lora": {"adapters": [ADAPTER], "maxLoraRank": 24}}, "spec.model.lora.maxLoraRank", "64"
    ),
    "fewer adapters in memory than in a batch": Bad(
        {"spec.model.lora": {"adapters": [ADAPTER], "maxLoras": 4, "maxCpuLoras": 2}},
        "spec.model.lora.maxCpuLoras",
        "lower maxLoras",
    ),
    "a model behind a path upwards": Bad(
        {"spec.model.uri": "file:///models/../etc"}, "spec.model.uri", "without '..'"
    ),
    "a revision of a directory": Bad(
        {"spec.model": {"uri": "file:///models/tiny", "revision": "main"}},
        "spec.model.revision",
        "hf:// models only",
    ),
    "a token for a volume": Bad(
        {"spec.model": {"uri": "pvc://models/x", "tokenSecretRef": {"name": "t"}}},
        "spec.model.tokenSecretRef",
        "remove it",
    ),
    "a revision that is two words": Bad(
        {"spec.model.revision": "main branch"}, "spec.model.revision", "without spaces"
    ),
    "a token from a Secret that can have no such name": Bad(
        {"spec.model.tokenSecretRef": {"name": "HF_TOKEN"}},
        "spec.model.tokenSecretRef.name",
        "write the name of an object",
    ),
    "a token by no key": Bad(
        {"spec.model.tokenSecretRef": {"name": "t", "key": ""}}, "spec.model.tokenSecretRef.key", ""
    ),
    "a template from a ConfigMap that can have no such name": Bad(
        {"spec.model.chatTemplate.configMapKeyRef": {"name": "My Templates", "key": "k"}},
        "spec.model.chatTemplate.configMapKeyRef.name",
        "write the name of an object",
    ),
    "a template by a path": Bad(
        {"spec.model.chatTemplate.configMapKeyRef": {"name": "t", "key": "chat/template.jinja"}},
        "spec.model.chatTemplate.configMapKeyRef.key",
        "write a key of that object",
    ),
    "a template by no key": Bad(
        {"spec.model.chatTemplate.configMapKeyRef": {"name": "t"}},
        "spec.model.chatTemplate.configMapKeyRef.key",
        "equired",
    ),
    "a cache on a claim that can have no such name": Bad(
        {"spec.model.cache.persistentVolumeClaim.claimName": "Models-"},
        "spec.model.cache.persistentVolumeClaim.claimName",
        "write the name of an object",
    ),
    "no adapter in a batch": Bad(
        {"spec.model.lora": {"adapters": [ADAPTER], "maxLoras": 0}}, "spec.model.lora.maxLoras", "1"
    ),
    "a name that would be a flag": Bad(
        {"spec.model.servedNames": ["llama", "--max-num-seqs=1"]},
        "spec.model.servedNames[1]",
        "takes -x for a flag",
    ),
    "no model": Bad({"spec.model": None}, "spec.model", "equired"),
}
