"""Mistakes about what is added to the pods."""

from __future__ import annotations

from typing import Any

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

MISTYPED: Object = {
    "image": "",
    "imagePullPolicy": "always",
    "command": "sh -c true",
    "args": "--verbose",
    "workingDir": 1,
    "env": "A=b",
    "envFrom": "secret",
    "ports": [8080],
    "resources": [],
    "volumeMounts": "/v",
    "volumeDevices": {},
    "securityContext": "privileged",
    "lifecycle": [],
    "startupProbe": "/health",
    "readinessProbe": "/health",
    "livenessProbe": "/health",
    "restartPolicy": True,
}
"""Values of another type than a container's fields have, and words that they do not know."""

OF_KIND = ("containers", "initContainers")


def _container(kind: str, **fields: Any) -> Object:
    """A container of one's own with these fields."""
    return {f"spec.podTemplate.spec.{kind}": [{"name": "mine", "image": "i", **fields}]}


BAD = {
    **{
        f"{field} of another type in {kind}": Bad(
            _container(kind, **{field: value}), f"spec.podTemplate.spec.{kind}[0].{field}", ""
        )
        for kind in OF_KIND
        for field, value in MISTYPED.items()
    },
    **{
        f"{what} in {kind}": Bad(_container(kind, **fields), f"spec.podTemplate.spec.{kind}[0].{field}", cure)
        for kind in OF_KIND
        for what, fields, field, cure in (
            ("a container with capitals", {"name": "Mine"}, "name", "write a-z, 0-9 and '-'"),
            ("a variable of no name", {"env": [{"name": ""}]}, "env[0].name", ""),
            ("a port of no number", {"ports": [{"containerPort": 0}]}, "ports[0].containerPort", "1"),
            (
                "a port with an underscore",
                {"ports": [{"containerPort": 1, "name": "my_port"}]},
                "ports[0].name",
                "write a-z, 0-9 and '-'",
            ),
            (
                "a mount of a volume with a dot",
                {"volumeMounts": [{"name": "a.b", "mountPath": "/a"}]},
                "volumeMounts[0].name",
                "write a-z, 0-9 and '-'",
            ),
            (
                "a mount at nowhere",
                {"volumeMounts": [{"name": "a", "mountPath": ""}]},
                "volumeMounts[0].mountPath",
                "",
            ),
        )
    },
    "a volume with an underscore": Bad(
        {"spec.podTemplate.spec.volumes": [{"name": "my_files", "emptyDir": {}}]},
        "spec.podTemplate.spec.volumes[0].name",
        "write a-z, 0-9 and '-'",
    ),
    **{
        f"{field} of another type": Bad(
            {f"spec.podTemplate.spec.{field}": value}, f"spec.podTemplate.spec.{field}", cure
        )
        for field, value, cure in (
            ("securityContext", [], ""),
            ("hostAliases", "10.0.0.1 a", ""),
            ("dnsPolicy", "ClusterLast", "ClusterFirst"),
            ("dnsConfig", "10.0.0.1", ""),
            ("automountServiceAccountToken", "no", ""),
        )
    },
    "a label with a space in its value": Bad(
        {"spec.podTemplate.metadata.labels": {"team": "search and ads"}},
        "spec.podTemplate.metadata.labels",
        "write a label's value",
    ),
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
    **{
        f"a port of {kind} called {name} beside the engine's by TLS": Bad(
            {
                "spec.engine.tls": {"secretName": "chat-tls"},
                f"spec.podTemplate.spec.{kind}": [
                    {"name": "proxy", "image": "p", "ports": [{"containerPort": 9000, "name": name}]}
                ],
            },
            f"spec.podTemplate.spec.{kind}",
            "give this one another name",
        )
        for kind in OF_KIND
        for name in ("http", "https")
    },
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
