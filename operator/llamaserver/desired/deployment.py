"""The Deployment: one engine a pod."""

from __future__ import annotations

import math
from typing import Any, Final

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.names import (
    ENGINE_CONTAINER,
    ENGINE_PORT,
    ENGINE_PORT_NAME,
    child_labels,
    selector_labels,
)
from llamaserver.api.server import LlamaServer, LlamaServerSpec
from llamaserver.desired.arguments import arguments
from llamaserver.desired.environment import environment
from llamaserver.desired.objects import KubeObject, child
from llamaserver.desired.probes import probes
from llamaserver.desired.release import release_of
from llamaserver.desired.security import engine_security, pod_security
from llamaserver.desired.settings import BuildSettings, DesiredFleet
from llamaserver.desired.shutdown import Shutdown, shutdown
from llamaserver.desired.tuner import engine_tuner_mount, tuner_init_containers, tuner_volume
from llamaserver.desired.volumes import mounts, volumes

IMAGE_PULL_ALLOWANCE_S: Final = 900
"""Images of ten gigabytes are pulled before the startup probe starts to count."""


def deployment(
    server: LlamaServer, effective: EffectiveSpec, fleet: DesiredFleet, settings: BuildSettings
) -> KubeObject:
    """The Deployment. `replicas` is sent only when it is ours to decide."""
    name = server.metadata.name
    times = shutdown(effective, release_of(server.spec.engine.image), settings)
    spec: dict[str, Any] = {
        "selector": {"matchLabels": selector_labels(name)},
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": _progress_deadline(effective, times),
        # A surge needs a spare accelerator, which most clusters do not have: the new pod would wait for ever.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "template": {
            "metadata": {"labels": child_labels(name)},
            "spec": _pod(server, effective, settings, times),
        },
    }
    if fleet.replicas is not None:
        spec["replicas"] = fleet.replicas
    return child(server, "apps/v1", "Deployment", name, spec=spec)


def grace_period(server: LlamaServer, effective: EffectiveSpec, settings: BuildSettings) -> int:
    """Seconds that a pod of this fleet may take to end, in all."""
    return shutdown(effective, release_of(server.spec.engine.image), settings).grace_period


def _progress_deadline(effective: EffectiveSpec, times: Shutdown) -> int:
    """Longer than anything that is still progress: an old pod drains, an image is pulled, an engine
    starts.
    """
    return times.grace_period + IMAGE_PULL_ALLOWANCE_S + math.ceil(effective.startup_timeout.seconds)


def _pod(
    server: LlamaServer, effective: EffectiveSpec, settings: BuildSettings, times: Shutdown
) -> dict[str, Any]:
    spec = server.spec
    pod: dict[str, Any] = {
        "containers": [_engine(spec, effective, settings, times)],
        "volumes": [*volumes(server, effective), tuner_volume(settings)],
        "securityContext": pod_security(spec.accelerator),
        "terminationGracePeriodSeconds": times.grace_period,
        # A Service called `vllm` would set VLLM_PORT=tcp://..., on which vLLM fails to start.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "topologySpreadConstraints": [
            {
                "topologyKey": "kubernetes.io/hostname",
                "maxSkew": 1,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector_labels(server.metadata.name)},
            }
        ],
        **(spec.scheduling.to_dict() if spec.scheduling else {}),
    }
    if init := tuner_init_containers(settings):
        pod["initContainers"] = init
    return pod


def _engine(
    spec: LlamaServerSpec, effective: EffectiveSpec, settings: BuildSettings, times: Shutdown
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": ENGINE_CONTAINER, "image": spec.engine.image}
    if spec.engine.image_pull_policy is not None:
        container["imagePullPolicy"] = str(spec.engine.image_pull_policy)
    if resources := _resources(spec):
        container["resources"] = resources
    return container | {
        "args": arguments(spec, effective, release_of(spec.engine.image), times),
        "env": environment(spec),
        "ports": [{"name": ENGINE_PORT_NAME, "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        # The last lines of an engine that died are where "out of memory" stands.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_lifecycle(times),
        "securityContext": engine_security(spec.accelerator),
        "volumeMounts": [*mounts(effective), engine_tuner_mount(settings)],
        **probes(effective),
    }


def _lifecycle(times: Shutdown) -> dict[str, Any]:
    """The preStop sleep; none for 0 seconds, which API servers before 1.33 refuse."""
    return {"lifecycle": {"preStop": {"sleep": {"seconds": times.pre_stop}}}} if times.pre_stop else {}


def _resources(spec: LlamaServerSpec) -> dict[str, Any]:
    """The user's CPU and memory, and the accelerators, of which request and limit must be equal."""
    asked = spec.engine.resources.to_dict() if spec.engine.resources else {}
    if spec.accelerator is None:
        return asked
    own = {spec.accelerator.resource_name: spec.accelerator.count}
    return {part: {**asked.get(part, {}), **own} for part in ("requests", "limits")}
