"""What the demo can be told, by flags or by environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "llamaserver-operator"
RELEASE = "llamaserver"

DESCRIPTION = """\
Overload a real vLLM: as it was started, with the cap alone moved, with cap and prefill budget moved; and
report what was measured.

Installs the operator with helm, serves a small random Llama on vLLM's CPU backend, measures what this machine
can do, declares an inter-token latency objective, runs the same overload three times and a memory-bound load
twice, and writes report.json and report.html. The cluster, the operator and the LlamaServer are left for you
to look at.

Exit status: 0 when the objective was held and every promise of the report was kept, 1 otherwise.
"""

EPILOGUE = """\
With --cluster current the cluster is the one of your kubeconfig, and it has to be able to pull the three
images:

  docker build -f images/operator/Containerfile -t REGISTRY/operator:TAG .        (also images/tuner)
  docker build -f images/engine-cpu/Containerfile -t REGISTRY/engine-cpu:TAG images/engine-cpu
  CLUSTER=current DEMO_OPERATOR_IMAGE=REGISTRY/operator:TAG DEMO_TUNER_IMAGE=REGISTRY/tuner:TAG \\
    DEMO_ENGINE_IMAGE=REGISTRY/engine-cpu:TAG make demo

environment (flags win):
  DEMO_OPERATOR_IMAGE, DEMO_TUNER_IMAGE, DEMO_ENGINE_IMAGE, DEMO_RUNTIME_CLASS, DEMO_NAMESPACE,
  DEMO_OPERATOR_NAMESPACE
"""


@dataclass(frozen=True)
class Settings:
    """One demo."""

    cluster: str
    """`own` or `current`."""
    output: Path
    namespace: str
    operator_namespace: str
    operator_image: str
    tuner_image: str
    engine_image: str
    runtime_class: str | None
    """Class of the pods that run the engine's image; None where the image is complete."""


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Settings from the command line and the environment."""
    p = argparse.ArgumentParser(
        prog="python -m demo",
        description=DESCRIPTION,
        epilog=EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def option(flag: str, default: str, text: str) -> None:
        variable = f"DEMO_{flag.upper().replace('-', '_')}"
        p.add_argument(
            f"--{flag}", default=os.environ.get(variable), help=f"{text} (default {default or 'none'})"
        )

    p.add_argument(
        "--cluster",
        choices=("own", "current"),
        default="own",
        help="own: the node of `python3 e2e/cluster up` (default); current: your kubeconfig's",
    )
    p.add_argument("--output", type=Path, default=REPOSITORY / "build" / "demo", help="folder of the report")
    option(
        "namespace", "llamaserver-demo", "namespace of the LlamaServer and the load; deleted and made anew"
    )
    option("operator-namespace", "llamaserver-system", "namespace of the operator")
    option("operator-image", "localhost/llamaserver/operator:dev", "image of the operator")
    option("tuner-image", "localhost/llamaserver/tuner:dev", "image of the tuner")
    option(
        "engine-image", "localhost/llamaserver/engine-cpu:dev", "image of vLLM for the CPU, with /models/tiny"
    )
    option("runtime-class", "vllm with --cluster own", "RuntimeClass of pods with the engine's image")
    args = p.parse_args(argv)
    own = args.cluster == "own"
    images = {name: getattr(args, f"{name}_image") for name in ("operator", "tuner", "engine")}
    missing = [f"--{name}-image" for name, image in images.items() if not image]
    if not own and missing:
        p.error(
            f"--cluster current needs {', '.join(missing)}: images that your cluster can pull (see --help)"
        )
    names = {"operator": "operator", "tuner": "tuner", "engine": "engine-cpu"}
    chosen = {name: image or f"localhost/llamaserver/{names[name]}:dev" for name, image in images.items()}
    return Settings(
        cluster=args.cluster,
        output=args.output.resolve(),
        namespace=args.namespace or "llamaserver-demo",
        operator_namespace=args.operator_namespace or "llamaserver-system",
        operator_image=chosen["operator"],
        tuner_image=chosen["tuner"],
        engine_image=chosen["engine"],
        runtime_class=args.runtime_class or ("vllm" if own else None),
    )
