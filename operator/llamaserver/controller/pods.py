"""What is concluded from a pod: whether its engine can be asked, whether it serves, what ails it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from llamaserver.api.conditions import Reason
from llamaserver.api.names import ENGINE_CONTAINER, ENGINE_PORT, ENGINE_TLS_PORT_NAME
from llamaserver.api.podtemplate import DELETION_COST
from llamaserver.cluster.kinds import Object
from llamaserver.control.victims import Stage
from llamaserver.controller import downloads
from llamaserver.controller.lastwords import cause_of_death, death_by_exit_code, last_words
from llamaserver.controller.moments import latest, moment, transition
from llamaserver.controller.refusals import cure_of_making, cure_of_starting, cures_of_placing
from llamaserver.controller.starts import LOOPS, CutShort, cut_short, last_end
from llamaserver.engine import Target

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_FORGIVEN = timedelta(minutes=10)
"""After a life this long the kubelet starts its back-off afresh."""


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
    """From scheduled to ready, as the pod's conditions date them, without the download of a model: the next
    pod finds it in the cache.
    """
    trouble: Trouble | None
    down_since: datetime | None = None
    """Since when it has not been ready; None when it is, or does not say."""
    coming_up_since: datetime | None = None
    """Since when nothing but its engine keeps it from being ready; None when it is ready, or when a container
    that ends before the engine starts is still at work.
    """
    begun: bool = True
    """A container of it has been started, for which all its volumes had to be there."""
    stage: Stage = Stage.READY
    made_at: float = math.inf
    """Unix seconds."""
    deletion_cost: str = ""
    """What the operator has written there; empty where it has not."""
    cut_short: CutShort | None = None
    """How its engine's last start was ended from outside, unless something else ails the pod."""
    engine_started: datetime | None = None
    """When the engine's container that runs now was started; None where none does, or it does not say."""
    downloads: Target | None = None
    """Where to ask how far the download of its model is; None when none runs. Without a host while the pod
    has no address.
    """


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
        address = status["podIP"]
        target = Target(
            metadata["name"], metadata["uid"], restarts, address, ENGINE_PORT, tls=_serves_tls(obj)
        )
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ending=ending,
        ready=ready,
        terminating="deletionTimestamp" in metadata,
        target=target,
        cold_start_s=_cold_start(status, conditions) if ready and not engine.get("restartCount") else None,
        trouble=None if ending or ready else _trouble(metadata["name"], status, conditions),
        down_since=None if ready else _down_since(metadata, conditions),
        coming_up_since=None if ready else _coming_up_since(metadata, status, conditions),
        begun=any(_has_begun(container) for container in _containers(status)),
        stage=_stage(ready, status, conditions),
        made_at=made.timestamp() if (made := moment(metadata.get("creationTimestamp"))) else math.inf,
        deletion_cost=str((metadata.get("annotations") or {}).get(DELETION_COST) or ""),
        cut_short=None if ending or ready or up else cut_short(engine, transition(conditions, "Ready")),
        engine_started=moment(_running(engine).get("startedAt")),
        downloads=None if ending or ready else downloads.running(metadata, status),
    )


def refusal(condition: dict[str, Any]) -> Trouble | None:
    """A Deployment's condition ReplicaFailure: pods that the API server does not take, with the cure."""
    if condition.get("status") != "True":
        return None
    text = str(condition.get("message") or "the API server refuses the pods")
    return Trouble(
        Reason.PODS_REFUSED, f"{text}: {cure_of_making(text)}", transition({"it": condition}, "it")
    )


def cold_starts(
    before: Mapping[str, float | None], pods: Iterable[Pod], most_s: float
) -> dict[str, float | None]:
    """The seconds that pods took to start, by uid, of those that are there: as each told when it was first
    seen ready. What takes longer than `most_s` was no start, but a pod that was unready for a while.
    """
    found: dict[str, float | None] = {}
    for pod in pods:
        if pod.uid in before:
            found[pod.uid] = before[pod.uid]
        elif pod.ready:
            took = pod.cold_start_s
            found[pod.uid] = took if took is not None and took <= most_s else None
    return found


def _engine(status: dict[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = status.get("containerStatuses") or []
    return next((container for container in containers if container.get("name") == ENGINE_CONTAINER), {})


def _serves_tls(obj: Object) -> bool:
    """By the pod's own port: while a rollout is under way pods of one LlamaServer differ."""
    containers: list[dict[str, Any]] = (obj.get("spec") or {}).get("containers") or []
    ports = (port for one in containers if one["name"] == ENGINE_CONTAINER for port in one.get("ports") or ())
    return any(
        port.get("containerPort") == ENGINE_PORT and port.get("name") == ENGINE_TLS_PORT_NAME
        for port in ports
    )


def _running(container: dict[str, Any]) -> dict[str, Any]:
    running: dict[str, Any] = (container.get("state") or {}).get("running") or {}
    return running


def _is(conditions: dict[str, Any], type_: str) -> bool:
    return bool(conditions.get(type_, {}).get("status") == "True")


def _stage(ready: bool, status: dict[str, Any], conditions: dict[str, Any]) -> Stage:
    if ready:
        return Stage.READY
    if status.get("phase") == "Running":
        return Stage.NOT_READY
    return Stage.PENDING if _is(conditions, "PodScheduled") else Stage.UNASSIGNED


def _cold_start(status: dict[str, Any], conditions: dict[str, Any]) -> float | None:
    download = downloads.took_s(status)
    if download is None:
        return None
    try:
        scheduled = datetime.fromisoformat(conditions["PodScheduled"]["lastTransitionTime"])
        ready = datetime.fromisoformat(conditions["Ready"]["lastTransitionTime"])
    except (KeyError, TypeError, ValueError):
        return None
    seconds = (ready - scheduled).total_seconds() - download
    return seconds if seconds > 0 else None


def _trouble(name: str, status: dict[str, Any], conditions: dict[str, Any]) -> Trouble | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        text = str(scheduled.get("message") or "no node fits")
        shared = "ReadWriteOncePod" in text
        reason = Reason.CLAIM_NOT_SHAREABLE if shared else Reason.UNSCHEDULABLE
        since = transition(conditions, "PodScheduled")
        cures = f"; {cures}" if (cures := cures_of_placing(text)) else ""
        return Trouble(reason, f"pod {name} cannot be scheduled: {text}{cures}", since)
    unready = transition(conditions, "Ready")
    for container in _containers(status):
        found = _container_trouble(name, container, unready)
        if found is not None:
            return replace(found, since=latest(unready, found.since))
    return None


def _containers(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _has_begun(container: dict[str, Any]) -> bool:
    state, last = container.get("state") or {}, container.get("lastState") or {}
    return "running" in state or "terminated" in state or "terminated" in last


def _coming_up_since(
    metadata: dict[str, Any], status: dict[str, Any], conditions: dict[str, Any]
) -> datetime | None:
    """Containers that run before the engine may take as long as they take. What a first start of the engine
    waited for its image counts for nothing; later starts count on from the first.
    """
    initialized = conditions.get("Initialized") or {}
    at_work = any(
        "running" in (container.get("state") or {}) for container in status.get("initContainerStatuses") or ()
    )
    if initialized.get("status") == "False" and at_work:
        return None
    since = _down_since(metadata, conditions)
    if initialized.get("status") == "True":
        since = latest(since, transition(conditions, "Initialized"))
    engine = _engine(status)
    first = not int(engine.get("restartCount") or 0)
    return latest(since, moment(_running(engine).get("startedAt"))) if first else since


def _down_since(metadata: dict[str, Any], conditions: dict[str, Any]) -> datetime | None:
    """A pod that no kubelet has taken up yet has no such condition, but a time at which it was made."""
    made = {"Ready": {"lastTransitionTime": metadata.get("creationTimestamp")}}
    return transition(made | conditions, "Ready")


def _container_trouble(pod: str, container: dict[str, Any], unready: datetime | None) -> Trouble | None:
    """What a container says of why its pod, not ready since `unready`, does not come up. It is dated where it
    is younger than that.
    """
    if container.get("ready"):
        # However an earlier life ended: it is another container that keeps the pod from being ready.
        return None
    state = container.get("state") or {}
    waiting: dict[str, Any] = state.get("waiting") or {}
    ended = last_end(container)
    where = f"container {container.get('name')} of pod {pod}"
    why = str(waiting.get("reason") or "")
    if why in _IMAGE:
        return Trouble(Reason.IMAGE_UNAVAILABLE, f"{where}: {why}: {waiting.get('message') or 'see the pod'}")
    if why in _CONFIG:
        told = str(waiting.get("message") or "")
        if cure := cure_of_starting(told):
            return Trouble(Reason.STARTUP_FAILED, f"{where}: {why}: {told}: {cure}")
        if (death := cause_of_death(told)) is not None:
            return Trouble(death.reason, f"{where}: {why}: {death.line}: {death.advice}")
        return Trouble(Reason.STARTUP_FAILED, f"{where}: {why}: {told or 'see the pod'}")
    if "running" in state and not _ends_again_and_again(container, ended, unready):
        # However an earlier life ended, this one has its own time to start.
        return None
    # In a loop every try ends anew, so a loop is as old as the pod's not being ready.
    once = int(container.get("restartCount") or 0) < LOOPS
    since = moment(ended.get("finishedAt")) if once else None
    said = str(ended.get("message") or "").strip()
    if ended.get("reason") == "OOMKilled":
        cure = "raise spec.engine.resources.limits.memory"
        text = f"{where} was killed at its memory limit: {cure}"
        return Trouble(Reason.OUT_OF_MEMORY_AT_START, text, since)
    if (death := cause_of_death(said)) is not None:
        text = f"{where} ended: {death.advice}. It said: {death.line}"
        return Trouble(death.reason, text, since)
    if why == "CrashLoopBackOff" or _between_crashes(container, ended):
        code = ended.get("exitCode")
        meaning = death_by_exit_code(code)
        told = f"{code} ({meaning})" if meaning else f"{code}"
        return Trouble(
            Reason.CRASH_LOOPING,
            f"{where} has ended {container.get('restartCount', 0)} times, last with exit code {told}: "
            f"{last_words(said) or 'kubectl logs --previous tells more'}",
            since,
        )
    return None


def _ends_again_and_again(container: dict[str, Any], ended: dict[str, Any], unready: datetime | None) -> bool:
    """Whether a container that runs again is likely to end as it did before.

    The end of a life that served for long tells nothing of the next one: the pod became unready by that very
    end, and not before that life began.
    """
    if int(container.get("restartCount") or 0) < LOOPS:
        return False
    began = moment(ended.get("startedAt"))
    served = began is not None and unready is not None and unready > began
    return not served or _between_crashes(container, ended)


def _between_crashes(container: dict[str, Any], ended: dict[str, Any]) -> bool:
    """Whether a container that is not ready is on its next try of a crash loop.

    Between two back-offs it runs, or has just ended, and says nothing of the loop: without this, what is said
    of the pod would change with every try. One restart is no loop, nor is the end of a long life.
    """
    if container.get("ready") or int(container.get("restartCount") or 0) < LOOPS:
        return False
    began, over = moment(ended.get("startedAt")), moment(ended.get("finishedAt"))
    return began is not None and over is not None and over - began < _FORGIVEN
