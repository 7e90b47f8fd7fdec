"""The CPU engine's Python environment: vLLM and all it needs, installed once from images/engine-cpu."""

from __future__ import annotations

from pathlib import Path

from cluster import cache, pip_settings
from cluster.progress import Progress
from cluster.settings import REPOSITORY, SYSTEM_PYTHON, Settings
from cluster.shell import Argument, run

SOURCE = REPOSITORY / "images" / "engine-cpu"
UV_VERSION = "0.13.9"


def environment_path(settings: Settings) -> Path:
    """Where the environment is, or will be once `ensure` has made it."""
    made_from = (SOURCE / "requirements.lock", SOURCE / "finish_venv.py")
    return settings.cache / "engine-venv" / cache.fingerprint(made_from, UV_VERSION)


def ensure(settings: Settings, progress: Progress) -> Path:
    """Return the environment's folder, installing it when the cache lacks it.

    It is relocatable: its programs find their interpreter beside themselves, so the same folder works here
    and mounted at /opt/vllm in a container.
    """

    def install(venv: Path) -> None:
        uv = ensure_uv(settings, progress)
        downloads = venv.with_name(f"downloads-{venv.name}")
        env = {**pip_settings.for_uv(pip_settings.read(uv.with_name("pip"))), "UV_CACHE_DIR": str(downloads)}
        into: list[Argument] = ["--python", venv / "bin" / "python"]
        locked: list[Argument] = ["--no-deps", "--require-hashes", "-r", SOURCE / "requirements.lock"]
        with progress.step("installing vLLM for the CPU (5.5 GB, half a minute)"):
            run([uv, "venv", "--relocatable", "--python", SYSTEM_PYTHON, venv], env=env)
            run([uv, "pip", "install", *into, "--compile-bytecode", *locked], env=env)
            run([SYSTEM_PYTHON, SOURCE / "finish_venv.py", venv])
            cache.remove(downloads)

    target = environment_path(settings)
    cache.make(target, install, progress)
    return target


def ensure_uv(settings: Settings, progress: Progress) -> Path:
    """Return the path of uv, installed with pip into an environment of its own; pip lies beside it."""
    environment = settings.cache / f"uv-{UV_VERSION}"
    if not (environment / "bin" / "uv").exists():
        with progress.step(f"installing uv {UV_VERSION}"):
            cache.remove(environment)
            run([SYSTEM_PYTHON, "-m", "venv", environment], hint="Install the Debian package python3-venv.")
            run([environment / "bin" / "pip", "install", "--quiet", f"uv=={UV_VERSION}"])
    return environment / "bin" / "uv"
