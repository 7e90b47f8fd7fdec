"""What a failed scenario leaves behind, read before its fixtures clear it away."""

from __future__ import annotations

from demo.release import INSTANCE
from harness.kube import Kube, KubeError

LOG_LINES = 150
ASK_S = 20.0


def gather(namespace: str, operator_namespace: str) -> str:
    """Pods, the LlamaServers' state, events, and the operator's last words, on the project's own node.

    What cannot be read is said in its place: a cluster in trouble must not hide the failure itself.
    """
    here, there = ("-n", namespace), ("-n", operator_namespace)
    asked = (
        ("get", "pods", "-A", "-o", "wide"),
        ("get", "llamaservers", *here, "-o", "yaml"),
        ("get", "events", *here, "--sort-by=.lastTimestamp"),
        ("logs", *there, "-l", INSTANCE, "--previous", "--tail", str(LOG_LINES // 3)),
        ("logs", *there, "-l", INSTANCE, "--tail", str(LOG_LINES)),
    )
    try:
        kube = Kube.own()
    except KubeError as error:
        return str(error)
    return "\n".join(f"$ kubectl {' '.join(words)}\n{_said(kube, words)}" for words in asked)


def _said(kube: Kube, words: tuple[str, ...]) -> str:
    try:
        return kube.kubectl(*words, timeout=ASK_S)
    except KubeError as error:
        return str(error)
