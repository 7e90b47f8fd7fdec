"""Kubernetes, etcd, CoreDNS and Helm, compiled from the Go module proxy.

Each folder below build/ is a Go module of its own: its `tool` directives name the programs, go.mod and go.sum
pin every line that goes into them, and what one of them requires does not meet what another requires.
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

OLDEST_GO = (1, 24)
"""The first release that knows `tool` directives."""

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

    @property
    def folder(self) -> Path:
        return PACKAGE / "build" / self.name

    def fingerprint(self) -> str:
        return cache.fingerprint(self.folder, self.ldflags())

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
            return {"helm.sh/helm/v3/internal/version.version": self._required("helm.sh/helm/v3")}
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
    Module("coredns", ("coredns",), "2 minutes"),
    Module("helm", ("helm",), "1 minute"),
    Module("pause", ("pause",), "a moment", target="."),
)


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
    cache.make(together, link, progress)
    return together


def _ensure_module(module: Module, settings: Settings, progress: Progress) -> Path:
    def build(out: Path) -> None:
        _check_go()
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

    target = settings.cache / "bin" / f"{module.name}-{module.fingerprint()}"
    cache.make(target, build, progress)
    return target


def _check_go() -> None:
    wanted = ".".join(map(str, OLDEST_GO))
    cure = f"Install Go {wanted} or newer and put its bin folder on PATH."
    if shutil.which("go") is None:
        raise ClusterError(f"Go is missing, and Kubernetes has to be built. {cure}")
    version = run(["go", "env", "GOVERSION"]).strip()
    numbers = re.match(r"go(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST_GO:
        raise ClusterError(f"{version} is too old. {cure}")
