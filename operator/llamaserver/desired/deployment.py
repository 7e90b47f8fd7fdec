"""The Deployment: one engine a pod."""

from __future__ import annotations

import math
from typing import Any, Final

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.names import (
    ENGINE_CONTAINER,
    ENGINE_PORT,
    child_labels,
    selector_labels,
)
from llamaserver.api.release import release_of
from llamaserver.api.server import LlamaServer
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.weights import is_downloaded_first
from llamaserver.desired.arguments import arguments
from llamaserver.desired.download import DOWNLOAD_ALLOWANCE_S, with_download
from llamaserver.desired.environment import environment
from llamaserver.desired.objects import KubeObject, child
from llamaserver.desired.placement import placement
from llamaserver.desired.podtemplate import merged
from llamaserver.desired.probes import probes
from llamaserver.desired.rollout import strategy
from llamaserver.desired.security import engine_security, pod_security
from llamaserver.desired.settings import BuildSettings, DesiredFleet
from llamaserver.desired.shutdown import Shutdown, shutdown
from llamaserver.desired.tls import port_name
from llamaserver.desired.tuner import engine_tuner_mount, tuner_init_containers, tuner_volume
from llamaserver.desired.volumes import mounts, volumes

ACCELERATOR_CLAIM: Final = "accelerator"
"""Name, inside the pod, of the claim that dynamic resource allocation fills."""
IMAGE_PULL_ALLOWANCE_S: Final = 900
"""Images of ten gigabytes are pulled before the startup probe starts to count."""


def deployment(
    server: LlamaServer, effective: EffectiveSpec, fleet: DesiredFleet, settings: BuildSettings
) -> KubeObject:
    """The Deployment. `replicas` is sent only when it is ours to decide."""
    name = server.metadata.name
    times = shutdown(effective, release_of(server.spec.engine.image), settings)
    ours = {"metadata": {"labels": child_labels(name)}, "spec": _pod(server, effective, settings, times)}
    spec: dict[str, Any] = {
        "selector": {"matchLabels": selector_labels(name)},
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": _progress_deadline(server.spec, effective, times),
        "strategy": strategy(effective),
        "template": with_download(merged(ours, server.spec.pod_template), server.spec),
    }
    if fleet.replicas is not None:
        spec["replicas"] = fleet.replicas
    return child(server, "apps/v1", "Deployment", name, spec=spec)


def grace_period(server: LlamaServer, effective: EffectiveSpec, settings: BuildSettings) -> int:
    """Seconds that a pod of this fleet may take to end, in all."""
    return shutdown(effective, release_of(server.spec.engine.image), settings).grace_period


def _progress_deadline(spec: LlamaServerSpec, effective: EffectiveSpec, times: Shutdown) -> int:
    """Longer than anything that is still progress: an old pod drains, an image is pulled, a model is
    downloaded, an engine starts.
    """
    allowed = times.grace_period + IMAGE_PULL_ALLOWANCE_S + math.ceil(effective.startup_timeout.seconds)
    return allowed + (DOWNLOAD_ALLOWANCE_S if is_downloaded_first(spec) else 0)


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
        **placement(server),
    }
    if spec.accelerator is not None and spec.accelerator.resource_claim_template_name is not None:
        template = spec.accelerator.resource_claim_template_name
        pod["resourceClaims"] = [{"name": ACCELERATOR_CLAIM, "resourceClaimTemplateName": template}]
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
        "ports": [{"name": port_name(spec), "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        # The last lines of an engine that died are where "out of memory" stands.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_lifecycle(times),
        "securityContext": engine_security(spec.accelerator),
        "volumeMounts": [*mounts(spec, effective), engine_tuner_mount(settings)],
        **probes(effective, port_name(spec)),
    }


def _lifecycle(times: Shutdown) -> dict[str, Any]:
    """The preStop sleep; none for 0 seconds, which API servers before 1.33 refuse."""
    return {"lifecycle": {"preStop": {"sleep": {"seconds": times.pre_stop}}}} if times.pre_stop else {}


def _resources(spec: LlamaServerSpec) -> dict[str, Any]:
    """The user's CPU and memory, and the accelerators: claimed, or with request and limit equal."""
    asked = spec.engine.resources.to_dict() if spec.engine.resources else {}
    if spec.accelerator is None:
        return asked
    if spec.accelerator.resource_name is None:
        return {**asked, "claims": [{"name": ACCELERATOR_CLAIM}]}
    own = {spec.accelerator.resource_name: spec.accelerator.count}
    return {part: {**asked.get(part, {}), **own} for part in ("requests", "limits")}
