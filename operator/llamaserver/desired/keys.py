"""The ConfigMap of public keys: whose signed changes the engines of one LlamaServer accept."""

from __future__ import annotations

from llamaserver.api.server import LlamaServer
from llamaserver.desired.objects import KubeObject, child
from llamaserver.desired.settings import BuildSettings


def keys_name(name: str) -> str:
    """The name of the ConfigMap for the LlamaServer `name`."""
    return f"{name}-tuner-keys"


def keys_config_map(server: LlamaServer, settings: BuildSettings) -> KubeObject:
    """One file a key, named by its id. The kubelet refreshes it in running pods: rotation rolls nothing."""
    data = {f"{kid}.pem": pem for kid, pem in sorted(settings.public_keys.items())}
    return child(server, "v1", "ConfigMap", keys_name(server.metadata.name), data=data)
