"""What a mistake is, and values that several of them need."""

from __future__ import annotations

from typing import Any, NamedTuple

Object = dict[str, Any]

GPU = {"resourceName": "nvidia.com/gpu", "count": 1}
ADAPTER = {"name": "sql", "uri": "hf://org/sql"}
GIVEN = {
    "toolCallParser": "hermes",
    "reasoningParser": "deepseek_r1",
    "quantization": "fp8",
    "speculativeConfig": {"method": "ngram", "numSpeculativeTokens": 1},
    "kvOffloading": {"size": "16Gi"},
    "chatTemplate": {"configMapKeyRef": {"name": "t", "key": "k"}},
    "lora": {"adapters": [ADAPTER]},
}
"""The fields that stand for flags, by their names."""


class Bad(NamedTuple):
    """A mistake: what is written, where the message has to point, and the cure it has to name."""

    changes: Object
    field: str
    cure: str
