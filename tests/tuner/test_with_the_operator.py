"""The operator's side of the contract and the tuner's, put together: what one writes the other reads."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from llamaserver.engine import SigningKey
from llamaserver.observe import Sample, parse_snapshot
from llamaserver_tuner.meter import StepMeter, StepShape
from llamaserver_tuner.setpoints import Refusal
from llamaserver_tuner.signing import Claims, KeyRing, verify
from llamaserver_tuner.totals import RequestTotals

RECORDED = sorted((Path(__file__).resolve().parents[1] / "observe" / "data").glob("snapshot_v*.json"))


def test_the_operators_token_passes_and_for_this_pod_alone(tmp_path: Path) -> None:
    key, body = SigningKey.generate(), b'{"max_num_active_seqs":8}'
    (tmp_path / f"{key.kid}.pem").write_text(key.public_pem())
    token = key.sign(pod_uid="pod-a", boot_id="boot-a", generation=4, body=body, wall_s=time.time())
    keys = KeyRing(tmp_path).keys()
    outcome = verify(f"Bearer {token}", body, "pod-a", "boot-a", keys)
    assert isinstance(outcome, Claims)
    assert outcome.generation == 4
    assert isinstance(verify(f"Bearer {token}", body, "pod-b", "boot-a", keys), Refusal)
    assert isinstance(verify(f"Bearer {token}", body, "pod-a", "boot-b", keys), Refusal)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_operator_reads_what_a_real_engine_said(path: Path) -> None:
    sample = parse_snapshot(path.read_bytes(), 0.0, "pod")
    assert isinstance(sample, Sample)
    assert sample.writable


def test_the_operator_reads_what_this_version_writes() -> None:
    """The recorded snapshot with its sums and digests replaced by freshly written ones."""
    snapshot = json.loads(RECORDED[0].read_text())
    meter, totals = StepMeter(), RequestTotals()
    for at in range(1000, 9000, 1000):
        meter.scheduled(at - 900)
        meter.output(at, StepShape(3, 300, 0, True), idle=False)
    totals.itl.add_all([0.01] * 21)
    snapshot["engines"][0]["steps"] = meter.to_json()
    snapshot["requests"]["0"] = {**totals.to_json(), "arrived": 3}
    sample = parse_snapshot(json.dumps(snapshot).encode(), 0.0, "pod")
    assert isinstance(sample, Sample)
    assert (sample.itl.count, sample.engine_steps) == (21, 7)
    assert sample.engines[0].decode_steps is not None
    assert sample.engines[0].decode_steps.y == 7000
