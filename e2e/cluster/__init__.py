"""A real Kubernetes node on this machine, in namespaces of its own.

`python3 e2e/cluster --help` is the command line; scenarios import the same things from here:

    from cluster import Node

    node = Node()
    node.kubectl("apply", "--server-side", "-f", "-", input=manifest)
    node.stop("kube-apiserver", "KILL")
    node.start("kube-apiserver")
    with node.forward("default/web:80") as port:
        ...  # 127.0.0.1:port of this machine reaches the Service
"""

from cluster.errors import ClusterError
from cluster.lifecycle import Options, down, up
from cluster.node import Node
from cluster.settings import Settings

__all__ = ["ClusterError", "Node", "Options", "Settings", "down", "up"]
