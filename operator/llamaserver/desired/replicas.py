"""How many replicas the Deployment gets, from what is declared, what runs and what was decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.enums import ScalingMode
from llamaserver.api.names import FIELD_MANAGER
from llamaserver.desired.objects import KubeObject
from llamaserver.desired.settings import DesiredFleet

HANDOVER_MANAGER: Final = f"{FIELD_MANAGER}-handover"
"""Field manager under which `handover` is applied."""


def desired_fleet(effective: EffectiveSpec, current: int | None, wanted: int | None) -> DesiredFleet:
    """The fleet's size now.

    `current` is what the Deployment asks for now, None when there is none; `wanted` is the control law's
    answer, None for no opinion. In the modes Auto and Recommend the bounds hold whatever was decided, and no
    opinion (nothing is known, suspended, Recommend) keeps what runs: missing data never changes a fleet.
    """
    if effective.scaling_mode in (ScalingMode.FIXED, ScalingMode.EXTERNAL):
        return DesiredFleet(effective.replicas)
    decides = effective.scaling_mode is ScalingMode.AUTO and not effective.suspended
    kept = effective.min_replicas if current is None else current
    chosen = wanted if decides and wanted is not None else kept
    most = effective.max_replicas or effective.min_replicas
    return DesiredFleet(max(effective.min_replicas, min(chosen, most)))


def handover(live: Mapping[str, Any], fleet: DesiredFleet) -> KubeObject | None:
    """What to apply as `HANDOVER_MANAGER` before the number of replicas is given up, else None.

    With server-side apply a field that its only owner leaves out is deleted, and the API server would fill in
    1: a fleet of eight would shrink to one the moment its scaling mode becomes External. So somebody else has
    to own the present number first; the autoscaler's first change takes it over.
    """
    number = live.get("spec", {}).get("replicas")
    if fleet.replicas is not None or number is None or not _owns_replicas(live):
        return None
    metadata = live["metadata"]
    named = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": named, "spec": {"replicas": number}}


def _owns_replicas(live: Mapping[str, Any]) -> bool:
    """Whether the operator has applied the field itself."""
    for entry in live.get("metadata", {}).get("managedFields", ()):
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply":
            return "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    return False
