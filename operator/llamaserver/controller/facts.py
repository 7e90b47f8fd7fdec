"""What conditions are judged by: a Deployment's own account, the pods, the last tick, and what ails any of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from llamaserver.api.conditions import Reason
from llamaserver.api.effective import EffectiveSpec
from llamaserver.cluster.kinds import Object
from llamaserver.controller import downloads
from llamaserver.controller.cache import TEMPLATE_DIGEST
from llamaserver.controller.diff import mark_of
from llamaserver.controller.pods import Pod, Trouble, refusal
from llamaserver.controller.runtime import Report
from llamaserver.controller.starts import describe, out_of_time
from llamaserver.desired import ClaimProblem
from llamaserver.desired.deployment import IMAGE_PULL_ALLOWANCE_S


@dataclass(frozen=True, slots=True)
class Rollout:
    """A Deployment's own account of itself. `current` is False while it is not what is wanted now, or has not
    yet seen its newest spec.
    """

    exists: bool
    current: bool
    wanted: int
    updated: int
    total: int
    ready: int
    deadline_exceeded: str
    refused: Trouble | None = None
    """Pods that the Deployment wants and the API server does not take."""

    @property
    def replacing(self) -> bool:
        """Pods that are not of the present template are left, or it is not known yet that none are."""
        return self.exists and (not self.current or self.total > self.updated)

    @property
    def complete(self) -> bool:
        """Every pod there is has the present template, and there are as many as wanted."""
        return self.exists and self.current and self.updated >= self.wanted and self.total == self.updated


@dataclass(frozen=True, slots=True)
class Facts:
    """All that conditions are judged by."""

    spec: EffectiveSpec | None
    invalid: str
    apply_problem: tuple[str, str] | None
    claim_problem: ClaimProblem | None
    rollout: Rollout
    rollout_reason: str
    pods: Sequence[Pod]
    report: Report | None
    now: datetime
    patience_s: float
    """For how long a pod's trouble may be one that mends itself."""
    invalid_reason: Reason = Reason.INVALID_SPEC
    invalid_since: datetime | None = None
    """Since when, where it may be mended without another spec; else None."""
    in_force: bool = False
    """Whether it is in force all the same, for it starts pods from nothing else than the one before."""
    waits_for: str = ""
    restart: str = ""
    """Why no restart gives engines another cap now; empty where none is asked for."""
    downloads: downloads.Downloads = field(default_factory=dict)


def rollout(deployment: Object | None, wanted_mark: str, settled: str = "") -> Rollout:
    """Read a Deployment as the cache keeps it, which is to say that it was made from `wanted_mark`.

    `settled` is what `told_of` said last. Another number of replicas alone makes the generation run ahead of
    the status for a moment, in which all pods still have the present template.
    """
    if deployment is None:
        return Rollout(False, False, 0, 0, 0, 0, "")
    spec: dict[str, Any] = deployment.get("spec") or {}
    status: dict[str, Any] = deployment.get("status") or {}
    replicas = spec.get("replicas")
    told = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    progress = told.get("Progressing") or {}
    late = ""
    if progress.get("reason") == "ProgressDeadlineExceeded":
        late = str(progress.get("message") or "the pods did not come up in time")
    return Rollout(
        exists=True,
        current=mark_of(deployment) == wanted_mark
        and (_is_told(deployment) or settled == deployment[TEMPLATE_DIGEST]),
        wanted=1 if replicas is None else int(replicas),
        updated=int(status.get("updatedReplicas") or 0),
        total=int(status.get("replicas") or 0),
        ready=int(status.get("readyReplicas") or 0),
        deadline_exceeded=late,
        refused=refusal(told.get("ReplicaFailure") or {}),
    )


def told_of(deployment: Object | None, before: str) -> str:
    """A digest of the pod template that the Deployment's status tells of; while that is behind, `before`, and
    nothing once the template is another one: what is told later of a return to it may be of the one between.
    """
    if deployment is None:
        return ""
    now = str(deployment[TEMPLATE_DIGEST])
    return now if _is_told(deployment) or now == before else ""


def _is_told(deployment: Object) -> bool:
    observed = (deployment.get("status") or {}).get("observedGeneration") or 0
    return int(observed) >= int(deployment["metadata"].get("generation") or 0)


_MENDED_BY_A_HANDOVER = (Reason.UNSCHEDULABLE, Reason.PODS_REFUSED)


def trouble(facts: Facts) -> Trouble | None:
    """What keeps a pod from coming up, the longest-standing first.

    A pod that waits for what a terminating one still holds, on a node or in a quota, is in no trouble:
    without surge every rollout of a full cluster goes that way.
    """
    handing_over = any(pod.terminating for pod in facts.pods)
    ails = [facts.rollout.refused, *(_ails(pod, facts) for pod in facts.pods)]
    found = [
        one for one in ails if one is not None and not (handing_over and one.reason in _MENDED_BY_A_HANDOVER)
    ]
    worst = min(found, key=lambda one: one.since or facts.now, default=None)
    return None if worst is None else _with_surge_told(worst, facts)


def _ails(pod: Pod, facts: Facts) -> Trouble | None:
    """What a pod says, or what time says of it. That a start took too long tells more than that it ended, and
    that bytes come tells more than how an earlier try to download them ended.
    """
    if pod.name in downloads.moving(facts.downloads):
        return None
    overdue = _overdue(pod, facts)
    if pod.trouble is None or pod.trouble.reason is Reason.CRASH_LOOPING:
        found = _out_of_time(pod, facts)
        if found is not None:
            return replace(found, since=found.since or (overdue.since if overdue else None))
    return pod.trouble or overdue


def _out_of_time(pod: Pod, facts: Facts) -> Trouble | None:
    """A start that the startup probe ended. The next one has a time of its own, so that the first is dated,
    and may become a stall, only when the pod is overdue as a whole.
    """
    cut, spec = pod.cut_short, facts.spec
    if cut is None or spec is None or not out_of_time(cut, spec, facts.patience_s):
        return None
    since = pod.down_since if cut.again else None
    return Trouble(Reason.STARTUP_TIMEOUT_EXCEEDED, describe(pod.name, cut, spec), since)


def _overdue(pod: Pod, facts: Facts) -> Trouble | None:
    """A pod that says nothing of what ails it, and has been coming up for longer than any start may take."""
    if pod.ending or pod.ready or pod.coming_up_since is None or facts.spec is None:
        return None
    start = facts.spec.startup_timeout
    allowed = timedelta(seconds=IMAGE_PULL_ALLOWANCE_S + start.seconds + facts.patience_s)
    if facts.now - pod.coming_up_since <= allowed:
        return None
    text = (
        f"pod {pod.name} is not ready for longer than a handover, its image and spec.startup.timeout "
        f"({start}) take: its events tell more (kubectl describe pod)"
    )
    return Trouble(Reason.STARTUP_FAILED, text, pod.coming_up_since)


def downloading(facts: Facts) -> str:
    """What is told of pods that download their model; empty where none does."""
    if not facts.downloads or facts.spec is None:
        return ""
    return downloads.describe(facts.spec.source.path, facts.downloads)


def claim_holds_back(facts: Facts) -> bool:
    """Whether a claim that pods elsewhere cannot have keeps a pod from starting: one of those that are
    wanted, or the additional one of a rollout, which waits for its volumes.
    """
    if facts.claim_problem is None:
        return False
    state = facts.rollout
    if facts.claim_problem.certain and state.ready < state.wanted and state.wanted > 1:
        return True
    patience = timedelta(seconds=facts.patience_s)
    return max(state.wanted, state.total) > 1 and any(
        pod.down_since is not None and facts.now - pod.down_since > patience
        for pod in facts.pods
        if not (pod.begun or pod.ready or pod.ending)
    )


def will_not_mend(facts: Facts) -> bool:
    """Whether the present spec is one that waiting alone will not make good."""
    patience = timedelta(seconds=facts.patience_s)
    return bool(facts.invalid) and (facts.invalid_since is None or facts.now - facts.invalid_since > patience)


_OF_A_SURGE = (Reason.UNSCHEDULABLE, Reason.CLAIM_NOT_SHAREABLE, Reason.PODS_REFUSED)


def _with_surge_told(found: Trouble, facts: Facts) -> Trouble:
    """The additional pod of a rollout finds no room, or no volume: a rollout can be had without one."""
    state, spec = facts.rollout, facts.spec
    surges = spec is not None and spec.max_surge > 0 and state.total > state.updated
    if found.reason not in _OF_A_SURGE or not surges:
        return found
    cure = "a rollout asks for a pod beside the running ones; spec.rollout.maxSurge: 0 replaces them in place"
    return replace(found, message=f"{found.message}; {cure}")


def lasts(found: Trouble, facts: Facts) -> bool:
    """Whether a trouble has had the time in which it could have mended itself."""
    return found.since is not None and facts.now - found.since > timedelta(seconds=facts.patience_s)


def waits(facts: Facts) -> bool:
    """Whether something may turn into a trouble, or a trouble into a stall, by nothing but time."""
    starting = any(not pod.ready and not pod.ending for pod in facts.pods)
    return starting or facts.rollout.refused is not None or facts.invalid_since is not None
