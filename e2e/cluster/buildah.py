"""Image builds from Containerfiles, in a store of our own, with this machine's access to package indexes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from cluster import pip_settings
from cluster.settings import PACKAGE, REPOSITORY, SYSTEM_PYTHON, Settings
from cluster.shell import Argument, run

STEP_FLAGS = ("--isolation=oci", "--runtime=runc", "--network=host", "--ulimit=nofile=20000:20000")
"""How RUN lines run: by runc alone, without a network made for them, with limits root may always grant."""

NOTHING: Mapping[Path, str] = MappingProxyType({})


class Buildah:
    """Builds in a folder of the cache. What pip is set up with here is known to pip in RUN lines as well."""

    def __init__(self, settings: Settings, pip_options: Mapping[str, str]) -> None:
        self._folder = settings.cache / "images" / "buildah"
        self._settings = settings
        self._pip_options = pip_options

    def load(self, archive: Path, reference: str) -> None:
        """Have the image in `archive` under the name `reference`, for FROM lines."""
        if not self._run("images", "--quiet", "--filter", f"reference={reference}").strip():
            self._run("pull", "--quiet", f"docker-archive:{archive}")

    def build(
        self,
        archive: Path,
        reference: str,
        containerfile: Path,
        context: Path,
        arguments: Mapping[str, str],
        mounts: Mapping[Path, str] = NOTHING,
    ) -> None:
        """Build `containerfile` and write the image, named `reference`, to `archive`.

        `mounts` are folders of this machine that RUN lines see, read-only, at the paths they map to.
        """
        pip_conf = self._configuration("pip.conf", pip_settings.as_file(self._pip_options))
        shown = {pip_conf: "/etc/pip.conf", **mounts}
        shown |= {path: str(path) for path in pip_settings.paths(self._pip_options)}
        ignore = containerfile.with_name(f"{containerfile.name}.dockerignore")
        # The name moves on with whoever builds next, perhaps right now: what is written is the image itself.
        image = self._run(
            *("build", "--quiet", "--layers", "--pull-never", "--format=docker", *STEP_FLAGS),
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            *(f"--volume={path}:{there}:ro" for path, there in shown.items()),
            *([f"--ignorefile={ignore}"] if ignore.exists() else []),
            *(f"--file={containerfile}", f"--tag={reference}", context),
        ).strip()
        self._run("push", "--quiet", "--disable-compression", image, f"docker-archive:{archive}:{reference}")

    def _run(self, *arguments: Argument) -> str:
        """Run buildah so that its mounts, and what it writes to /var/lib and /run, stay off this machine."""
        folder = self._folder
        text = f'[network]\nnetwork_config_dir = "{folder / "networks"}"\n'
        configuration = self._configuration("containers.conf", text)
        names = Path("/etc/resolv.conf").resolve().parent  # may lie below /run
        visible = ":".join(map(str, (self._settings.cache, REPOSITORY, names, *self._needed_by_pip())))
        command: list[Argument] = ["unshare", "--mount", "--propagation=private"]
        command += [SYSTEM_PYTHON, "-B", "-m", "cluster.hidden", folder / "root", visible]
        command += ["buildah", f"--root={folder / 'store'}", f"--runroot={folder / 'run'}", *arguments]
        return run(
            command,
            env={"PYTHONPATH": str(PACKAGE.parent), "CONTAINERS_CONF": str(configuration)},
            hint=f"If the store itself is damaged, delete {folder}: it is only a cache.",
        )

    def _configuration(self, name: str, text: str) -> Path:
        """A configuration file with this text; one that has it already is left alone: it may be in use."""
        file = self._folder / name
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return file

    def _needed_by_pip(self) -> list[Path]:
        paths = pip_settings.paths(self._pip_options)
        return [path if path.is_dir() else path.parent for path in paths]
