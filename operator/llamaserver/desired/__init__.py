"""LlamaServer in, Kubernetes objects out. Pure: the same call serves reconcile, rendering, golden tests
and docs.
"""

from llamaserver.desired.build import build, termination_grace_seconds
from llamaserver.desired.claims import ClaimProblem, claim_problem
from llamaserver.desired.difference import first_difference
from llamaserver.desired.objects import KubeObject
from llamaserver.desired.replicas import HANDOVER_MANAGER, desired_fleet, handover
from llamaserver.desired.rollout import Outlook, outlook, rollout_reason, started_with
from llamaserver.desired.settings import BuildSettings, DesiredFleet, TunerDelivery

__all__ = [
    "HANDOVER_MANAGER",
    "BuildSettings",
    "ClaimProblem",
    "DesiredFleet",
    "KubeObject",
    "Outlook",
    "TunerDelivery",
    "build",
    "claim_problem",
    "desired_fleet",
    "first_difference",
    "handover",
    "outlook",
    "rollout_reason",
    "started_with",
    "termination_grace_seconds",
]
