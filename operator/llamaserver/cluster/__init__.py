"""The way to the Kubernetes API: a small protocol, its implementation, leadership and events."""

from llamaserver.cluster.client import AioKube
from llamaserver.cluster.connection import NoClusterError, load, own_namespace
from llamaserver.cluster.errors import (
    ApiError,
    ConflictError,
    GoneError,
    NotFoundError,
    NotLeadingError,
    UnavailableError,
)
from llamaserver.cluster.events import EventType, Recorder, Reference
from llamaserver.cluster.kinds import Kind, Object
from llamaserver.cluster.kube import Kube, LeaderOnly
from llamaserver.cluster.lease import Elector, LeaseTimes, LostLeadershipError

__all__ = [
    "AioKube",
    "ApiError",
    "ConflictError",
    "Elector",
    "EventType",
    "GoneError",
    "Kind",
    "Kube",
    "LeaderOnly",
    "LeaseTimes",
    "LostLeadershipError",
    "NoClusterError",
    "NotFoundError",
    "NotLeadingError",
    "Object",
    "Recorder",
    "Reference",
    "UnavailableError",
    "load",
    "own_namespace",
]
