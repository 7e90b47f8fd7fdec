"""What must agree inside spec.scheduling, spec.rollout, spec.startup, spec.shutdown, spec.recovery and
spec.podTemplate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from llamaserver.api.base import LABEL_KEY_CURE, QUALIFIED_NAME
from llamaserver.api.errors import Problem
from llamaserver.api.names import ENGINE_CONTAINER, ENGINE_PORT, ENGINE_PORT_NAME
from llamaserver.api.placement import (
    LONGEST,
    NO_WAY_TO_ROLL,
    SHORTEST_STALL,
    TOO_LONG,
    TOO_LONG_STALL,
    TOO_SOON,
    TolerationOperator,
)
from llamaserver.api.podtemplate import (
    ADAPTER_PREFIX,
    ANNOTATION_CURE,
    CACHE_CURE,
    CACHE_VOLUME,
    DELETION_COST,
    IMAGE_NEEDED,
    INIT_CURE,
    LABEL_CURE,
    MOUNT_CURE,
    OWN_INIT_CONTAINERS,
    OWN_LABELS,
    OWN_PLACES,
    OWN_PREFIX,
    OWN_VOLUMES,
    OWNED,
    PATH_CURE,
    PORT_CURE,
    ROUNDABOUT,
    VOLUME_CURE,
    Container,
    PodContent,
    PodMetadata,
    PodTemplateSpec,
    owned_refusal,
)
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.tls import PORT_NAMES, PORT_NAMES_CURE

LONGEST_SPEC: Final = 128 * 1024
"""The children keep the spec in an annotation, and all annotations of an object may take 256 KiB."""
TOO_LARGE: Final = (
    f"is larger than {LONGEST_SPEC // 1024} KiB: shorten spec.podTemplate, e.g. keep scripts and long "
    "settings in a ConfigMap that a volume names"
)


def placement_problems(spec: LlamaServerSpec) -> Iterator[Problem]:
    """Everything about where pods run and how they come and go that does not go together, with the cure."""
    if (size := len(json.dumps(spec.to_dict(), separators=(",", ":")).encode())) > LONGEST_SPEC:
        yield Problem("spec", f"{TOO_LARGE} ({size} bytes)")
    if spec.pod_template is not None:
        yield from _template_problems(spec.pod_template, cached=spec.model.cache is not None)
        if spec.engine.tls is not None:
            yield from _port_name_problems(spec.pod_template.spec or PodContent())
    for index, toleration in enumerate((spec.scheduling.tolerations if spec.scheduling else None) or ()):
        field = f"spec.scheduling.tolerations[{index}]"
        exists = toleration.operator is TolerationOperator.EXISTS
        if exists and toleration.value is not None:
            yield Problem(
                f"{field}.value",
                "with operator Exists no value is compared: remove value, or set operator: Equal",
            )
        if toleration.key is None and not exists:
            yield Problem(
                f"{field}.operator", "without a key operator must be Exists, which tolerates every taint"
            )
    yield from _keys(
        "spec.scheduling.nodeSelector", (spec.scheduling.node_selector if spec.scheduling else None) or {}
    )
    spreads = (spec.scheduling.topology_spread_constraints if spec.scheduling else None) or ()
    keys = [spread.topology_key for spread in spreads]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            yield Problem(
                f"spec.scheduling.topologySpreadConstraints[{index}].topologyKey",
                f"{key} is there twice: keep one",
            )
    if spec.rollout is not None and spec.rollout.max_unavailable == 0 and not spec.rollout.max_surge:
        yield Problem("spec.rollout.maxUnavailable", NO_WAY_TO_ROLL)
    timeout = spec.startup.timeout if spec.startup else None
    drain = spec.shutdown.drain_timeout if spec.shutdown else None
    for field, duration in (("spec.startup.timeout", timeout), ("spec.shutdown.drainTimeout", drain)):
        if duration is not None and duration.seconds > LONGEST.seconds:
            yield Problem(field, TOO_LONG)
    stall = spec.recovery.replace_stalled_after if spec.recovery else None
    if stall is not None and not SHORTEST_STALL.seconds <= stall.seconds <= LONGEST.seconds:
        short = stall.seconds < LONGEST.seconds
        yield Problem("spec.recovery.replaceStalledAfter", TOO_SOON if short else TOO_LONG_STALL)


def _template_problems(template: PodTemplateSpec, *, cached: bool) -> Iterator[Problem]:
    """What is the operator's in a pod template; `cached` when spec.model.cache is set."""
    at = "spec.podTemplate"
    metadata, spec = template.metadata or PodMetadata(), template.spec or PodContent()
    yield from _keys(f"{at}.metadata.labels", metadata.labels or {})
    yield from _keys(f"{at}.metadata.annotations", metadata.annotations or {})
    for key in metadata.labels or {}:
        if key in OWN_LABELS or key.startswith(OWN_PREFIX):
            yield Problem(f"{at}.metadata.labels", f"{LABEL_CURE} (got {key})")
    for key in metadata.annotations or {}:
        if key == DELETION_COST or key.startswith(OWN_PREFIX):
            yield Problem(f"{at}.metadata.annotations", f"{ANNOTATION_CURE} (got {key})")
    for kind, containers in (
        ("containers", spec.containers or ()),
        ("initContainers", spec.init_containers or ()),
    ):
        yield from _twice(f"{at}.spec.{kind}", [container.name for container in containers])
        for index, container in enumerate(containers):
            yield from _container_problems(f"{at}.spec.{kind}[{index}]", kind, container)
    yield from _twice(f"{at}.spec.volumes", [volume.name for volume in spec.volumes or ()])
    for index, volume in enumerate(spec.volumes or ()):
        field = f"{at}.spec.volumes[{index}].name"
        if volume.name in OWN_VOLUMES or volume.name.startswith(ADAPTER_PREFIX):
            yield Problem(field, f"name {VOLUME_CURE} (got {volume.name})")
        if volume.name == CACHE_VOLUME and cached:
            yield Problem(field, f"{CACHE_VOLUME} {CACHE_CURE}")


def _container_problems(field: str, kind: str, container: Container) -> Iterator[Problem]:
    yield from _twice(f"{field}.env", [variable.name for variable in container.env or ()])
    if kind == "initContainers":
        if container.name in OWN_INIT_CONTAINERS:
            yield Problem(f"{field}.name", f"name {INIT_CURE} (got {container.name})")
        if container.image is None:
            yield Problem(f"{field}.image", "an init container needs an image: set image")
        return
    if container.name != ENGINE_CONTAINER:
        if container.image is None:
            yield Problem(f"{field}.image", IMAGE_NEEDED)
        return
    for name in container.to_dict():
        if name in OWNED:
            yield Problem(f"{field}.{name}", owned_refusal(name))
    for index, mount in enumerate(container.volume_mounts or ()):
        for pattern, cure in ((OWN_PLACES, MOUNT_CURE), (ROUNDABOUT, PATH_CURE)):
            if re.search(pattern, mount.mount_path):
                yield Problem(
                    f"{field}.volumeMounts[{index}].mountPath", f"mountPath {cure} (got {mount.mount_path})"
                )
    for index, port in enumerate(container.ports or ()):
        if port.container_port == ENGINE_PORT or port.name == ENGINE_PORT_NAME:
            yield Problem(f"{field}.ports[{index}]", PORT_CURE)


def _port_name_problems(content: PodContent) -> Iterator[Problem]:
    for kind, containers in (
        ("containers", content.containers),
        ("initContainers", content.init_containers),
    ):
        for index, container in enumerate(containers or ()):
            for number, port in enumerate(container.ports or ()):
                if port.name in PORT_NAMES:
                    field = f"spec.podTemplate.spec.{kind}[{index}].ports[{number}]"
                    yield Problem(field, f"{PORT_NAMES_CURE} (got {port.name})")


def _keys(field: str, labels: Mapping[str, str]) -> Iterator[Problem]:
    """CEL cannot look at keys, whose length the schema does not bound: it would be too costly."""
    for key in labels:
        if not re.fullmatch(QUALIFIED_NAME, key):
            yield Problem(field, f"{LABEL_KEY_CURE} (got {key!r})")


def _twice(field: str, names: list[str]) -> Iterator[Problem]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(field, f"{name} is there twice: keep one")
