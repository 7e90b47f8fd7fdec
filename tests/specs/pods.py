"""Mistakes about what is added to the pods."""

from __future__ import annotations

from llamaserver.api.podtemplate import OWNED
from specs.mistake import Bad, Object

OWNED_VALUES: Object = {
    "image": "x",
    "imagePullPolicy": "Always",
    "command": ["x"],
    "args": ["x"],
    "env": [{"name": "A"}],
    "restartPolicy": "Always",
}

BAD = {
    **{
        f"{field} of the engine's container": Bad(
            {"spec.podTemplate.spec.containers": [{"name": "vllm", field: OWNED_VALUES.get(field, {})}]},
            "spec.podTemplate.spec.containers",
            cure,
        )
        for field, cure in OWNED.items()
    },
    "a mount in the engine's way": Bad(
        {
            "spec.podTemplate.spec.containers": [
                {"name": "vllm", "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm"}]}
            ]
        },
        "spec.podTemplate.spec.containers",
        "mount yours elsewhere",
    ),
    **{
        f"a mount at {path}": Bad(
            {
                "spec.podTemplate.spec.containers": [
                    {"name": "vllm", "volumeMounts": [{"name": "mine", "mountPath": path}]}
                ]
            },
            "spec.podTemplate.spec.containers",
            cure,
        )
        for path, cure in {
            "/mnt/adapters/0": "mount yours elsewhere",
            "/mnt/model/": "mount yours elsewhere",
            "/opt/llamaserver": "mount yours elsewhere",
            "/var/cache/llamaserver/huggingface": "mount yours elsewhere",
            "/": "mount yours elsewhere",
            "/data/../mnt/model": "must be a plain path",
            "/mnt//model": "must be a plain path",
            "tmp": "must be a plain path",
        }.items()
    },
    "a sidecar's variable without a name": Bad(
        {"spec.podTemplate.spec.containers": [{"name": "p", "image": "p", "env": [{"value": "1"}]}]},
        "spec.podTemplate.spec.containers[0].env[0].name",
        "",
    ),
    "a sidecar's variable twice": Bad(
        {"spec.podTemplate.spec.containers": [{"name": "p", "image": "p", "env": [{"name": "A"}] * 2}]},
        "spec.podTemplate.spec.containers[0].env",
        "",
    ),
    "the engine's port again": Bad(
        {"spec.podTemplate.spec.containers": [{"name": "vllm", "ports": [{"containerPort": 8000}]}]},
        "spec.podTemplate.spec.containers",
        "choose another",
    ),
    "a sidecar without an image": Bad(
        {"spec.podTemplate.spec.containers": [{"name": "proxy"}]},
        "spec.podTemplate.spec.containers",
        "name the container vllm",
    ),
    "an init container with the tuner's name": Bad(
        {"spec.podTemplate.spec.initContainers": [{"name": "tuner", "image": "x"}]},
        "spec.podTemplate.spec.initContainers",
        "give the init container another one",
    ),
    "an init container with the download's name": Bad(
        {
            "spec.model.cache.persistentVolumeClaim.claimName": "models",
            "spec.podTemplate.spec.initContainers": [{"name": "model-download", "image": "x"}],
        },
        "spec.podTemplate.spec.initContainers",
        "give yours another one",
    ),
    "a sidecar with the download's name": Bad(
        {
            "spec.model.cache.persistentVolumeClaim.claimName": "models",
            "spec.podTemplate.spec.containers": [{"name": "model-download", "image": "x"}],
        },
        "spec.podTemplate.spec.containers",
        "give yours another one",
    ),
    "a volume with the model's name": Bad(
        {"spec.podTemplate.spec.volumes": [{"name": "model", "emptyDir": {}}]},
        "spec.podTemplate.spec.volumes",
        "give yours another name",
    ),
    "two caches": Bad(
        {
            "spec.model.cache.persistentVolumeClaim.claimName": "models",
            "spec.podTemplate.spec.volumes": [{"name": "cache", "hostPath": {"path": "/var/models"}}],
        },
        "spec.podTemplate.spec.volumes",
        "remove one of the two",
    ),
    "a label by which pods are found": Bad(
        {"spec.podTemplate.metadata.labels": {"app.kubernetes.io/managed-by": "me"}},
        "spec.podTemplate.metadata.labels",
        "write another key",
    ),
    "an annotation of the operator's": Bad(
        {"spec.podTemplate.metadata.annotations": {"llamaserver.dev/x": "y"}},
        "spec.podTemplate.metadata.annotations",
        "write another key",
    ),
}
