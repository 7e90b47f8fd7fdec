"""Image archives written without a build tool are what `docker load` and `ctr images import` expect."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cluster import archive


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "program").write_text("#!/bin/sh\n")
    (root / "bin" / "program").chmod(0o755)
    (root / "bin" / "alias").symlink_to("program")
    archive.pack(root, tmp_path / "layer.tar")
    return tmp_path / "layer.tar"


def read(image: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Manifest, configuration and layer of an image archive."""
    with tarfile.open(image) as tar:

        def content(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        (manifest,) = json.loads(content("manifest.json"))
        config = content(manifest["Config"])
        assert manifest["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
        return manifest, json.loads(config), content(manifest["Layers"][0])


def test_the_configuration_names_the_layer_by_its_content(layer: Path, tmp_path: Path) -> None:
    archive.write(tmp_path / "image.tar", "localhost/some/image:dev", layer, ["/bin/program"])
    manifest, config, content = read(tmp_path / "image.tar")
    assert manifest["RepoTags"] == ["localhost/some/image:dev"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    assert config["config"]["Cmd"] == ["/bin/program"]


def test_modes_and_links_survive_and_owners_do_not(layer: Path) -> None:
    with tarfile.open(layer) as tar:
        entries = {entry.name: entry for entry in tar}
    assert list(entries) == ["bin", "bin/alias", "bin/program"]
    assert entries["bin/program"].mode == 0o755
    assert entries["bin/alias"].linkname == "program"
    assert {(entry.uid, entry.gid, entry.uname, entry.mtime) for entry in entries.values()} == {(0, 0, "", 0)}


def test_the_same_tree_gives_the_same_bytes(layer: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    (tmp_path / "root" / "bin" / "program").touch()
    archive.pack(tmp_path / "root", again)
    assert again.read_bytes() == layer.read_bytes()
