"""Run by the interpreter of an environment with vLLM: its watcher of certificates beside a folder that is
renewed as the kubelet renews a mounted Secret.

Prints what was read of each renewal that was noticed, as a JSON list.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

from vllm.entrypoints.launchers.utils.ssl import SSLCertRefresher

NAMES = ("tls.crt", "tls.key")
RENEWALS = 3
BEGUN_S = 2.0
NOTICED_S = 15.0


class Context:
    """As much of an SSLContext as the watcher uses: what was read, each renewal once."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.has_read = asyncio.Event()

    def load_cert_chain(self, certificate: str, key: str) -> None:
        said = {Path(file).read_text() for file in (certificate, key)}
        assert len(said) == 1, "a certificate with another one's key"
        self.read.extend(said - set(self.read))
        self.has_read.set()


def write(folder: Path, number: int) -> None:
    """The files in a folder of their own, to which a link is turned; the folder before goes."""
    versions = folder / f"..{number}"
    versions.mkdir()
    for name in NAMES:
        (versions / name).write_text(f"renewal {number}")
        at = time.time() + 60 * number
        os.utime(versions / name, (at, at))
    link, before = folder / "..data", folder / f"..{number - 1}"
    (folder / "..new").symlink_to(versions.name)
    (folder / "..new").rename(link)
    if before.exists():
        shutil.rmtree(before)
        return
    for name in NAMES:
        (folder / name).symlink_to(f"..data/{name}")


async def main(folder: Path) -> None:
    write(folder, 0)
    context = Context()
    refresher = SSLCertRefresher(context, str(folder / "tls.key"), str(folder / "tls.crt"))
    await asyncio.sleep(BEGUN_S)
    for number in range(1, RENEWALS + 1):
        context.has_read.clear()
        write(folder, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(context.has_read.wait(), NOTICED_S)
    print(json.dumps(context.read), flush=True)
    refresher.stop()
    # The thread that waits for changes would keep the process for seconds.
    os._exit(0)


asyncio.run(main(Path(sys.argv[1])))
