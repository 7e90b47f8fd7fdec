"""Kubernetes, etcd, CoreDNS, Helm, kubeconform, Flux and KEDA, compiled from the Go module proxy.

Each folder below build/ is a Go module of its own. Its `tool` directives name the programs, or its main.go is
one; go.mod and go.sum pin every line that goes into them, and what one of them requires does not meet what
another requires.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster import cache
from cluster.errors import ClusterError
from cluster.progress import Progress
from cluster.settings import PACKAGE, Settings
from cluster.shell import run

DEFINITIONS = "crds"
"""Folder beside a module's programs with the definitions of the resources that they serve."""

KUBERNETES_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Module:
    """One folder of build/ and the programs it gives."""

    name: str
    programs: tuple[str, ...]
    expectation: str
    """How long a first build takes, for the impatient."""
    target: str = "tool"
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Program names that differ from what `go build` calls the file."""
    defined_by: tuple[str, ...] = ()
    """Go modules whose CustomResourceDefinitions go along."""

    @property
    def folder(self) -> Path:
        return PACKAGE / "build" / self.name

    def fingerprint(self) -> str:
        return cache.fingerprint(self.folder, self.ldflags())

    def oldest_go(self) -> tuple[int, int]:
        """The release of Go that its go.mod asks for."""
        found = re.search(r"^go (\d+)\.(\d+)", (self.folder / "go.mod").read_text(), re.M)
        if found is None:
            raise ClusterError(f"{self.folder / 'go.mod'} does not say which Go it needs")
        return int(found[1]), int(found[2])

    def ldflags(self) -> str:
        """Linker flags: no symbols, and the version that the program reports of itself."""
        return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in self._stamps().items())])

    def _stamps(self) -> dict[str, str]:
        if self.name == "kubernetes":
            version = self._required("k8s.io/kubernetes")
            major, minor = version.removeprefix("v").split(".")[:2]
            values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
            return {f"{KUBERNETES_VERSION_PACKAGE}.{name}": value for name, value in values.items()}
        if self.name == "helm":
            # What `helm template` takes the cluster's version for, by default one that charts have long left.
            major, minor, _ = self._required("k8s.io/client-go").removeprefix("v").split(".")
            values = {"k8sVersionMajor": str(int(major) + 1), "k8sVersionMinor": minor}
            return {
                "helm.sh/helm/v3/internal/version.version": self._required("helm.sh/helm/v3"),
                **{f"helm.sh/helm/v3/pkg/chartutil.{name}": value for name, value in values.items()},
                **{f"helm.sh/helm/v3/pkg/lint/rules.{name}": value for name, value in values.items()},
            }
        return {}

    def _required(self, path: str) -> str:
        found = re.search(
            rf"^\s*(?:require )?{re.escape(path)} (v\S+)", (self.folder / "go.mod").read_text(), re.M
        )
        if found is None:
            raise ClusterError(f"{self.folder / 'go.mod'} does not require {path}")
        return found[1]


MODULES = (
    Module(
        "kubernetes",
        ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"),
        "5 minutes on 2 cores",
    ),
    Module("etcd", ("etcd",), "half a minute", renamed={"server": "etcd"}),
    Module("coredns", ("coredns",), "1 minute", target="."),
    Module("helm", ("helm",), "1 minute"),
    Module("kubeconform", ("kubeconform",), "half a minute"),
    Module("pause", ("pause",), "a moment", target="."),
)
"""What every node needs."""

CONTROLLERS = ("kustomize-controller", "source-controller")
FLUX = Module(
    "flux",
    CONTROLLERS,
    "4 minutes on 2 cores",
    defined_by=tuple(f"github.com/fluxcd/{controller}" for controller in CONTROLLERS),
)
KEDA = Module(
    "keda",
    ("keda-adapter", "keda-operator"),
    "5 minutes on 2 cores",
    renamed={"adapter": "keda-adapter", "operator": "keda-operator"},
    defined_by=("github.com/kedacore/keda/v2",),
)
OTHERS = {module.name: module for module in (FLUX, KEDA)}
"""By name, what only some scenarios need."""


def other(name: str) -> Module:
    """The module of OTHERS. Raises ClusterError for a name that is none."""
    if name not in OTHERS:
        raise ClusterError(
            f"There is no {name!r} to build; there are {', '.join(OTHERS)}, and what is always built."
        )
    return OTHERS[name]


def folder(settings: Settings) -> Path:
    """Where every program is found once `ensure` has built them."""
    return settings.cache / "bin" / cache.fingerprint(*(module.fingerprint() for module in MODULES))


def ensure(settings: Settings, progress: Progress) -> Path:
    """Return a folder with every program in it, building what the cache lacks."""

    def link(out: Path) -> None:
        out.mkdir()
        for module in MODULES:
            for program in _ensure_module(module, settings, progress).iterdir():
                (out / program.name).symlink_to(Path("..") / program.parent.name / program.name)

    together = folder(settings)
    check(settings)
    cache.make(together, link, progress)
    return together


def ensure_module(module: Module, settings: Settings, progress: Progress) -> Path:
    """Return a folder with this module's programs and DEFINITIONS in it; built when the cache lacks it."""
    if not _place(module, settings).exists():
        _check_go(module.oldest_go(), module.name)
    return _ensure_module(module, settings, progress)


def _place(module: Module, settings: Settings) -> Path:
    return settings.cache / "bin" / f"{module.name}-{module.fingerprint()}"


def _ensure_module(module: Module, settings: Settings, progress: Progress) -> Path:
    def build(out: Path) -> None:
        command = [
            "go",
            "build",
            "-trimpath",
            "-buildvcs=false",
            f"-ldflags={module.ldflags()}",
            "-o",
            f"{out}/",
        ]
        out.mkdir()
        with progress.step(f"building {module.name} ({module.expectation} the first time)"):
            run([*command, module.target], cwd=module.folder, env={"CGO_ENABLED": "0"})
        for built, program in module.renamed.items():
            (out / built).rename(out / program)
        if absent := [program for program in module.programs if not (out / program).exists()]:
            raise ClusterError(f"{module.folder / 'go.mod'} has no tool directive for {', '.join(absent)}")
        for path in module.defined_by:
            (out / DEFINITIONS).mkdir(exist_ok=True)
            sources = Path(run(["go", "list", "-m", "-f", "{{.Dir}}", path], cwd=module.folder).strip())
            for definition in (sources / "config" / "crd" / "bases").iterdir():
                shutil.copyfile(definition, out / DEFINITIONS / definition.name)

    target = _place(module, settings)
    cache.make(target, build, progress)
    return target


def check(settings: Settings) -> None:
    """Raise ClusterError, which names the cure, when something has to be built and cannot be."""
    if not folder(settings).exists():
        _check_go(max(module.oldest_go() for module in MODULES), "Kubernetes")


def _check_go(oldest: tuple[int, int], what: str) -> None:
    cure = f"Install Go {oldest[0]}.{oldest[1]} or newer and put its bin folder on PATH."
    if shutil.which("go") is None:
        raise ClusterError(f"Go is missing, and {what} has to be built. {cure}")
    version = run(["go", "env", "GOVERSION"]).strip()
    numbers = re.match(r"go(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < oldest:
        raise ClusterError(f"{version} is too old to build {what}. {cure}")
