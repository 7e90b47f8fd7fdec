"""What the examples become, as YAML to read and to review.

LLAMASERVER_UPDATE_GOLDEN=1 pytest tests/desired/test_golden.py    writes the files anew; then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from llamaserver.api import effective, parse
from llamaserver.desired import BuildSettings, TunerDelivery, build, desired_fleet

HERE = Path(__file__).resolve().parent
EXAMPLES = sorted((HERE.parents[1] / "examples").glob("*.yaml"))
UPDATE = os.environ.get("LLAMASERVER_UPDATE_GOLDEN") == "1"
PEM = "-----BEGIN PUBLIC KEY-----\n(an Ed25519 key)\n-----END PUBLIC KEY-----\n"


def rendered(path: Path, delivery: TunerDelivery = TunerDelivery.INIT_CONTAINER) -> str:
    obj: dict[str, Any] = next(
        document for document in yaml.safe_load_all(path.read_text()) if document["kind"] == "LlamaServer"
    )
    obj["metadata"] |= {"namespace": "models", "uid": "00000000-0000-0000-0000-000000000001"}
    server = parse(obj)
    settings = BuildSettings("llamaserver/tuner:0.1.0", delivery, public_keys={"2026-01": PEM})
    objects = build(server, desired_fleet(effective(server.spec), None, None), settings)
    return yaml.safe_dump_all(objects, sort_keys=False, width=110)


def compare(name: str, text: str) -> None:
    golden = HERE / "golden" / f"{name}.yaml"
    if UPDATE:
        golden.write_text(text)
    assert golden.exists(), f"{golden.name} is missing: run with LLAMASERVER_UPDATE_GOLDEN=1"
    assert text == golden.read_text(), (
        f"{golden.name} is stale: run with LLAMASERVER_UPDATE_GOLDEN=1, read the diff"
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_becomes_what_was_reviewed(path: Path) -> None:
    compare(path.stem, rendered(path))


def test_the_tuner_as_an_image_volume() -> None:
    chat = next(path for path in EXAMPLES if path.stem == "chat")
    compare("chat-image-volume", rendered(chat, TunerDelivery.IMAGE_VOLUME))


def test_no_golden_file_is_left_over() -> None:
    expected = {path.stem for path in EXAMPLES} | {"chat-image-volume"}
    assert {path.stem for path in (HERE / "golden").glob("*.yaml")} == expected
