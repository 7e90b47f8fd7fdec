"""How to reach and authenticate to the API server: one source for our own client and for the watches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kubernetes.aio import config as untyped
from kubernetes.aio.client import Configuration

config: Any = untyped  # the loaders have no annotations
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NoClusterError(Exception):
    """Neither a kubeconfig nor a service account leads to a cluster."""


async def load(kubeconfig: str | None = None) -> Configuration:
    """A configuration from `kubeconfig`, else the pod's service account, else $KUBECONFIG or ~/.kube/config.

    Raises:
        NoClusterError: with what to do about it.
    """
    configuration = Configuration()
    configuration.retries = False
    try:
        if kubeconfig:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
            return configuration
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise NoClusterError(
            f"no way to a cluster: {error}. Run inside a pod, or give --kubeconfig FILE (or set KUBECONFIG)."
        ) from error
    return configuration


def own_namespace(default: str = "default") -> str:
    """The namespace of the pod this runs in, or `default` outside of a cluster."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or default
    except OSError:
        return default
