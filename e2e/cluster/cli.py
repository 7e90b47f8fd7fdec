"""The command line."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable

from cluster import binaries, engine, forward, lifecycle, packages
from cluster.errors import ClusterError
from cluster.lifecycle import Options
from cluster.node import Node
from cluster.progress import Progress
from cluster.settings import Settings
from cluster.shell import Argument

TOOL = "python3 e2e/cluster"

DESCRIPTION = """\
A real single-node Kubernetes cluster on this machine: etcd, the API server, the controller manager, the
scheduler, the kubelet, kube-proxy, containerd, runc, CNI and CoreDNS, all in one network, mount and process
namespace.

The node has no link to any other network. Pods and Services are reached with `net` (a program of this
machine, run in the node's network) or through `forward` (a loopback port of this machine). Needs root on
Debian 12, Go 1.24 or newer, 2 cores and 4 GiB of memory. Nothing is written outside the cache and the state
folder, and `down` deletes the latter.
"""

EPILOGUE = """\
examples:
  python3 e2e/cluster up                                  first time about 10 minutes, afterwards seconds
  python3 e2e/cluster kubectl get pods -A
  python3 e2e/cluster images operator                     after a change of the code
  python3 e2e/cluster net curl -s http://10.96.17.4/v1/models
  python3 e2e/cluster forward 8000:default/chat:80        then http://127.0.0.1:8000/ on this machine
  python3 e2e/cluster stop kube-apiserver KILL            an outage of the API server ...
  python3 e2e/cluster start kube-apiserver                ... and its end
  python3 e2e/cluster net helm list -A                    helm and kubectl are on PATH inside `net` and `exec`
  python3 e2e/cluster down

environment:
  LLAMASERVER_CACHE            binaries, environments, images (default ~/.cache/llamaserver-operator)
  LLAMASERVER_CLUSTER_NAME     name of the node (default llamaserver)
  LLAMASERVER_CLUSTER_STATE    what the node writes (default /var/lib/llamaserver-cluster/NAME)
"""

SHELL = (os.environ.get("SHELL", "/bin/sh"),)

Verb = Callable[[argparse.Namespace], int | None]
Add = Callable[[str, Verb, str], argparse.ArgumentParser]

COMMAND_VERBS = ("kubectl", "net", "exec")
"""Verbs whose arguments are a command line of another program."""


def main(argv: list[str] | None = None) -> int:
    """Run one verb; return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] and words[0] in COMMAND_VERBS:
        # What follows is another program's business, options and --help included.
        words = [words[0], "--", *(words[2:] if words[1:2] == ["--"] else words[1:])]
    arguments = make_parser().parse_args(words)
    verb: Verb = arguments.verb
    try:
        return verb(arguments) or 0
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Every verb with its arguments; `verb` of the result is the function to call."""
    parser = argparse.ArgumentParser(
        prog=TOOL,
        description=DESCRIPTION,
        epilog=EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def add(name: str, verb: Verb, summary: str) -> argparse.ArgumentParser:
        command = verbs.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.set_defaults(verb=verb)
        return command

    _add_verbs_for_the_whole(add)
    _add_verbs_for_work(add)
    _add_verbs_for_faults(add)
    _add_verbs_for_parts(add)
    return parser


def _add_verbs_for_the_whole(add: Add) -> None:
    up = add("up", _up, "bring up the cluster, or whatever of it is missing")
    images = add("images", _images, "rebuild the images whose sources changed and import them into the node")
    images.add_argument("names", nargs="*", metavar="NAME", help="operator, engine-sim, ... (the usual)")
    for command in (up, images):
        no_engine = "leave out vLLM: no engine image, no RuntimeClass"
        command.add_argument("--no-engine", action="store_true", help=no_engine)
        full = "have the engine's environment in its image, not mounted (25 GB of disk, 6 minutes)"
        command.add_argument("--full-engine-image", action="store_true", help=full)
    add("down", _down, "end the cluster and delete all it wrote; the cache stays")
    add("status", _status, "show the components of the node")
    add("reboot", _reboot, "end all of the node at once, like a power cut, and start it on the same state")


def _add_verbs_for_work(add: Add) -> None:
    for name, verb, summary in (
        ("kubectl", _kubectl, "run kubectl as the administrator"),
        ("net", _net, "run a program of this machine in the node's network"),
        ("exec", _exec, "run a program in all of the node's namespaces"),
    ):
        add(name, verb, summary).add_argument("command", nargs="*")
    forward = add(
        "forward", _forward, "let a loopback port of this machine lead into the node, until interrupted"
    )
    target = "api, NAMESPACE/SERVICE:PORT or ADDRESS:PORT"
    forward.add_argument("target", metavar="[PORT:]TARGET", help=target)
    add("kubeconfig", _kubeconfig, "print the path of the administrator's kubeconfig, for use with `net`")
    gpus = add("gpus", _gpus, "let the node advertise GPUs that do not exist, for tests of scheduling")
    gpus.add_argument("count", type=int)


def _add_verbs_for_faults(add: Add) -> None:
    stop = add("stop", _stop, "end a component and leave it down")
    start = add("start", _start, "start a component that was stopped")
    restart = add("restart", _restart, "end a component and start it again")
    send = add("signal", _signal, "send a signal to a component: STOP makes it hang, CONT makes it go on")
    logs = add("logs", _logs, "show the end of a component's log, or of the supervisor's")
    for command in (stop, start, restart, send, logs):
        command.add_argument("component", help="kube-apiserver, kubelet, etcd, ... (see `status`)")
    for command in (stop, restart):
        command.add_argument("signal", nargs="?", default="TERM", help="TERM (default), KILL, ...")
    send.add_argument("signal", help="STOP, CONT, HUP, ...")
    logs.add_argument("-n", "--lines", type=int, default=40, help="how many lines (default %(default)s)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as it grows, until interrupted")


def _add_verbs_for_parts(add: Add) -> None:
    build = add("build", _build, "build Kubernetes, etcd, CoreDNS and Helm, or find them in the cache")
    others = f"beside those: {', '.join(binaries.OTHERS)}, which some scenarios need"
    build.add_argument("names", nargs="*", metavar="NAME", help=others)
    build.add_argument("--print-path", action="store_true", help="print only the folder with the programs")
    engine = add("engine", _engine, "install vLLM for the CPU, or find it in the cache")
    engine.add_argument("--print-python", action="store_true", help="print only the path of its interpreter")


# --- the cluster as a whole -----------------------------------------------------------------------------


def _options(arguments: argparse.Namespace) -> Options:
    return Options(engine=not arguments.no_engine, full_engine_image=arguments.full_engine_image)


def _up(arguments: argparse.Namespace) -> None:
    progress = Progress()
    node = lifecycle.up(_options(arguments), progress=progress)
    progress.say("the cluster is ready. Use it with")
    print(f"  {TOOL} kubectl get pods -A")
    print(f"  {TOOL} net COMMAND        in the node's network; there, KUBECONFIG={node.kubeconfig}")
    print(f"  {TOOL} --help")


def _down(_: argparse.Namespace) -> None:
    lifecycle.down()


def _images(arguments: argparse.Namespace) -> None:
    progress = Progress()
    imported = lifecycle.refresh_images(arguments.names, _options(arguments), Node(), progress)
    if imported:
        progress.say(
            "running pods keep their image until they are restarted: kubectl rollout restart deployment NAME"
        )
    else:
        progress.say("no image changed")


def _status(_: argparse.Namespace) -> int:
    node = Node()
    if node.holder() is None:
        print(f"the node {node.settings.name} is down")
        return 1
    print(f"{'COMPONENT':<26}{'PID':>7}{'STARTS':>8}{'RUNNING':>11}")
    for name, state in node.components().items():
        running = (
            f"{state['running_seconds']} s" if state["pid"] else "waiting" if state["wanted"] else "stopped"
        )
        print(f"{name:<26}{state['pid'] or '-':>7}{state['starts']:>8}{running:>11}")
    print(f"\nstate {node.settings.state}, process 1 is {node.holder()} on this machine")
    return 0


def _reboot(_: argparse.Namespace) -> None:
    progress, node = Progress(), Node()
    environment = engine.environment_path(node.settings)
    with progress.step("rebooting the node"):
        node.halt()
        node.boot(environment if environment.exists() else None)
        node.wait_ready()


# --- work in it -----------------------------------------------------------------------------------------


def _kubectl(arguments: argparse.Namespace) -> int:
    node = Node()
    return _become(node, node.net_command(node.kubectl_command(*arguments.command)))


def _net(arguments: argparse.Namespace) -> int:
    node = Node()
    return _become(node, node.net_command(arguments.command or SHELL))


def _exec(arguments: argparse.Namespace) -> int:
    node = Node()
    return _become(node, node.exec_command(arguments.command or SHELL))


def _become(node: Node, command: list[Argument]) -> int:
    """Replace this process by `command`, so that terminals, signals and exit codes are its own."""
    environment = {
        **os.environ,
        "PATH": f"{node.programs}:{os.environ['PATH']}",
        "KUBECONFIG": str(node.kubeconfig),
    }
    words = [os.fspath(word) for word in command]
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise ClusterError(f"Cannot run {shlex.join(words)}: {error.strerror}") from error


def _forward(arguments: argparse.Namespace) -> None:
    node = Node()
    port, target = parse_forward(arguments.target)
    host, host_port = node.address_of(target)
    forward.serve(port, node.live_holder(), host, host_port)


def parse_forward(text: str) -> tuple[int, str]:
    """Local port (0: any) and target of `[PORT:]TARGET`."""
    port, separator, target = text.partition(":")
    if separator and port.isdigit() and (target == "api" or ":" in target):
        return int(port), target
    return 0, text


def _kubeconfig(_: argparse.Namespace) -> None:
    print(Node().kubeconfig)


# --- faults and their traces ----------------------------------------------------------------------------


def _stop(arguments: argparse.Namespace) -> None:
    Node().stop(arguments.component, arguments.signal)


def _start(arguments: argparse.Namespace) -> None:
    Node().start(arguments.component)


def _restart(arguments: argparse.Namespace) -> None:
    Node().restart(arguments.component, arguments.signal)


def _signal(arguments: argparse.Namespace) -> None:
    Node().signal(arguments.component, arguments.signal)


def _logs(arguments: argparse.Namespace) -> int:
    logs = Node().settings.logs
    path = logs / f"{arguments.component}.log"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in logs.glob("*.log"))) or "none: the node was never up"
        raise ClusterError(f"There is no log of {arguments.component!r}; there are {known}.")
    return subprocess.call(
        ["tail", f"--lines={arguments.lines}", *(["--follow"] if arguments.follow else []), path]
    )


def _gpus(arguments: argparse.Namespace) -> None:
    Node().set_gpus(arguments.count)


# --- only what it is made of ----------------------------------------------------------------------------


def _build(arguments: argparse.Namespace) -> None:
    modules = [binaries.other(name) for name in arguments.names]
    settings = Settings.from_environment()
    progress = Progress(to_stderr=arguments.print_path)
    programs = binaries.ensure(settings, progress)
    for module in modules:
        binaries.ensure_module(module, settings, progress)
    print(programs) if arguments.print_path else progress.say(f"programs are in {programs}")


def _engine(arguments: argparse.Namespace) -> None:
    settings = Settings.from_environment()
    progress = Progress(to_stderr=arguments.print_python)
    packages.check_host()
    packages.ensure(progress, packages.ENGINE)
    python = engine.ensure(settings, progress) / "bin" / "python"
    print(python) if arguments.print_python else progress.say(f"the engine's interpreter is {python}")
