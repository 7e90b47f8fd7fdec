"""How pods are replaced, and what that means for those who are being served, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.names import ENGINE_CONTAINER
from llamaserver.api.rolling import ROLLS_NOTHING
from llamaserver.desired.difference import differences, first_difference

CHANGES_SHOWN: Final = 3
_SEQS: Final = "--max-num-seqs="


class Outlook(NamedTuple):
    """What a rollout does to the service. `interrupts` is True when there will be a time without any pod."""

    interrupts: bool
    text: str


def strategy(effective: EffectiveSpec) -> dict[str, Any]:
    """The Deployment's strategy. A surge needs a spare accelerator, which most clusters do not have: with
    Kubernetes' own default the new pod would wait for ever.
    """
    bounds = {"maxSurge": effective.max_surge, "maxUnavailable": effective.max_unavailable}
    return {"type": "RollingUpdate", "rollingUpdate": bounds}


def outlook(effective: EffectiveSpec, replicas: int) -> Outlook:
    """What replacing all pods of a fleet of so many replicas means for those who are being served."""
    if replicas == 0:
        return Outlook(False, "no pod runs")
    down = min(effective.max_unavailable, replicas)
    if down == replicas:
        what = "its pod has" if replicas == 1 else "the pods have"
        cure = "maxUnavailable: 0" if effective.max_surge else "maxSurge: 1"
        text = (
            f"nothing is served from when {what} ended until a new one has started, which may take "
            f"{effective.startup_timeout}; spec.rollout.{cure} avoids that where an accelerator is spare"
        )
        return Outlook(True, text)
    if down == 0:
        return Outlook(
            False,
            f"no pod ends before its successor serves, for which {effective.max_surge} more must find room",
        )
    return Outlook(
        False, f"at most {down} at a time, so that {replicas - down} of {replicas} replicas go on serving"
    )


def rollout_reason(
    live: Mapping[str, Any],
    wanted: Mapping[str, Any],
    old_spec: Mapping[str, Any],
    new_spec: Mapping[str, Any],
) -> str:
    """Why applying the Deployment `wanted` over `live` replaces pods; empty when it replaces none.

    In the terms of the LlamaServer where its spec changed (`spec.engine.maxModelLen: 8192 -> 16384`) or a
    restart gives engines another cap, else of the pod template: then a setting of the operator's changed, or
    somebody edited the Deployment. So too where `old_spec` is empty, because the Deployment does not say what
    it was made from.
    """
    first = first_difference(live, wanted)
    if not first.startswith("spec.template"):
        return ""
    if not old_spec:
        return first
    found = [
        line
        for key in sorted({*old_spec, *new_spec} - ROLLS_NOTHING)
        for line in differences(f"spec.{key}", old_spec.get(key), new_spec.get(key))
    ]
    more = f" and {len(found) - CHANGES_SHOWN} more" if len(found) > CHANGES_SHOWN else ""
    if found:
        return "; ".join(found[:CHANGES_SHOWN]) + more
    restarts = any((spec.get("tuning") or {}).get("restart") for spec in (old_spec, new_spec))
    return (_restart(live, wanted) if restarts else "") or first


def _restart(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What a restart for another cap changes, or going back from one; empty where the cap stays."""
    before, after = started_with(live), started_with(wanted)
    return f"spec.tuning.restart: maxNumSeqs {before} -> {after}" if before and after != before else ""


def started_with(deployment: Mapping[str, Any]) -> str:
    """--max-num-seqs of the engine's container in a Deployment, or an empty text."""
    containers = deployment.get("spec", {}).get("template", {}).get("spec", {}).get("containers") or ()
    words = [
        word for one in containers if one.get("name") == ENGINE_CONTAINER for word in one.get("args") or ()
    ]
    return next((word.removeprefix(_SEQS) for word in words if word.startswith(_SEQS)), "")
