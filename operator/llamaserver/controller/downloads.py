"""Models that are being downloaded, by the init container that comes before the engine: whom to ask how far
it is, and what that means for what is told of the pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llamaserver.api.names import DOWNLOAD_CONTAINER, ENGINE_PORT
from llamaserver.controller.moments import moment
from llamaserver.engine import Progress, Target

Downloads = Mapping[str, Progress | None]
"""By pod that downloads now; None where it does not tell how far it is."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a pod answered. `life` is the incarnation of the container that was asked, `until` the monotonic
    second until which this tells of now.
    """

    progress: Progress | None
    life: str
    until: float


def current(asked: Mapping[str, Target], told: Mapping[str, Told], now: float) -> Downloads:
    """How far the downloads are, by whom there is to ask. An answer that is old, or of a try before, says
    nothing: what ended since may have ended in failure.
    """
    return {
        pod: found.progress
        if (found := told.get(pod)) and found.life == target.incarnation and now <= found.until
        else None
        for pod, target in asked.items()
    }


def running(metadata: dict[str, Any], status: dict[str, Any]) -> Target | None:
    """Where to ask a pod whose download runs now; None where none does."""
    container = _container(status)
    if "running" not in (container.get("state") or {}):
        return None
    restarts = int(container.get("restartCount") or 0)
    return Target(metadata["name"], metadata["uid"], restarts, str(status.get("podIP") or ""), ENGINE_PORT)


def took_s(status: dict[str, Any]) -> float | None:
    """Seconds that a download took, 0 where there was none; None where its tries cannot be told apart."""
    container = _container(status)
    if not container:
        return 0.0
    ended = (container.get("state") or {}).get("terminated") or {}
    began, over = moment(ended.get("startedAt")), moment(ended.get("finishedAt"))
    if began is None or over is None or container.get("restartCount"):
        return None
    return (over - began).total_seconds()


def describe(repository: str, downloads: Downloads) -> str:
    """The download that is told best, in words. Pods that share a claim tell of the same files."""
    told = {pod: progress for pod, progress in downloads.items() if progress is not None}
    pod = max(told, key=lambda name: (told[name].bytes, name), default=min(downloads))
    far = str(told[pod]) if pod in told else "it has not told how far it is"
    more = f" and {len(downloads) - 1} more" if len(downloads) > 1 else ""
    return f"downloading {repository}: {far} (pod {pod}{more})"


def moving(downloads: Downloads) -> Iterable[str]:
    """The pods to whose cache bytes come."""
    return (pod for pod, progress in downloads.items() if progress is not None and progress.moves)


def _container(status: dict[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = status.get("initContainerStatuses") or []
    return next((one for one in containers if one.get("name") == DOWNLOAD_CONTAINER), {})
