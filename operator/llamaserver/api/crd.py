"""The CustomResourceDefinition, made from the models: `crds/` holds what `crd_yaml` returns, and a test
compares them.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from llamaserver.api import names
from llamaserver.api.base import cel
from llamaserver.api.rules import SPEC_RULES
from llamaserver.api.schema import Schema, structural_schema
from llamaserver.api.server import MAX_NAME_LENGTH, NAME, NAME_CURE
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.status import NOT_SEEN, Status

FILE_NAME: Final = f"{names.GROUP}_{names.PLURAL}.yaml"
HEADER: Final = "# Made by `llamaserver crd`; change the models in operator/llamaserver/api instead.\n"

_DESCRIPTION: Final = (
    "A model served by vLLM, held to a declared inter-token latency: the operator makes the pods, watches "
    "the engines, and moves their sequence cap, their prefill budget and their number to hold the "
    "objective. `kubectl explain llamaserver.spec` says what every field means, what it is when left out, "
    "and when to change it."
)


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition as a plain object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def crd_yaml() -> str:
    """The CustomResourceDefinition as YAML, with a line that says where it comes from."""
    return HEADER + yaml.safe_dump(crd(), sort_keys=False, width=110, allow_unicode=True)


def _root() -> Schema:
    spec, status = structural_schema(LlamaServerSpec) | SPEC_RULES, structural_schema(Status)
    status["default"] = {"observedGeneration": NOT_SEEN}
    return {
        "description": _DESCRIPTION,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {
                "description": "Version of this form of the object, llamaserver.dev/v1alpha1.",
                "type": "string",
            },
            "kind": {"description": "LlamaServer.", "type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [
            cel(
                f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && self.metadata.name.matches({NAME!r})",
                f"metadata.name {NAME_CURE}",
            )
        ],
    }


def _columns() -> list[dict[str, Any]]:
    return [
        _column("Ready", "string", _condition("Ready"), "Whether the present spec is being served."),
        _column("Status", "string", _reason("Ready"), "Why: Serving, or what stands in the way."),
        _column("SLO", "string", _condition("SLOMet"), "Whether the declared objectives are met."),
        _column(
            "ITL",
            "string",
            ".status.observed.interTokenLatency",
            "The declared statistic of the inter-token latency.",
        ),
        _column(
            "Target",
            "string",
            ".spec.slo.interTokenLatency.target",
            "Upper bound of the inter-token latency.",
        ),
        _column("Cap", "integer", ".status.tuning.numSeqs", "Sequence cap in force, per engine."),
        _column("Replicas", "integer", ".status.replicas", "Pods that exist and are not ending."),
        _column("Diagnosis", "string", ".status.diagnosis.cause", "The one illness named now, or Healthy."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since creation."),
        _wide(
            "Objective",
            "string",
            ".status.effective.interTokenLatency",
            "The latency objective: its statistic, of tokens or of requests, and its upper bound.",
        ),
        _wide(
            "Budget",
            "integer",
            ".status.tuning.numBatchedTokens",
            "Prefill budget in force, tokens per step and engine.",
        ),
        _wide("Binds", "string", ".status.tuning.binding", "What holds requests back now."),
        _wide("Running", "integer", ".status.observed.running", "Sequences running."),
        _wide("Waiting", "integer", ".status.observed.waiting", "Requests waiting."),
        _wide("Desired", "integer", ".status.scaling.desiredReplicas", "Replicas held to be right."),
        _wide("Queue", "string", ".status.observed.queueTime", "The declared statistic of the queue time."),
        _wide(
            "KV", "string", ".status.observed.kvCacheUsage", "KV cache in use in the fullest engine, 0 to 1."
        ),
        _wide("Tokens/s", "string", ".status.observed.tokensPerSecond", "Tokens generated per second."),
        _wide("Image", "string", ".spec.engine.image", "Image of the engine."),
    ]


def _condition(type: str) -> str:
    return f'.status.conditions[?(@.type=="{type}")].status'


def _reason(type: str) -> str:
    return f'.status.conditions[?(@.type=="{type}")].reason'


def _column(name: str, type: str, path: str, description: str) -> dict[str, Any]:
    return {"name": name, "type": type, "jsonPath": path, "description": description}


def _wide(name: str, type: str, path: str, description: str) -> dict[str, Any]:
    """A column that only `kubectl get -o wide` shows."""
    return {**_column(name, type, path, description), "priority": 1}
