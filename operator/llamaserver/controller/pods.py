"""What is concluded from a pod: whether its engine can be asked, whether it serves, what ails it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from llamaserver.api.conditions import Reason
from llamaserver.api.names import ENGINE_CONTAINER, ENGINE_PORT
from llamaserver.cluster.kinds import Object
from llamaserver.engine import Target

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_OUT_OF_MEMORY = ("out of memory", "outofmemoryerror", "no available memory for the cache blocks")
_OOM_CURE = "lower spec.engine.maxNumSeqs, maxModelLen or gpuMemoryUtilization, or use a larger accelerator"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not come up. `reason` is a condition's reason, `message` names the pod and the cure."""

    reason: Reason
    message: str
    since: datetime | None = None
    """Since when the pod has not been ready, or could not be scheduled; None when it does not say."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One engine pod. A pod that is ending counts for nothing: not asked, not ready, never retuned."""

    name: str
    uid: str
    ending: bool
    ready: bool
    terminating: bool
    """Asked to end, and still holding what it holds."""
    target: Target | None
    """Where to ask its engine; None while there is nothing to ask."""
    cold_start_s: float | None
    """From scheduled to ready, as the pod's conditions date them."""
    trouble: Trouble | None


def read(obj: Object) -> Pod:
    """The facts of a pod object."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    engine = _engine(status)
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    ending = "deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed")
    ready = not ending and _is(conditions, "Ready")
    up = ready or bool(engine.get("started"))
    target = None
    if not ending and up and status.get("podIP"):
        restarts = int(engine.get("restartCount") or 0)
        target = Target(metadata["name"], metadata["uid"], restarts, status["podIP"], ENGINE_PORT)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ending=ending,
        ready=ready,
        terminating="deletionTimestamp" in metadata,
        target=target,
        cold_start_s=_cold_start(conditions) if ready and not engine.get("restartCount") else None,
        trouble=None if ending or ready else _trouble(metadata["name"], status, conditions),
    )


def cold_start(pods: Iterable[Pod]) -> float | None:
    """The median cold start of the pods that are ready, in seconds, or None when none tells."""
    known = [pod.cold_start_s for pod in pods if pod.cold_start_s is not None]
    return statistics.median(known) if known else None


def _engine(status: dict[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = status.get("containerStatuses") or []
    return next((container for container in containers if container.get("name") == ENGINE_CONTAINER), {})


def _is(conditions: dict[str, Any], type_: str) -> bool:
    return bool(conditions.get(type_, {}).get("status") == "True")


def _cold_start(conditions: dict[str, Any]) -> float | None:
    try:
        scheduled = datetime.fromisoformat(conditions["PodScheduled"]["lastTransitionTime"])
        ready = datetime.fromisoformat(conditions["Ready"]["lastTransitionTime"])
    except (KeyError, TypeError, ValueError):
        return None
    seconds = (ready - scheduled).total_seconds()
    return seconds if seconds > 0 else None


def _trouble(name: str, status: dict[str, Any], conditions: dict[str, Any]) -> Trouble | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        text = str(scheduled.get("message") or "no node fits")
        shared = "ReadWriteOncePod" in text
        reason = Reason.CLAIM_NOT_SHAREABLE if shared else Reason.UNSCHEDULABLE
        since = _transition(conditions, "PodScheduled")
        return Trouble(reason, f"pod {name} cannot be scheduled: {text}", since)
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        found = _container_trouble(name, container)
        if found is not None:
            return replace(found, since=_transition(conditions, "Ready"))
    return None


def _transition(conditions: dict[str, Any], type_: str) -> datetime | None:
    try:
        return datetime.fromisoformat(conditions[type_]["lastTransitionTime"])
    except (KeyError, TypeError, ValueError):
        return None


def _container_trouble(pod: str, container: dict[str, Any]) -> Trouble | None:
    state = container.get("state") or {}
    waiting: dict[str, Any] = state.get("waiting") or {}
    ended: dict[str, Any] = (
        state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    )
    where = f"container {container.get('name')} of pod {pod}"
    why = str(waiting.get("reason") or "")
    if why in _IMAGE:
        return Trouble(Reason.IMAGE_UNAVAILABLE, f"{where}: {why}: {waiting.get('message') or 'see the pod'}")
    if why in _CONFIG:
        return Trouble(Reason.STARTUP_FAILED, f"{where}: {why}: {waiting.get('message') or 'see the pod'}")
    said = str(ended.get("message") or "").strip()
    if ended.get("reason") == "OOMKilled":
        cure = "raise spec.engine.resources.limits.memory"
        return Trouble(Reason.OUT_OF_MEMORY_AT_START, f"{where} was killed at its memory limit: {cure}")
    if any(word in said.lower() for word in _OUT_OF_MEMORY):
        return Trouble(
            Reason.OUT_OF_MEMORY_AT_START, f"{where} ran out of memory: {_OOM_CURE}. It said: {_tail(said)}"
        )
    if why == "CrashLoopBackOff":
        code = ended.get("exitCode")
        return Trouble(
            Reason.CRASH_LOOPING,
            f"{where} has ended {container.get('restartCount', 0)} times, last with exit code {code}: "
            f"{_tail(said) or 'kubectl logs --previous tells more'}",
        )
    return None


def _tail(text: str, limit: int = 300) -> str:
    """The end of a text, where a traceback says what it was about."""
    return text if len(text) <= limit else "…" + text[1 - limit :]
