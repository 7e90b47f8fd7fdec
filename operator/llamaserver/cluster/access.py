"""Every right the operator uses, in one table: the client checks its calls against it, the chart's RBAC
equals it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from llamaserver.cluster.kinds import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    LEASE,
    LLAMASERVER,
    POD,
    POD_DISRUPTION_BUDGET,
    SECRET,
    SERVICE,
    Kind,
)


class Scope(StrEnum):
    """Where a right is needed."""

    WATCHED = "Watched"
    """In every namespace whose LlamaServers are served."""
    OWN = "Own"
    """In the operator's own namespace, and there only for the one object it knows by name."""


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on one resource (`plural` or `plural/subresource`)."""

    scope: Scope
    group: str
    resource: str
    verbs: frozenset[str]


def _right(scope: Scope, kind: Kind, verbs: str, subresource: str = "") -> Right:
    resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
    return Right(scope, kind.group, resource, frozenset(verbs.split()))


RIGHTS: tuple[Right, ...] = (
    _right(Scope.WATCHED, LLAMASERVER, "get list watch"),
    _right(Scope.WATCHED, LLAMASERVER, "patch", "status"),
    # Clusters with the OwnerReferencesPermissionEnforcement admission plugin ask this of whoever sets
    # `blockOwnerDeletion`. No call of ours uses it, and no finalizer is ever written.
    _right(Scope.WATCHED, LLAMASERVER, "update", "finalizers"),
    _right(Scope.WATCHED, DEPLOYMENT, "get list watch create patch"),
    _right(Scope.WATCHED, SERVICE, "get list watch create patch"),
    _right(Scope.WATCHED, CONFIG_MAP, "get list watch create patch"),
    _right(Scope.WATCHED, POD_DISRUPTION_BUDGET, "get list watch create patch delete"),
    _right(Scope.WATCHED, POD, "list watch patch"),
    _right(Scope.WATCHED, POD, "create", "eviction"),
    _right(Scope.WATCHED, CLAIM, "get"),
    _right(Scope.WATCHED, EVENT, "create"),
    _right(Scope.OWN, LEASE, "get list watch create update"),
    _right(Scope.OWN, SECRET, "get create patch"),
)

_ALLOWED = {(right.group, right.resource): right.verbs for right in RIGHTS}


def check(verb: str, kind: Kind, subresource: str | None = None) -> None:
    """Refuse a call that the table does not know, before a cluster with least privilege refuses it.

    Raises:
        PermissionError: the call is not in `RIGHTS`.
    """
    resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
    if verb not in _ALLOWED.get((kind.group, resource), frozenset()):
        raise PermissionError(
            f"{verb} {resource} is not among the rights of the operator (cluster/access.py)"
        )
