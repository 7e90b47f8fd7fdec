"""`python3 -m llamaserver_tuner.download`: fetch, tell how far it is, and say why where it cannot be done."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from llamaserver_tuner.download.answer import serve
from llamaserver_tuner.download.cache import Repository
from llamaserver_tuner.download.fetch import Wish, fetch
from llamaserver_tuner.download.hub import Hub
from llamaserver_tuner.download.progress import Meter, Plan, Reading
from llamaserver_tuner.lastwords import TERMINATION_LOG, words_of

SILENCE_S: Final = 1800.0
LOOK_S: Final = 5.0
LOG_S: Final = 30.0


@dataclass
class Watch:
    """Looks at the disk now and then, for whoever asks and for the log."""

    plan: Plan | None = None
    meter: Meter = field(default_factory=lambda: Meter(time.monotonic()))
    last: Reading = field(default_factory=lambda: Reading(0, None, 0.0, 0.0))

    def planned(self, plan: Plan) -> None:
        """What is to come is known."""
        self.plan = plan
        say(f"commit {plan.commit}: {len(plan.files)} files, {_gibibytes(plan.total)}")

    def run(self) -> NoReturn:
        """Look until the process ends; end it where nothing has been done to the cache for too long."""
        told = 0.0
        while True:
            now = time.monotonic()
            self.last = self.meter.read(self.plan, now)
            if self.last.silent_s > SILENCE_S:
                fail(
                    f"No byte has come for {SILENCE_S / 60:.0f} minutes: the hub sends nothing, or a pod "
                    "that was killed has left its lock in the claim (huggingface/hub/.locks)"
                )
            if self.plan is not None and now - told >= LOG_S:
                told = now
                say(
                    f"{_gibibytes(self.last.bytes)} of {_gibibytes(self.last.total)}, "
                    f"{self.last.bytes_per_second / 2**20:.0f} MiB/s"
                )
            time.sleep(LOOK_S)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch the model that the arguments name and put a link to it where the engine looks for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", required=True, help="organisation/name on the hub")
    parser.add_argument("--revision", help="commit, tag or branch; the default branch if left out")
    parser.add_argument("--cache", required=True, type=Path, help="folder that outlives the pod")
    parser.add_argument("--link", required=True, type=Path, help="where the engine looks for the model")
    parser.add_argument("--port", required=True, type=int, help="where the progress is served")
    given = parser.parse_args(arguments)
    # As the container's first process, which else would not see it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    # Pods of other users share the claim by its group.
    os.umask(0o002)
    watch = Watch()
    threading.Thread(target=watch.run, name="watch", daemon=True).start()
    try:
        serve(given.port, lambda: watch.last)
    except OSError as error:
        say(f"the progress cannot be served: {error}")
    try:
        pod = os.environ.get("LLAMASERVER_POD_UID") or os.urandom(8).hex()
        wish = Wish(Repository(given.repository, given.cache, pod), given.revision)
        plan = fetch(wish, Hub(os.environ), watch.planned, say)
        link(given.link, plan.snapshot)
    except Exception as error:
        fail(words_of(error))
    say(f"{given.repository} at commit {plan.commit} is there")


def link(at: Path, snapshot: Path) -> None:
    """Have `at` lead to the snapshot, whatever an earlier try has left there. Raises OSError."""
    at.parent.mkdir(parents=True, exist_ok=True)
    at.unlink(missing_ok=True)
    at.symlink_to(snapshot.resolve(strict=True), target_is_directory=True)


def say(text: str) -> None:
    """One line for the log."""
    print(text, flush=True)


def fail(words: str) -> NoReturn:
    """End, with the reason in the log and where Kubernetes looks for it."""
    say(words)
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(words + "\n", encoding="utf-8")
    sys.stdout.flush()
    os._exit(1)


def _gibibytes(count: int | None) -> str:
    return "an unknown number of bytes" if count is None else f"{count / 2**30:.1f} GiB"


if __name__ == "__main__":
    main()
