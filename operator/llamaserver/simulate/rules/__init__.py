"""Rules by which others set caps and replicas, to compare the law with. Pure: each step gives a successor."""

from llamaserver.simulate.rules.seen import (
    CapRule,
    FleetSeen,
    PodSeen,
    ReplicaRule,
    ReplicaSeen,
    Traffic,
    fleet_seen,
    seen,
)

__all__ = ["CapRule", "FleetSeen", "PodSeen", "ReplicaRule", "ReplicaSeen", "Traffic", "fleet_seen", "seen"]
