"""`llamaserver`: run the operator, or see what it would do without a cluster."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
from typing import Any

import click
import yaml

from llamaserver.api import InvalidSpec, effective, parse
from llamaserver.cli.crd import crd
from llamaserver.cli.params import Seconds, with_options
from llamaserver.cli.plan import plan
from llamaserver.cli.prometheus import check_prometheus, prometheus_options
from llamaserver.cli.replay import replay_command
from llamaserver.cli.simulate import simulate
from llamaserver.cluster import NoClusterError, own_namespace
from llamaserver.controller import Operator, Options
from llamaserver.desired import BuildSettings, TunerDelivery, build, desired_fleet
from llamaserver.prometheus import PrometheusError
from llamaserver.telemetry import configure

MOST_TICK_S = 5.0
"""A control law that looks more seldom learns a change too late."""
_DEFAULTS = Options()
_ENVIRONMENT = {"auto_envvar_prefix": "LLAMASERVER"}
"""What the chart sets in the operator's pod: LLAMASERVER_WORKERS is --workers, whatever the command."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "LLAMASERVER"})
@click.version_option(package_name="llamaserver-operator", message="%(version)s")
def main() -> None:
    """Serve models with vLLM on Kubernetes and hold their declared inter-token latency.

    `run` is what the operator's pod does. All other commands need no cluster.
    """


main.add_command(crd)
main.add_command(plan)
main.add_command(replay_command)
main.add_command(simulate)


def _namespaces(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


_TUNER_OPTIONS = (
    click.option(
        "--tuner-image",
        default=_DEFAULTS.tuner_image,
        show_default=True,
        help="Image of the tuner, vLLM's plugin that lets a running engine be changed. A change rolls all "
        "engine pods.",
    ),
    click.option(
        "--tuner-delivery",
        type=click.Choice([delivery.value for delivery in TunerDelivery]),
        default=_DEFAULTS.tuner_delivery.value,
        show_default=True,
        help="How the tuner comes into a stock vLLM image: copied by an init container, or mounted as an "
        "image volume (Kubernetes 1.33 or newer, where enabled). A change rolls all engine pods.",
    ),
    click.option(
        "--tuner-pull-policy",
        type=click.Choice(["Always", "IfNotPresent", "Never"]),
        default=_DEFAULTS.tuner_pull_policy,
        show_default=True,
        help="When the kubelet pulls the tuner's image. A change rolls all engine pods.",
    ),
    click.option(
        "--pre-stop-seconds",
        type=click.IntRange(0, 600),
        default=_DEFAULTS.pre_stop_seconds,
        show_default=True,
        help="How long an ending engine goes on serving while routers learn that it is ending. A change "
        "rolls all engine pods.",
    ),
)


def _tuner_options(command: Any) -> Any:
    return with_options(command, _TUNER_OPTIONS)


@main.command(context_settings=_ENVIRONMENT)
@click.option(
    "--namespace",
    default=own_namespace,
    show_default="the pod's own, else default",
    help="Namespace of the operator itself: of its leader lease and its signing key.",
)
@click.option(
    "--watch-namespaces",
    default="",
    callback=_namespaces,
    help="Comma-separated namespaces whose LlamaServers are served. Default: all.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="How to reach the cluster from outside. Default: the pod's service account, else KUBECONFIG.",
)
@click.option(
    "--identity",
    default=socket.gethostname,
    show_default="host name",
    help="Name of this replica in the leader lease and in Events; must differ between replicas.",
)
@_tuner_options
@click.option(
    "--tick-seconds",
    type=Seconds(most=MOST_TICK_S),
    default=_DEFAULTS.tick_seconds,
    show_default=True,
    help=f"How often engines are asked, and changed where needed; at most {MOST_TICK_S:g}s.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(5, 3600),
    default=_DEFAULTS.lease_seconds,
    show_default=True,
    help="How long a change to an engine holds without renewal. Longer than a failover takes "
    "(30 s), so that it changes nothing; when nobody renews it, the engine returns to its start values.",
)
@click.option(
    "--resync-seconds",
    type=Seconds(),
    default=_DEFAULTS.resync_seconds,
    show_default=True,
    help="How often all objects are listed and compared with what the watches told.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=_DEFAULTS.workers,
    show_default=True,
    help="LlamaServers that are reconciled at the same time.",
)
@click.option(
    "--kube-api-qps",
    type=click.FloatRange(1, 10_000),
    default=_DEFAULTS.kube_api_qps,
    show_default=True,
    help="Calls a second to the API server at most, in the long run. Watches do not count.",
)
@click.option(
    "--kube-api-burst",
    type=click.IntRange(1, 100_000),
    default=_DEFAULTS.kube_api_burst,
    show_default=True,
    help="Calls that may be made at once beyond that, as for many new LlamaServers.",
)
@click.option(
    "--allow-pod-template",
    type=click.BOOL,
    default=_DEFAULTS.allow_pod_template,
    show_default=True,
    help="Whether LlamaServers may set spec.podTemplate, by which who writes one can run any pod in its "
    "namespace.",
)
@prometheus_options
@click.option(
    "--signing-secret",
    default=_DEFAULTS.signing_secret,
    show_default=True,
    help="Secret in the operator's namespace with the key that signs changes; made where there is none.",
)
@click.option(
    "--leader-lease",
    default=_DEFAULTS.lease_name,
    show_default=True,
    help="Lease in the operator's namespace that decides which replica leads.",
)
@click.option(
    "--http-host",
    default=_DEFAULTS.http_host,
    show_default="every address, IPv4 and IPv6",
    help="Address to serve /metrics, /healthz and /readyz on.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=_DEFAULTS.http_port,
    show_default=True,
    help="Port of /metrics, /healthz and /readyz.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    default="json",
    show_default=True,
)
def run(log_level: str, log_format: str, **given: Any) -> None:
    """Run the operator until SIGTERM.

    Every option can also be set by the environment: --tick-seconds is LLAMASERVER_TICK_SECONDS. Several
    replicas may run; one leads. Exits 0 after SIGTERM or SIGINT, and 1 when it has to be started anew, as
    after losing the lead.
    """
    check_prometheus(given)
    configure(log_level, log_format)
    options = Options(
        **{key: value for key, value in given.items() if key not in ("leader_lease", "tuner_delivery")},
        lease_name=given["leader_lease"],
        tuner_delivery=TunerDelivery(given["tuner_delivery"]),
    )
    try:
        code = asyncio.run(_run(options))
    except (NoClusterError, PrometheusError) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)


async def _run(options: Options) -> int:
    return await Operator(options, settled=_settle_garbage_collector).run()


def _settle_garbage_collector() -> None:
    """The caches live as long as the process: keep full collections from walking them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@main.command(context_settings=_ENVIRONMENT)
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option(
    "--namespace",
    default="default",
    show_default=True,
    allow_from_autoenv=False,  # the variable is the operator's own namespace
    help="Namespace where the file names none.",
)
@_tuner_options
def render(file: Any, namespace: str, **given: Any) -> None:
    """Print what a LlamaServer in FILE (- for standard input) becomes, as YAML. Needs no cluster.

    Owner references, which need the uid of a stored object, and the public keys, which need the operator's
    Secret, are left out. All documents in FILE that are LlamaServers are rendered; others are passed over.
    """
    settings = BuildSettings(
        tuner_image=given["tuner_image"],
        tuner_delivery=TunerDelivery(given["tuner_delivery"]),
        tuner_pull_policy=given["tuner_pull_policy"],
        pre_stop_seconds=given["pre_stop_seconds"],
    )
    try:
        documents = [doc for doc in yaml.safe_load_all(file) if isinstance(doc, dict)]
    except yaml.YAMLError as error:
        raise click.ClickException(f"{file.name} is no YAML: {error}") from error
    servers = [doc for doc in documents if doc.get("kind") == "LlamaServer"]
    if not servers:
        raise click.ClickException(f"{file.name} holds no LlamaServer")
    rendered = [obj for server in servers for obj in _rendered(server, namespace, settings)]
    click.echo(yaml.safe_dump_all(rendered, sort_keys=False, width=1000), nl=False)


def _rendered(server: dict[str, Any], namespace: str, settings: BuildSettings) -> list[dict[str, Any]]:
    metadata = {"namespace": namespace, **(server.get("metadata") or {})}
    try:
        parsed = parse({**server, "metadata": metadata})
    except InvalidSpec as error:
        problems = "\n".join(f"  {problem}" for problem in error.problems)
        raise click.ClickException(
            f"LlamaServer {metadata.get('name')} cannot be served:\n{problems}"
        ) from error
    fleet = desired_fleet(effective(parsed.spec), None, None)
    # Plain data: no anchors for lists that two objects share.
    return [json.loads(json.dumps(obj)) for obj in build(parsed, fleet, settings)]


if __name__ == "__main__":
    main()
