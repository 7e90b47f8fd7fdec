"""What Kubernetes says of pods that it does not make, place or start, and what to do about it.

Text in, cure out. The words are the API server's, the scheduler's and the kubelet's own.
"""

from __future__ import annotations

import re
from typing import Final

_FIELDS_OF_SECRETS: Final = (
    "spec.model.tokenSecretRef, spec.engine.apiKeySecretRef, spec.engine.tls, spec.engine.env or "
    "spec.podTemplate"
)
_FIELDS_OF_CONFIG_MAPS: Final = "spec.engine.env or spec.podTemplate"


def _table(*rows: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(phrase), cure) for phrase, cure in rows)


_NOT_MADE: Final = _table(
    (r"exceeded quota", "raise the namespace's quota, or ask for fewer replicas or less of what it limits"),
    (
        r"failed quota",
        "the namespace's quota wants each container to say how much it takes: set requests and limits of "
        "what it names in spec.engine.resources, and in a LimitRange for other containers",
    ),
    (
        r"violates PodSecurity",
        "label the namespace for a Pod Security level that the pods meet, or take out of spec.podTemplate "
        "what does not meet it",
    ),
    (
        r"error looking up service account|serviceaccount .* not found",
        "create the ServiceAccount, or correct spec.scheduling.serviceAccountName",
    ),
    (
        r"RuntimeClass .* not found",
        "create the RuntimeClass, or correct spec.scheduling.runtimeClassName",
    ),
    (
        r"no PriorityClass with name .* was found",
        "create the PriorityClass, or correct spec.scheduling.priorityClassName",
    ),
    (
        r"(?:maximum|minimum) .* usage per (?:Container|Pod)",
        "change spec.engine.resources to what the namespace's LimitRange allows",
    ),
)

_NOT_PLACED: Final = _table(
    (r"persistentvolumeclaim .* not found", "create the claim, or correct the field that names it"),
    (
        r"persistentvolumeclaim .* is being deleted",
        "name another claim: what is being deleted is not mounted",
    ),
    (
        r"unbound immediate PersistentVolumeClaims",
        "no volume is there for a claim: kubectl describe pvc tells why",
    ),
    (
        r"Insufficient [a-z]",
        "add a node that has so much free, or ask for less in spec.engine.resources or spec.accelerator",
    ),
    (
        r"didn't match Pod's node affinity/selector",
        "correct spec.scheduling.nodeSelector or affinity, or label a node",
    ),
    (r"untolerated taint", "tolerate a node's taint by spec.scheduling.tolerations"),
)

_NOT_STARTED: Final = _table(
    (
        r"couldn't find key .* in Secret",
        f"add the key to that Secret, and the pod starts; or correct the field that names it "
        f"({_FIELDS_OF_SECRETS})",
    ),
    (
        r"couldn't find key .* in ConfigMap",
        f"add the key to that ConfigMap, and the pod starts; or correct the field that names it "
        f"({_FIELDS_OF_CONFIG_MAPS})",
    ),
    (
        r'secret ".*" not found',
        f"create that Secret, and the pod starts; or correct the field that names it ({_FIELDS_OF_SECRETS})",
    ),
    (
        r'configmap ".*" not found',
        f"create that ConfigMap, and the pod starts; or correct the field that names it "
        f"({_FIELDS_OF_CONFIG_MAPS})",
    ),
)


def cure_of_making(said: str) -> str:
    """What to do about pods that the API server refuses."""
    return _first(_NOT_MADE, said) or "the pods do not fit a policy of the namespace"


def cures_of_placing(said: str) -> str:
    """What to do about a pod that no node fits, for any reason that the scheduler gives; empty for none that
    is known.
    """
    return ", or ".join(cure for phrase, cure in _NOT_PLACED if phrase.search(said))


def cure_of_starting(said: str) -> str:
    """What to do about a container that the kubelet cannot make; empty for nothing that is known."""
    return _first(_NOT_STARTED, said)


def _first(table: tuple[tuple[re.Pattern[str], str], ...], said: str) -> str:
    return next((cure for phrase, cure in table if phrase.search(said)), "")
