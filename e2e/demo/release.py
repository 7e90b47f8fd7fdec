"""The operator on the cluster: installed with its chart by helm, and asked for its own metrics."""

from __future__ import annotations

from demo import exposition
from demo.report import RetunePercentiles
from demo.settings import CHART, RELEASE, Settings
from harness.kube import Kube, KubeError
from harness.manifests import CPU_SHARE

RETUNE_HISTOGRAM = "llamaserver_retune_seconds"
INSTANCE = f"app.kubernetes.io/instance={RELEASE}"


def split(image: str) -> tuple[str, str]:
    """Repository and tag of an image reference. Raises ValueError for one without a tag."""
    repository, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        raise ValueError(f"{image} has no tag: write REPOSITORY:TAG")
    return repository, tag


def helm_values(settings: Settings) -> list[str]:
    """--set flags: the images, and an equal share of the processor, which the engine would take whole."""
    flags = [f"resources.requests.cpu={CPU_SHARE}"]
    for key, image in (("image", settings.operator_image), ("tuner.image", settings.tuner_image)):
        repository, tag = split(image)
        flags += [f"{key}.repository={repository}", f"{key}.tag={tag}"]
    return [word for flag in flags for word in ("--set", flag)]


def install(kube: Kube, settings: Settings, *more: str) -> None:
    """Install or upgrade the release and wait until the operator is ready.

    The pods are replaced even when no value changed: the image behind a tag may have.
    """
    known = RELEASE in kube.helm("list", "-q", "-n", settings.operator_namespace).split()
    kube.helm(
        *("upgrade", "--install", RELEASE, str(CHART)),
        *("--namespace", settings.operator_namespace, "--create-namespace"),
        *helm_values(settings),
        *more,
        *("--wait", "--timeout", "120s"),
    )
    if known:
        kube.kubectl("rollout", "restart", "deployment", "-l", INSTANCE, "-n", settings.operator_namespace)
        kube.kubectl(
            *("rollout", "status", "deployment", "-l", INSTANCE, "-n", settings.operator_namespace),
            "--timeout=120s",
            timeout=130,
        )


def metrics(kube: Kube, settings: Settings) -> str:
    """The metrics of all running operator pods, one after the other, through the API server."""
    found = []
    for pod in kube.list("pod", settings.operator_namespace, INSTANCE):
        pods = f"/api/v1/namespaces/{settings.operator_namespace}/pods"
        found.append(kube.kubectl("get", "--raw", f"{pods}/{pod['metadata']['name']}:8080/proxy/metrics"))
    return "\n".join(found)


def retune_times(kube: Kube, settings: Settings) -> RetunePercentiles | None:
    """Round trips of applied changes as the operator measured them; None when it cannot say."""
    try:
        ordered = exposition.buckets(metrics(kube, settings), RETUNE_HISTOGRAM, kind="change")
    except KubeError:
        return None
    p50, p99 = exposition.quantile(ordered, 0.5), exposition.quantile(ordered, 0.99)
    if p50 is None or p99 is None:
        return None
    return RetunePercentiles(p50=round(1e3 * p50, 1), p99=round(1e3 * p99, 1), count=int(ordered[-1][1]))
