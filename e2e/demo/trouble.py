"""When something fails: what a person would look at first, printed without being asked."""

from __future__ import annotations

from demo.progress import Progress
from demo.release import INSTANCE
from demo.serving import NAME
from demo.settings import Settings
from harness.kube import Kube, KubeError

LINES = "15"


def show(kube: Kube, settings: Settings, progress: Progress) -> None:
    """Pods, events, and the end of the logs of the operator and of the engine."""
    ns, system = settings.namespace, settings.operator_namespace
    for title, args in (
        ("pods", ("get", "pods", "-A", "-o", "wide")),
        ("the LlamaServer", ("get", "lls", "-n", ns)),
        ("events", ("get", "events", "-n", ns, "--sort-by=.metadata.creationTimestamp")),
        ("the operator's log", ("logs", "-n", system, "-l", INSTANCE, f"--tail={LINES}")),
        (
            "the engine's log",
            ("logs", "-n", ns, "-l", f"llamaserver.dev/name={NAME}", "-c", "vllm", f"--tail={LINES}"),
        ),
    ):
        try:
            said = kube.kubectl(*args, timeout=15)
        except KubeError as error:
            said = str(error)
        lines = said.strip().splitlines()[-25:] or ["(nothing)"]
        progress.say(f"-- {title}")
        for line in lines:
            print(f"   {line[:220]}", flush=True)
