"""The LlamaServer that the demo and the scenarios serve: a small random Llama on vLLM's CPU backend."""

from __future__ import annotations

from typing import Any

from harness.kube import Object
from harness.machine import fast_dtype

MODEL = "tiny"
MODEL_PATH = "/models/tiny"
CEILING = 32
"""--max-num-seqs."""
MAX_MODEL_LEN = 1024
KV_BLOCKS, BLOCK_TOKENS = 320, 32
"""10,240 tokens of KV cache: the chat load's 32 sequences of at most 440 tokens fit, 32 of 1,000 do not."""

CPU_SHARE = "400m"
"""What the engine, its clients and the operator ask for, each. vLLM's processes spin while they wait for each
other, so one engine fills two cores, and whoever has a small share beside it is kept waiting for seconds."""

CHAT_SLO_STATISTIC = "p95"

ONE_CORE_PROCESS: dict[str, str] = {"name": "VLLM_ENABLE_V1_MULTIPROCESSING", "value": "0"}
"""Has the worker in the process of vLLM's engine core, as on one GPU; the server stays one of its own. By
itself vLLM starts a third process on a CPU: it imports everything once more, a quarter of a start, and the
two spin while they wait for each other. The shared fleet of the scenarios has it; the engine of scenario 10
and the demo's are as vLLM starts them.
"""


def slo(target_ms: int, statistic: str = CHAT_SLO_STATISTIC) -> dict[str, Any]:
    """spec.slo with an inter-token latency objective."""
    return {"interTokenLatency": {"target": f"{target_ms}ms", "statistic": statistic}}


def llamaserver(
    name: str,
    namespace: str,
    *,
    image: str,
    runtime_class: str | None,
    tuning: str,
    prefill_budget: str | None = None,
    objective: dict[str, Any] | None = None,
    scaling: dict[str, Any] | None = None,
    cpu: str = CPU_SHARE,
    drain: str = "60s",
    replicas: int | None = None,
) -> Object:
    """The resource as a user would write it. `objective` None is the batch objective."""
    spec: dict[str, Any] = {
        "model": {"uri": f"file://{MODEL_PATH}", "servedNames": [MODEL]},
        "engine": {
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "maxNumSeqs": CEILING,
            "maxNumBatchedTokens": 2048,
            "maxModelLen": MAX_MODEL_LEN,
            "extraArgs": [
                *("--dtype", fast_dtype(), "--enforce-eager"),
                *("--num-gpu-blocks-override", str(KV_BLOCKS), "--block-size", str(BLOCK_TOKENS)),
            ],
            "resources": {"requests": {"cpu": cpu, "memory": "2Gi"}, "limits": {"memory": "6Gi"}},
        },
        "tuning": {"mode": tuning},
        "startup": {"timeout": "5m"},
        "shutdown": {"drainTimeout": drain},
    }
    if prefill_budget is not None:
        spec["tuning"]["prefillBudget"] = prefill_budget
    if replicas is not None:
        spec["replicas"] = replicas
    if objective is not None:
        spec["slo"] = objective
    if scaling is not None:
        spec["scaling"] = scaling
    if runtime_class:
        spec["scheduling"] = {"runtimeClassName": runtime_class}
    return {
        "apiVersion": "llamaserver.dev/v1alpha1",
        "kind": "LlamaServer",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def namespace(name: str, level: str = "restricted") -> Object:
    """A Namespace that enforces a Pod Security level: as a rule the strictest, which engines meet."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def config_map(name: str, namespace: str, files: dict[str, str]) -> Object:
    """A ConfigMap of text files."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": files,
    }


def secret(name: str, namespace: str, entries: dict[str, str], type: str = "Opaque") -> Object:
    """A Secret of texts."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": type,
        "stringData": entries,
    }


def claim_of_folder(name: str, namespace: str, folder: str, node: str) -> tuple[Object, Object]:
    """A PersistentVolume that is a folder of a node, and the claim of the same name that it is kept for."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **common,
            "claimRef": {"namespace": namespace, "name": name},
            "capacity": {"storage": "1Gi"},
            # Unlike a hostPath, it is given to the pod's group.
            "local": {"path": folder},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
    }
    return volume, claim


def script_pod(
    image: str, runtime_class: str | None, command: list[str], files: str, cpu: str
) -> dict[str, Any]:
    """A pod's spec that runs `command` in the engine's image, as nobody, with a ConfigMap at /files."""
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "main",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": command,
                "env": [
                    {"name": "HOME", "value": "/tmp"},
                    {"name": "USER", "value": "nobody"},
                    {"name": "HF_HUB_OFFLINE", "value": "1"},
                    {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
                    {"name": "PYTHONHASHSEED", "value": "0"},
                    {"name": "PYTHONUNBUFFERED", "value": "1"},
                ],
                "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "files", "mountPath": "/files", "readOnly": True},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [{"name": "files", "configMap": {"name": files}}, {"name": "tmp", "emptyDir": {}}],
    }
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    return spec
