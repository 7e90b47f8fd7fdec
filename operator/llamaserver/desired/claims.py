"""Whether the claims that pods mount can be had by as many pods as there may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.references import Claim, claims_of
from llamaserver.api.spec import LlamaServerSpec

_ONE_POD: Final = "ReadWriteOncePod"
_SHARED: Final = {True: ("ReadOnlyMany", "ReadWriteMany"), False: ("ReadWriteMany",)}
"""Modes by which pods on several nodes can mount a claim, by whether they only read it. A mount that is
read-only does not change by how many nodes a ReadWriteOnce volume can be had: it is attached to one of them.
"""
_CACHE: Final = "spec.model.cache"


@dataclass(frozen=True, slots=True)
class ClaimProblem:
    """Why a claim would keep a second pod from starting, with the cure."""

    message: str
    certain: bool
    """No second pod can start, on whatever node. Otherwise one can where it lands on the first one's node."""


def claim_problem(
    spec: LlamaServerSpec, effective: EffectiveSpec, claims: Mapping[str, Mapping[str, Any]]
) -> ClaimProblem | None:
    """What stands in the way of a second pod, be it a replica or the additional pod of a rollout, in any of
    the claims that the pods mount; None where nothing does, or nothing is known.

    `claims` are those that could be read, by name. ReadWriteOnce binds all pods to one node, where the next
    accelerator may not be; ReadWriteOncePod admits only one pod at all, so that not even a rollout can
    overlap.
    """
    alone = effective.max_replicas is not None and effective.max_replicas <= 1
    if alone and effective.max_surge == 0:
        return None
    found = list(_problems(spec, effective, claims, alone=alone))
    return min(found, key=lambda problem: not problem.certain, default=None)


def _problems(
    spec: LlamaServerSpec, effective: EffectiveSpec, claims: Mapping[str, Mapping[str, Any]], *, alone: bool
) -> Iterator[ClaimProblem]:
    for claim in claims_of(spec):
        live = claims.get(claim.name, {})
        asked, had = _modes(live, "spec"), _modes(live, "status")
        certain = _ONE_POD in asked
        # What a volume allows counts for nodes, and what the claim asks for counts for pods.
        modes = asked if certain else had or asked
        if modes and (certain or not set(modes) & set(_SHARED[claim.read_only])):
            yield ClaimProblem(_message(claim, modes, effective, alone=alone, certain=certain), certain)


def _modes(claim: Mapping[str, Any], part: str) -> list[str]:
    return sorted((claim.get(part) or {}).get("accessModes") or ())


def _message(claim: Claim, modes: list[str], effective: EffectiveSpec, *, alone: bool, certain: bool) -> str:
    where = "" if certain else " on other nodes"
    who = "the additional pod of a rollout" if alone else "further replicas"
    surge = "set spec.rollout.maxSurge: 0" if effective.max_surge else ""
    fewer = surge if alone else f"allow one replica and {surge}" if surge else "allow one replica"
    use = f"use a claim with {' or '.join(_SHARED[claim.read_only])}"
    cures = [fewer, use]
    if claim.field.startswith(f"{_CACHE}."):
        cures.append(f"remove {_CACHE} to give each pod its own")
    return (
        f"{claim.field}: the claim {claim.name} allows {', '.join(modes)} alone, so {who}{where} cannot "
        f"start: {', '.join(cures[:-1])}, or {cures[-1]}"
    )
