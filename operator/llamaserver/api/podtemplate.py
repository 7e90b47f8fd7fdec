"""spec.podTemplate: what a platform adds to the engine's pods, merged into them as Kubernetes merges patches.

The names of fields are closed, so that a mistyped one is refused at once; their content, where it is
Kubernetes' own, is passed on as it is written and checked by the API server of the cluster that runs it. What
the operator owns is refused with the field that says it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue

from llamaserver.api.base import Fragment, Group, LabelValue, Open, PartName, cel, rules
from llamaserver.api.engine import ImagePullPolicy
from llamaserver.api.names import ENGINE_CONTAINER, ENGINE_PORT, ENGINE_PORT_NAME, GROUP, child_labels

Word = Annotated[str, Field(max_length=8192)]
AnnotationValue = Annotated[str, Field(max_length=16384)]

OWN_LABELS: Final = tuple(sorted(child_labels("")))
OWN_PREFIX: Final = f"{GROUP}/"
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
OWN_INIT_CONTAINERS: Final = ("tuner", ENGINE_CONTAINER)
OWN_VOLUMES: Final = ("tuner", "tuner-keys", "model", "chat-template", "engine-tls")
ADAPTER_PREFIX: Final = "adapter-"
CACHE_VOLUME: Final = "cache"
OWN_MOUNTS: Final = (
    "/dev/shm",  # noqa: S108 - the pod's own
    "/etc/llamaserver/chat-template",
    "/etc/llamaserver/keys",
    "/etc/llamaserver/tls",
    "/mnt/adapters",
    "/mnt/model",
    "/opt/llamaserver/tuner",
    "/tmp",  # noqa: S108 - a volume of the pod's own
    "/var/cache/llamaserver",
)
SCRATCH: Final = ("/dev/shm", "/tmp")  # noqa: S108 - nothing of the operator's lies in them
"""Mounts of the operator's below which others may be mounted."""


def _own_places() -> str:
    """A pattern for the operator's mounts, for what is below them, and for what is above them and so covers
    them, with any slashes at the end. Common parts stand in it once, for CEL counts its length.
    """
    tree: dict[str, Any] = {}
    for path in OWN_MOUNTS:
        place = tree
        for part in path.split("/")[1:]:
            place = place.setdefault(part, {})
    return f"^{_places_below(tree, '')}/*$"


def _places_below(tree: dict[str, Any], path: str) -> str:
    if not tree:
        return "" if path in SCRATCH else "(/.*)?"
    parts = [f"{part}{_places_below(below, f'{path}/{part}')}" for part, below in tree.items()]
    return f"(/({'|'.join(parts)}))?"


OWN_PLACES: Final = _own_places()
ROUNDABOUT: Final = "^[^/]|/[.]{1,2}(/|$)|//+[^/]"
"""Spellings of a path by which it would not be known."""

OWNED: Final = {
    "image": "set spec.engine.image",
    "imagePullPolicy": "set spec.engine.imagePullPolicy",
    "command": "remove it: vLLM has to be the first process, to see when it is told to end",
    "args": "write them in spec.engine.extraArgs, where they are checked",
    "env": "write it in spec.engine.env; envFrom may stand here",
    "resources": "set spec.engine.resources and spec.accelerator",
    "lifecycle": "remove it, for it would cut running streams: set spec.shutdown.drainTimeout",
    "startupProbe": "set spec.startup.timeout",
    "readinessProbe": "remove it: the operator's own is patient with a busy engine",
    "livenessProbe": "remove it: the operator's own is patient with a busy engine",
    "restartPolicy": "remove it: an engine that ends is started again",
}
"""Fields of the engine's container that say something the operator has to decide, with the cure."""

LABEL_CURE: Final = (
    "labels by which the operator and the Service find the pods, and all that start with llamaserver.dev/, "
    "are the operator's: remove it, or write another key"
)
ANNOTATION_CURE: Final = (
    f"{DELETION_COST} and all that start with llamaserver.dev/ are the operator's: remove it, or write "
    "another key"
)
INIT_CURE: Final = "is a name that the operator uses: give the init container another one"
IMAGE_NEEDED: Final = "a container other than vllm needs an image: set image, or name the container vllm"
VOLUME_CURE: Final = "is a volume of the operator's: give yours another name"
MOUNT_CURE: Final = "is where the operator mounts a volume, or above or inside it: mount yours elsewhere"
PATH_CURE: Final = "must be a plain path: write it with one '/' in front of each part, without '.' and '..'"
PORT_CURE: Final = f"port {ENGINE_PORT}, called {ENGINE_PORT_NAME}, is the engine's already: choose another"
CACHE_CURE: Final = "is replaced by spec.model.cache already: remove one of the two"


def owned_refusal(field: str) -> str:
    """The message that refuses a field of the engine's container."""
    return f"{field} of container {ENGINE_CONTAINER} is the operator's: {OWNED[field]}"


def _words(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(repr(value) for value in values) + "]"


_OF_ENGINE: Final = f"c.name == {ENGINE_CONTAINER!r}"

_CONTAINER_RULES: Final[dict[str, JsonValue]] = rules(
    *(cel(f"!self.exists(c, {_OF_ENGINE} && has(c.{field}))", owned_refusal(field)) for field in OWNED),
    cel(f"self.all(c, {_OF_ENGINE} || has(c.image))", IMAGE_NEEDED),
    cel(
        f"!self.exists(c, {_OF_ENGINE} && has(c.volumeMounts) && "
        f"c.volumeMounts.exists(m, m.mountPath.matches({OWN_PLACES!r})))",
        f"volumeMounts of container {ENGINE_CONTAINER}: mountPath {MOUNT_CURE}",
    ),
    cel(
        f"!self.exists(c, {_OF_ENGINE} && has(c.volumeMounts) && "
        f"c.volumeMounts.exists(m, m.mountPath.matches({ROUNDABOUT!r})))",
        f"volumeMounts of container {ENGINE_CONTAINER}: mountPath {PATH_CURE}",
    ),
    cel(
        f"!self.exists(c, {_OF_ENGINE} && has(c.ports) && "
        f"c.ports.exists(p, p.containerPort == {ENGINE_PORT} || "
        f"(has(p.name) && p.name == {ENGINE_PORT_NAME!r})))",
        f"ports of container {ENGINE_CONTAINER}: {PORT_CURE}",
    ),
)


class Mount(Open):
    """One volumeMount; fields beside these two are passed on."""

    name: PartName = Field(description="Name of the volume.")
    mount_path: str = Field(min_length=1, max_length=512, description="Where the container has it.")


class Variable(Open):
    """One environment variable; its value, or where it comes from, is passed on."""

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")


class Port(Open):
    """One port of a container; fields beside these two are passed on."""

    name: PartName | None = Field(default=None, max_length=15, description="Name of the port. Default: none.")
    container_port: int = Field(ge=1, le=65535, description="Number of the port.")


class Volume(Open):
    """One volume; its source is passed on."""

    name: PartName = Field(
        description="Name of the volume. One called cache, tmp or shm takes the place of the operator's."
    )


ATOMIC: Final[dict[str, JsonValue]] = {"x-kubernetes-list-type": "atomic"}
BY_NAME: Final[dict[str, JsonValue]] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}


class Container(Group):
    """A container, or with the name vllm what is added to the engine's."""

    name: PartName = Field(description="Name of the container; vllm is the engine's.")
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Image of the container. Default: none, which only the engine's may have.",
    )
    image_pull_policy: ImagePullPolicy | None = Field(
        default=None, description="Always, IfNotPresent or Never. Default: Kubernetes' own."
    )
    command: tuple[Word, ...] | None = Field(
        default=None,
        max_length=64,
        description="What is run. Default: the image's entrypoint.",
        json_schema_extra=ATOMIC,
    )
    args: tuple[Word, ...] | None = Field(
        default=None,
        max_length=128,
        description="Its arguments. Default: the image's.",
        json_schema_extra=ATOMIC,
    )
    working_dir: str | None = Field(
        default=None, max_length=1024, description="Where it is run. Default: the image's."
    )
    env: tuple[Variable, ...] | None = Field(
        default=None,
        max_length=64,
        description="Variables, as in a pod, each name once. Default: none. Those of the engine are in "
        "spec.engine.env.",
        json_schema_extra=BY_NAME,
    )
    env_from: tuple[Fragment, ...] | None = Field(
        default=None,
        max_length=16,
        description="Secrets and ConfigMaps whose keys all become variables, as in a pod; env wins over "
        "them. Default: none.",
        json_schema_extra=ATOMIC,
    )
    ports: tuple[Port, ...] | None = Field(
        default=None,
        max_length=16,
        description="Further ports, as in a pod. Default: none.",
        json_schema_extra=ATOMIC,
    )
    resources: Fragment | None = Field(
        default=None, description="CPU and memory, as in a pod. Default: none asked for."
    )
    volume_mounts: tuple[Mount, ...] | None = Field(
        default=None,
        max_length=32,
        description="Further volumes of the container, as in a pod. Default: none.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["mountPath"]},
    )
    volume_devices: tuple[Fragment, ...] | None = Field(
        default=None,
        max_length=16,
        description="Block devices, as in a pod. Default: none.",
        json_schema_extra=ATOMIC,
    )
    security_context: Fragment | None = Field(
        default=None,
        description="As in a pod; what is written here wins over the operator's. Default: for the engine no "
        "privileges, for others none of their own.",
    )
    lifecycle: Fragment | None = Field(default=None, description="Hooks, as in a pod. Default: none.")
    startup_probe: Fragment | None = Field(default=None, description="As in a pod. Default: none.")
    readiness_probe: Fragment | None = Field(default=None, description="As in a pod. Default: none.")
    liveness_probe: Fragment | None = Field(default=None, description="As in a pod. Default: none.")
    restart_policy: str | None = Field(
        default=None,
        max_length=32,
        description="Always makes an init container a sidecar that ends after the engine. Default: none.",
    )


class DNSPolicy(StrEnum):
    """Whom a pod asks for addresses."""

    CLUSTER_FIRST = "ClusterFirst"
    CLUSTER_FIRST_WITH_HOST_NET = "ClusterFirstWithHostNet"
    DEFAULT = "Default"
    NONE = "None"


class PodContent(Group):
    """What is added to the pods' spec; where they run is in spec.scheduling."""

    containers: tuple[Container, ...] | None = Field(
        default=None,
        max_length=16,
        description="Sidecars, and with the name vllm what is added to the engine's container. Default: "
        "none.",
        json_schema_extra={**BY_NAME, **_CONTAINER_RULES},
    )
    init_containers: tuple[Container, ...] | None = Field(
        default=None,
        max_length=16,
        description="Containers that end before the engine starts, after the operator's own. Default: none.",
        json_schema_extra={
            **BY_NAME,
            **rules(
                cel(f"!self.exists(c, c.name in {_words(OWN_INIT_CONTAINERS)})", f"name {INIT_CURE}"),
                cel("self.all(c, has(c.image))", "an init container needs an image: set image"),
            ),
        },
    )
    volumes: tuple[Volume, ...] | None = Field(
        default=None,
        max_length=64,
        description="Further volumes, as in a pod. Default: none.",
        json_schema_extra={
            **BY_NAME,
            **rules(
                cel(
                    f"!self.exists(v, v.name in {_words(OWN_VOLUMES)} || "
                    f"v.name.startsWith({ADAPTER_PREFIX!r}))",
                    f"name {VOLUME_CURE}",
                )
            ),
        },
    )
    security_context: Fragment | None = Field(
        default=None,
        description="The pod's, e.g. supplementalGroups for device nodes; what is written here wins over the "
        "operator's. Default: a user without rights.",
    )
    host_aliases: tuple[Fragment, ...] | None = Field(
        default=None,
        max_length=32,
        description="Lines for /etc/hosts, as in a pod. Default: none.",
        json_schema_extra=ATOMIC,
    )
    dns_policy: DNSPolicy | None = Field(
        default=None,
        description="ClusterFirst, ClusterFirstWithHostNet, Default or None, as in a pod. Default: "
        "ClusterFirst.",
    )
    dns_config: Fragment | None = Field(default=None, description="As in a pod. Default: none.")
    automount_service_account_token: bool | None = Field(
        default=None,
        description="true: the pods have a token for the API server, for a sidecar that needs one. Default: "
        "false, the engine has no business with it.",
    )


class PodMetadata(Group):
    """Labels and annotations of the pods, beside the operator's."""

    labels: dict[str, LabelValue] | None = Field(
        default=None,
        max_length=32,
        description="Further labels, e.g. for cost reports or network policies. Default: none.",
        json_schema_extra=rules(
            cel(f"!self.exists(k, k in {_words(OWN_LABELS)} || k.startsWith({OWN_PREFIX!r}))", LABEL_CURE)
        ),
    )
    annotations: dict[str, AnnotationValue] | None = Field(
        default=None,
        max_length=32,
        description="Annotations, e.g. for a service mesh or a log collector. Default: none.",
        json_schema_extra=rules(
            cel(
                f"!self.exists(k, k == {DELETION_COST!r} || k.startsWith({OWN_PREFIX!r}))",
                ANNOTATION_CURE,
            )
        ),
    )


class PodTemplateSpec(Group):
    """What is added to the engine's pods. Every change here rolls them."""

    metadata: PodMetadata | None = Field(
        default=None, description="Labels and annotations of the pods. Default: the operator's alone."
    )
    spec: PodContent | None = Field(
        default=None, description="Containers, volumes and the like. Default: the operator's alone."
    )
