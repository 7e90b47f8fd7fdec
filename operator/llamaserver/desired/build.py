"""Everything that one LlamaServer becomes."""

from __future__ import annotations

from llamaserver.api.effective import effective
from llamaserver.api.server import LlamaServer
from llamaserver.desired.deployment import deployment, grace_period
from llamaserver.desired.keys import keys_config_map
from llamaserver.desired.objects import KubeObject
from llamaserver.desired.pdb import disruption_budget
from llamaserver.desired.service import service
from llamaserver.desired.settings import BuildSettings, DesiredFleet


def build(server: LlamaServer, fleet: DesiredFleet, settings: BuildSettings) -> list[KubeObject]:
    """The objects to apply, in this order; a child that is not among them is to be deleted.

    The keys come before the pods that read them. Equal arguments give equal objects: nothing is read from
    outside.
    """
    resolved = effective(server.spec, fleet.max_num_seqs)
    made = [
        keys_config_map(server, settings),
        service(server),
        deployment(server, resolved, fleet, settings),
        disruption_budget(server, resolved),
    ]
    return [obj for obj in made if obj is not None]


def termination_grace_seconds(server: LlamaServer, settings: BuildSettings) -> int:
    """Seconds that a pod of this LlamaServer may take to end, in all."""
    return grace_period(server, effective(server.spec), settings)
