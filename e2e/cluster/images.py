"""The images of the node: what each is made of, when it has to be made again, and how.

Every image is an archive in the cache, named by a fingerprint of all that went into it. So an unchanged image
costs nothing, and only archives that the node has not seen are imported.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cluster import cache, components, engine, packages, pip_settings
from cluster.archive import pack
from cluster.archive import write as write_archive
from cluster.buildah import Buildah
from cluster.progress import Progress
from cluster.settings import REPOSITORY, Settings
from cluster.shell import Argument, run

IMAGES = REPOSITORY / "images"
BUSYBOX = Path("/bin/busybox")
BASE_PACKAGES = ("ca-certificates", "libnuma1", "python3", "python3-venv")
"""What the base image holds beside a minimal Debian; libnuma1 is vLLM's."""
BASE_TRIMMED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists")
KEPT_VERSIONS = 3


def reference(name: str, tag: str = "dev") -> str:
    """Full name of one of this project's images on the node."""
    return f"localhost/llamaserver/{name}:{tag}"


def base_reference(base: Image) -> str:
    """Name of a base image, which changes with its content so that what is built on it is built again."""
    return reference(base.name, base.fingerprint)


@dataclass(frozen=True)
class Image:
    """An image that can be made: `write` puts its archive at the path it is given."""

    name: str
    fingerprint: str
    write: Callable[[Path], None]
    expectation: str = ""
    bases: tuple[Image, ...] = ()
    """Images its Containerfile starts from; they are not for the node itself."""
    usual: bool = True
    """False for one that is made only for who asks for it by name."""


class ImageSet:
    """All images, as the checkout says now."""

    def __init__(
        self,
        settings: Settings,
        progress: Progress,
        programs: Path,
        engine_environment: Path | None,
        full_engine_image: bool = False,
    ) -> None:
        self._folder = settings.cache / "images"
        self._progress = progress
        self._programs = programs
        pip = engine.ensure_uv(settings, progress).with_name("pip")
        self._buildah = Buildah(settings, pip_settings.read(pip))
        self._base = Image(
            "base",
            cache.fingerprint(packages.SUITE, *BASE_PACKAGES, *BASE_TRIMMED),
            self._write_base,
            "40 s",
        )
        self._busybox = Image("busybox", cache.fingerprint(BUSYBOX), self._write_busybox)
        built = [self._pause(), self._coredns(), self._tuner(), self._operator(), self._engine_sim()]
        if engine_environment is not None:
            built.append(self._engine(engine_environment, full_engine_image))
        self.images: dict[str, Image] = {image.name: image for image in built}

    @property
    def usual(self) -> list[str]:
        """Names of the images that every node has."""
        return [name for name, image in self.images.items() if image.usual]

    def archive(self, image: Image) -> Path:
        """Where the image's archive is, or will be."""
        return self._folder / f"{image.name}-{image.fingerprint}.tar"

    def ensure(self, image: Image) -> Path:
        """Return the image's archive, making it when the cache lacks it."""
        archive = self.archive(image)
        if not archive.exists():
            for base in image.bases:
                self._buildah.load(self.ensure(base), base_reference(base))
            expectation = f" ({image.expectation} the first time)" if image.expectation else ""
            with self._progress.step(f"building image {image.name}{expectation}"):
                cache.make(archive, image.write, self._progress)
            versions = f"{image.name}-{'?' * cache.FINGERPRINT_DIGITS}.tar"
            cache.keep_newest(self._folder, versions, KEPT_VERSIONS)
        archive.touch()  # the versions used last are the ones kept
        return archive

    # --- images from Containerfiles -----------------------------------------------------------------

    def _tuner(self) -> Image:
        folder = IMAGES / "tuner"
        names = ("Containerfile", "pyproject.toml", "README.md", "llamaserver_tuner")
        bases = {"BUILD_IMAGE": self._base, "BASE_IMAGE": self._busybox}
        return self._from_containerfile("tuner", [folder / name for name in names], bases)

    def _operator(self) -> Image:
        names = ("pyproject.toml", "README.md", "LICENSE", "requirements.lock", "operator")
        sources = [IMAGES / "operator" / "Containerfile", *(REPOSITORY / name for name in names)]
        return self._from_containerfile("operator", sources, {"BASE_IMAGE": self._base}, "1 minute")

    def _engine_sim(self) -> Image:
        """What the operator's image holds, the tuner, and the simulator on top."""
        folder, tuner = IMAGES / "engine-sim", IMAGES / "tuner"
        names = ("pyproject.toml", "README.md", "LICENSE", "requirements.lock", "operator")
        sources = [folder / name for name in ("Containerfile", "pyproject.toml", "README.md")]
        sources += [folder / "llamaserver_engine_sim", tuner / "pyproject.toml", tuner / "README.md"]
        sources += [tuner / "llamaserver_tuner", *(REPOSITORY / name for name in names)]
        image = self._from_containerfile("engine-sim", sources, {"BASE_IMAGE": self._base}, "1 minute")
        return replace(image, usual=False)

    def _from_containerfile(
        self, name: str, sources: list[Path], bases: dict[str, Image], expectation: str = ""
    ) -> Image:
        """An image built from the repository's root; `sources` starts with its Containerfile."""

        def write(out: Path) -> None:
            arguments = {argument: base_reference(base) for argument, base in bases.items()}
            self._buildah.build(out, reference(name), sources[0], REPOSITORY, arguments)

        ignored = sources[0].with_name(f"{sources[0].name}.dockerignore")
        inputs = [*sources, ignored, IMAGES / "build.lock"]
        made_from = cache.fingerprint(inputs, *(base.fingerprint for base in bases.values()))
        return Image(name, made_from, write, expectation, tuple(bases.values()))

    def _engine(self, environment: Path, full: bool) -> Image:
        """The engine, complete or without its environment, which the node's runtime then mounts."""
        name, folder = "engine-cpu", engine.SOURCE
        venv, mounts = ("bundled", {}) if full else ("mounted", {environment: components.ENGINE_ENVIRONMENT})

        def write(out: Path) -> None:
            arguments = {"BASE_IMAGE": base_reference(self._base), "VENV": venv}
            self._buildah.build(out, reference(name), folder / "Containerfile", folder, arguments, mounts)

        sources = (folder / "Containerfile", folder / "make_model.py")
        made_from = cache.fingerprint(sources, environment.name, venv, self._base.fingerprint)
        expectation = "6 minutes, and 25 GB of disk" if full else "10 s"
        return Image(name, made_from, write, expectation, (self._base,))

    # --- images without one -------------------------------------------------------------------------

    def _pause(self) -> Image:
        write = partial(self._write_program, "pause", components.PAUSE_IMAGE)
        return Image("pause", cache.fingerprint(str((self._programs / "pause").resolve())), write)

    def _coredns(self) -> Image:
        write = partial(self._write_program, "coredns", reference("coredns"))
        return Image("coredns", cache.fingerprint(str((self._programs / "coredns").resolve())), write)

    def _write_program(self, program: str, name: str, out: Path) -> None:
        """An image of one static program."""
        with _scratch(out) as scratch:
            root = scratch / "root"
            root.mkdir()
            shutil.copy(self._programs / program, root / program)
            _write_archive(scratch, out, name, root, [f"/{program}"])

    def _write_busybox(self, out: Path) -> None:
        """Debian's static busybox and a link for every command it knows."""
        with _scratch(out) as scratch:
            commands = scratch / "root" / "bin"
            commands.mkdir(parents=True)
            shutil.copy(BUSYBOX, commands / "busybox")
            for command in run([BUSYBOX, "--list"]).split():
                if command != "busybox":
                    (commands / command).symlink_to("busybox")
            for folder in ("etc", "tmp", "usr"):
                (scratch / "root" / folder).mkdir()
            name = base_reference(self._busybox)
            _write_archive(scratch, out, name, scratch / "root", ["/bin/sh"])

    def _write_base(self, out: Path) -> None:
        """A minimal Debian with Python, in place of the public images that Containerfiles name by default."""
        with _scratch(out) as scratch:
            root, layer = scratch / "root", scratch / "layer.tar"
            included = f"--include={','.join(BASE_PACKAGES)}"
            command: list[Argument] = [
                "debootstrap",
                "--variant=minbase",
                included,
                packages.SUITE,
                root,
                *_mirror(),
            ]
            run(["unshare", "--mount", "--propagation=private", *command])
            for path in BASE_TRIMMED:
                shutil.rmtree(root / path, ignore_errors=True)
            tar: list[Argument] = [
                "tar",
                "--numeric-owner",
                "--sort=name",
                "--exclude=./dev/*",
                "-C",
                root,
                "-cf",
                layer,
                ".",
            ]
            run(tar)
            write_archive(out, base_reference(self._base), layer, ["python3"])


def _write_archive(scratch: Path, out: Path, name: str, root: Path, command: Sequence[str]) -> None:
    layer = scratch / "layer.tar"
    pack(root, layer)
    write_archive(out, name, layer, command)


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder for intermediate files, on the same disk as the result."""
    with tempfile.TemporaryDirectory(
        dir=out.parent, prefix=f"{out.name}-", suffix=f"-{os.getpid()}"
    ) as folder:
        yield Path(folder)


def _mirror() -> list[str]:
    """The package source this machine's apt is set up with for the suite, as debootstrap takes it."""
    columns = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    for line in run(["apt-get", "indextargets", "--format", columns, "Created-By: Packages"]).splitlines():
        uri, release, component = line.split()
        if release == packages.SUITE and component == "main":
            return [uri]
    return []
