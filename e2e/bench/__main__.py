"""`python -m bench`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench import governor, page, table
from bench.engine import NotChangedError, new_key
from bench.figures import NothingSeenError
from bench.measure import PLAN, Measured, measure
from bench.plan import Work, describe, plan
from bench.result import Json, result
from bench.settings import REPOSITORY, Settings, parse
from demo.progress import Progress
from harness import machine
from harness.loopback import serving
from harness.weights import engine_model, engine_python

FAILURES = (NotChangedError, NothingSeenError, RuntimeError, OSError, subprocess.SubprocessError)


class Bench:
    """One run of all scenarios, and what is known of it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._progress = Progress()
        self._started = datetime.now(UTC)
        self._found: list[Measured] = []
        self._versions = versions()
        self._tuner_us: float | None = None
        self._incomplete = "the run has not ended"

    def run(self) -> int:
        """Measure and write. The exit status: 0 when everything that was asked for was measured."""
        settings, say = self._settings, self._progress.say
        work = plan(settings.wanted)
        for line in describe(settings.wanted, work):
            say(line)
        python = settings.python or engine_python()
        model = settings.model or engine_model(python)
        failed: list[str] = []
        try:
            self._tuner_us = tuner_us(python)
            for one in work:
                self._progress.headline(f"{one.scenario.name}: {one.scenario.says}")
                try:
                    self._scenario(one, python, model)
                except FAILURES as error:
                    # One scenario's fault costs the others nothing.
                    failed.append(f"{one.scenario.name}: {error}")
                    say(f"{one.scenario.name} failed: {error}")
            self._incomplete = "; ".join(failed)
        except KeyboardInterrupt:
            self._incomplete = "it was interrupted"
            say("interrupted; what is known is written")
        found = self._save()
        write_page(found, settings.output)
        self._progress.headline(f"report: {settings.output / 'engine.html'} (and engine.json)")
        print(table.markdown(found), flush=True)
        return 1 if self._incomplete else 0

    def _scenario(self, work: Work, python: Path, model: Path) -> None:
        found = Measured(
            work.scenario,
            load_average=round(os.getloadavg()[0], 2),
            statistic=self._settings.wanted.statistic,
            repeats=work.repeats,
        )
        self._found.append(found)
        began = time.monotonic()
        with scratch() as folder:
            key = new_key(folder)
            plugin = (governor.ENTRY_POINT, governor.stage(folder / "governor"))
            environment = {governor.VARIABLE: str(folder / PLAN)}
            with serving(python, model, folder, work.scenario.flags, environment, plugin) as server:
                say = self._progress.say
                measure(server, key, self._settings.wanted, work, found, folder, say, self._save, began)

    def _save(self) -> Json:
        """Write engine.json as it would be if nothing more came."""
        found = result(
            self._settings.wanted,
            self._found,
            started=self._started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            machine={
                "cpu": machine.processor(),
                "cores": machine.cores(),
                "memory_gib": machine.memory_gib(),
                "kernel": os.uname().release,
                "dtype": machine.fast_dtype(),
            },
            versions=self._versions,
            tuner_us=self._tuner_us,
            incomplete=self._incomplete,
            seconds=self._progress.elapsed,
        )
        write(self._settings.output / "engine.json", json.dumps(found, indent=1) + "\n")
        return found


def versions() -> dict[str, str]:
    """The operator's; the engine's and the tuner's come from the engine itself."""
    found = {"llamaserver-operator": metadata.version("llamaserver-operator")}
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {**found, "commit": done.stdout.strip()} if done.returncode == 0 else found


def tuner_us(python: Path) -> float | None:
    """Microseconds a step of the tuner's own work in the engine at the bench's batch, timed inside vLLM; None
    where that fails.
    """
    tuner = REPOSITORY / "images" / "tuner"
    command = [str(python), "-W", "ignore", str(tuner / "bench" / "micro.py")]
    environment = {**os.environ, "PYTHONPATH": str(tuner), "VLLM_LOGGING_LEVEL": "CRITICAL"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode != 0:
        return None
    return float(json.loads(done.stdout)["engine_core_decode"]["32"])


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one server: log, keys, the tuner, the streams' record. Kept when something fails."""
    folder = Path(tempfile.mkdtemp(prefix="bench-engine-"))
    try:
        yield folder
    except FAILURES:
        print(f"left for you to look at: {folder}", flush=True)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def write(path: Path, text: str) -> None:
    """Write a file in one go, so that whoever reads it while the bench runs finds it whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    beside.rename(path)


def write_page(found: Json, output: Path) -> None:
    """The page, unless there is nothing to show yet."""
    if found["scenarios"]:
        write(output / "engine.html", page.html(found))


def main() -> int:
    settings = parse()
    if settings.markdown:
        file = settings.output / "engine.json"
        if not file.exists():
            print(f"error: {file} is not there; run the bench first", file=sys.stderr)
            return 1
        found = json.loads(file.read_text())
        write_page(found, settings.output)
        print(table.markdown(found))
        return 0
    # Ended like by Ctrl-C: nothing of ours is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return Bench(settings).run()


if __name__ == "__main__":
    sys.exit(main())
