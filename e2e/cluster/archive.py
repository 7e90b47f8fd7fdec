"""Container images of one layer, written without a daemon or a build tool, in the format of `docker save`."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

EPOCH = "1970-01-01T00:00:00Z"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pack(root: Path, layer: Path) -> None:
    """Write the tree below `root` as a layer owned by root; the same tree always gives the same bytes."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as tar:
        for entry in sorted(root.iterdir()):
            tar.add(entry, arcname=entry.name, filter=plain)  # goes down in the order of names


def write(target: Path, reference: str, layer: Path, command: Sequence[str] = ()) -> None:
    """Write an image archive named `reference` that holds `layer`, an uncompressed tar file."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": EPOCH,
        "config": {"Env": [SEARCH_PATH], **({"Cmd": list(command)} if command else {})},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": EPOCH}],
    }
    config_bytes = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as tar:
        _add(tar, config_name, config_bytes)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        tar.add(layer, arcname="layer.tar")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
