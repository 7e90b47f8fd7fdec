"""Everything that can be set for one run of the operator, with its defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from llamaserver.cluster import LeaseTimes
from llamaserver.desired import TunerDelivery

VERSION = version("llamaserver-operator")


@dataclass(frozen=True, slots=True)
class Options:
    """See `llamaserver run --help` for what each one means."""

    namespace: str = "default"
    watch_namespaces: tuple[str, ...] = ()
    identity: str = "llamaserver-operator"
    kubeconfig: str | None = None
    tuner_image: str = f"llamaserver/tuner:{VERSION}"
    tuner_delivery: TunerDelivery = TunerDelivery.INIT_CONTAINER
    tuner_pull_policy: str = "IfNotPresent"
    signing_secret: str = "llamaserver-operator-signing-key"  # noqa: S105 - the name of a Secret
    lease_name: str = "llamaserver-operator"
    lease_times: LeaseTimes = field(default_factory=LeaseTimes)
    tick_seconds: float = 2.0
    lease_seconds: float = 120.0
    resync_seconds: float = 300.0
    pre_stop_seconds: int = 15
    allow_pod_template: bool = True
    workers: int = 16
    kube_api_qps: float = 200.0
    kube_api_burst: int = 1000
    prometheus_url: str | None = None
    """None: no LlamaServer can have its figures from Prometheus."""
    prometheus_token_file: Path | None = None
    prometheus_ca_file: Path | None = None
    http_host: str = ""
    """Empty for every address of every family: probes and Prometheus come from other machines."""
    http_port: int = 8080
