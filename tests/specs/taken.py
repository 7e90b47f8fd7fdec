"""What looks like a mistake and is none, and what is at the edge."""

from __future__ import annotations

from specs.mistake import ADAPTER, GIVEN, GPU

GOOD = {
    "flags that only begin like managed ones": {
        "spec.engine.extraArgs": [
            "--model-impl=auto",
            "--config-format",
            "hf",
            "--max-num-partial-prefills=2",
            "-O3",
        ]
    },
    "a value that looks like a flag's": {
        "spec.engine.extraArgs": ["--chat-template", "max-num-seqs", "-1", "-"]
    },
    "a pipeline for the rest of the accelerators": {
        "spec.accelerator": {**GPU, "count": 8},
        "spec.engine.tensorParallelSize": 4,
        "spec.engine.extraArgs": ["-pp", "2"],
    },
    "data parallelism for the rest of the accelerators": {
        "spec.accelerator": {**GPU, "count": 8},
        "spec.engine.extraArgs": ["--data_parallel_size=8"],
    },
    "accelerators by a claim": {
        "spec.accelerator": {"resourceClaimTemplateName": "two-gpus", "count": 2},
        "spec.engine.tensorParallelSize": 2,
        "spec.engine.resources.limits": {"memory": "48Gi"},
    },
    "an init container of one's own that downloads": {
        "spec.model.cache.persistentVolumeClaim.claimName": "models",
        "spec.podTemplate.spec.initContainers": [{"name": "download", "image": "x"}],
    },
    "the download's name where the pods have no download": {
        "spec.podTemplate.spec.initContainers": [{"name": "model-download", "image": "x"}],
    },
    "the download's name where vLLM downloads to elsewhere": {
        "spec.model.cache.persistentVolumeClaim.claimName": "models",
        "spec.engine.env": [{"name": "HF_HOME", "value": "/mine"}],
        "spec.podTemplate.spec.containers": [{"name": "model-download", "image": "x"}],
    },
    "the download's name where vLLM reads by other means": {
        "spec.model.cache.persistentVolumeClaim.claimName": "models",
        "spec.engine.extraArgs": ["--load_format", "gguf"],
        "spec.podTemplate.spec.initContainers": [{"name": "model-download", "image": "x"}],
    },
    "zero replicas": {"spec.replicas": 0, "spec.scaling.mode": "Fixed"},
    "bounds kept for later beside a fixed number": {
        "spec.replicas": 9,
        "spec.scaling": {"mode": "Fixed", "minReplicas": 1, "maxReplicas": 4},
    },
    "whole quantities": {
        "spec.engine.resources.limits": {"cpu": 8, "memory": "48Gi", "ephemeral-storage": "1e9"}
    },
    **{
        f"offloading with {image}": {
            "spec.accelerator": GPU,
            "spec.engine.image": image,
            "spec.engine.kvOffloading.size": "16Gi",
            "spec.engine.resources.limits": {"memory": "17Gi"},
        }
        for image in (
            "vllm/vllm-openai:v0.14.0",
            "vllm/vllm-openai:latest",
            "vllm-0.9",
            f"r:0.9/vllm@sha256:{'0' * 64}",
            "r/vllm:v1.0",
        )
    },
    "offloading by what vLLM has beside the field": {
        "spec.accelerator": GPU,
        "spec.engine.extraArgs": ["--kv-offloading-size", "4", '--kv-transfer-config={"kv_role": "kv_both"}'],
    },
    "all of the memory": {"spec.engine.gpuMemoryUtilization": 1},
    "a toleration of everything": {"spec.scheduling.tolerations": [{"operator": "Exists"}]},
    "plugins and a path of the user's": {
        "spec.engine.env": [
            {"name": "VLLM_PLUGINS", "value": "mine"},
            {"name": "PYTHONPATH", "value": "/opt/mine"},
        ]
    },
    "a flag whose field is not set": {
        "spec.engine.extraArgs": [
            "--quantization=fp8",
            "--enable-lora",
            "--lora-modules",
            "a=org/a",
            '--speculative-config={"method": "ngram"}',
            "--tool-call-parser=hermes",
        ]
    },
    "fields beside flags that only begin alike": {
        "spec.engine.quantization": "fp8",
        "spec.model.chatTemplate": GIVEN["chatTemplate"],
        "spec.engine.extraArgs": ["--quantization-config={}", "--chat-template-content-format=openai"],
    },
    "weights and adapters from images": {
        "spec.model": {
            "uri": "oci://registry:5000/models/llama:1.0_a/w",
            "lora": {"adapters": [{"name": "a/b", "uri": f"oci://ghcr.io/a/b@sha256:{'0' * 64}"}]},
        }
    },
    "mounts beside and in the scratch space": {
        "spec.podTemplate.spec.containers": [
            {
                "name": "vllm",
                "volumeMounts": [
                    {"name": "v", "mountPath": path} for path in ("/tmp/sockets", "/mnt/model2", "/data/")
                ],
            }
        ]
    },
    "variables of a sidecar": {
        "spec.podTemplate.spec.containers": [
            {
                "name": "proxy",
                "image": "p",
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
            }
        ]
    },
    "a token for an adapter beside a volume": {
        "spec.model": {
            "uri": "pvc://models/x",
            "tokenSecretRef": {"name": "t"},
            "lora": {"adapters": [ADAPTER]},
        }
    },
    "volumes that take the place of ours": {
        "spec.podTemplate.spec.volumes": [
            {"name": "cache", "hostPath": {"path": "/var/models"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ]
    },
    "everything that may be added": {
        "spec.podTemplate": {
            "metadata": {"labels": {"team": "a"}, "annotations": {"x/y": "z"}},
            "spec": {
                "containers": [
                    {
                        "name": "vllm",
                        "envFrom": [{"secretRef": {"name": "s"}}],
                        "ports": [{"containerPort": 9000, "protocol": "UDP"}],
                        "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "s"}],
                        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                        "workingDir": "/v",
                    },
                    {"name": "proxy", "image": "p:1", "resources": {"limits": {"cpu": 1}}},
                ],
                "volumes": [{"name": "v", "csi": {"driver": "d", "volumeAttributes": {"a": "b"}}}],
            },
        }
    },
    "a port of a sidecar's called https beside a plain engine": {
        "spec.podTemplate.spec.containers": [
            {"name": "proxy", "image": "p", "ports": [{"containerPort": 8443, "name": "https"}]}
        ]
    },
    "TLS beside ports that are called otherwise": {
        "spec.engine.tls": {"secretName": "chat-tls"},
        "spec.podTemplate.spec.containers": [
            {"name": "vllm", "ports": [{"containerPort": 9000, "name": "https-admin"}]},
            {"name": "proxy", "image": "p", "ports": [{"containerPort": 9001}]},
        ],
    },
    "a rollout beside what serves": {"spec.rollout": {"maxSurge": 1, "maxUnavailable": 0}},
    "restarts a week apart": {"spec.tuning.restart.minInterval": "168h"},
    "the shortest stall": {"spec.recovery.replaceStalledAfter": "120s"},
    "a day": {"spec.startup.timeout": "24h", "spec.shutdown.drainTimeout": "86400s"},
    "the longest name": {"metadata.name": "a" * 63},
}
