"""What a Deployment remembers of its rollouts: the spec it was made from, the number that a restart has
chosen for it, why its pods were last replaced.

All are annotations, for an operator that restarts in the middle of a rollout knows nothing else of it. The
Deployment's controller copies them to the ReplicaSet of each revision, so every revision that is kept says
why it came, and from which spec it can be had again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from llamaserver.api.server import LlamaServer
from llamaserver.api.status import RestartStatus
from llamaserver.cluster.kinds import DEPLOYMENT, Object
from llamaserver.desired import rollout_reason, started_with

_log = logging.getLogger(__name__)

SPEC_ANNOTATION = "llamaserver.dev/last-accepted-spec"
"""What a new leader tunes by when the present spec cannot be acted upon, and what to go back to."""

RESTART_ANNOTATION = "llamaserver.dev/restart"
"""What a new leader starts engines with where status, which says it too, was lost."""

UNTOLD = "the Deployment was changed"
"""The reason for a rollout when none can be told."""

CAUSE_ANNOTATION = "kubernetes.io/change-cause"
"""Kubernetes' own, which `kubectl rollout history` shows."""


def remember(obj: Object, parsed: LlamaServer) -> Object:
    """The Deployment with the spec it is made from; other children pass unchanged."""
    if obj["kind"] != DEPLOYMENT.kind:
        return obj
    text = json.dumps(parsed.spec.to_dict(), sort_keys=True, separators=(",", ":"))
    return _annotated(obj, SPEC_ANNOTATION, text)


def remembered(live: Object | None) -> dict[str, Any] | None:
    """The spec that a live Deployment was made from, or None when it does not say so."""
    try:
        found = json.loads(_annotations(live or {}).get(SPEC_ANNOTATION, ""))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def with_restart(obj: Object, told: RestartStatus | None) -> Object:
    """The Deployment with the number that a restart has chosen for it; other children pass unchanged."""
    if obj["kind"] != DEPLOYMENT.kind or told is None or told.max_num_seqs is None:
        return obj
    kept = RestartStatus(max_num_seqs=told.max_num_seqs, time=told.time, spec_digest=told.spec_digest)
    return _annotated(obj, RESTART_ANNOTATION, json.dumps(kept.to_dict(), sort_keys=True))


def remembered_restart(live: Object | None) -> RestartStatus | None:
    """The number that a restart has chosen for a live Deployment, when, and for which spec; None where that
    is not told, or not what its pods are started with.
    """
    try:
        found = RestartStatus.model_validate_json(_annotations(live or {}).get(RESTART_ANNOTATION, ""))
    except ValueError:
        return None
    return found if live is not None and started_with(live) == str(found.max_num_seqs) else None


def cause_of(live: Object | None) -> str:
    """Why the pods of a live Deployment were last replaced, or an empty text."""
    return str(_annotations(live or {}).get(CAUSE_ANNOTATION) or "")


def new_cause(live: Object, wanted: Object) -> str:
    """Why applying the Deployment `wanted` over `live` replaces pods, or an empty text."""
    try:
        return rollout_reason(live, wanted, remembered(live) or {}, remembered(wanted) or {})
    except Exception:
        # Words are no reason to leave the work undone.
        _log.exception("the reason of a rollout of %s cannot be told", wanted["metadata"]["name"])
        return UNTOLD


def with_cause(wanted: Object, cause: str) -> Object:
    """The Deployment with the reason for its last rollout; unchanged while it has had none."""
    return _annotated(wanted, CAUSE_ANNOTATION, cause) if cause else wanted


def _annotations(obj: Mapping[str, Any]) -> dict[str, str]:
    return obj.get("metadata", {}).get("annotations") or {}


def _annotated(obj: Object, name: str, value: str) -> Object:
    annotations = {**_annotations(obj), name: value}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}
