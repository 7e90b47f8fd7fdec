"""A model comes from a hub into a cache before its engine starts.

What huggingface_hub makes of that cache is asked of the one in vLLM's own environment, which
LLAMASERVER_VLLM_PYTHON names, as for the other checks.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakehub import FakeHub
from llamaserver.api.conditions import Reason
from llamaserver.controller.lastwords import cause_of_death
from llamaserver.engine.progress import read_progress
from llamaserver_tuner.download import cache, record
from llamaserver_tuner.download import fetch as fetching
from llamaserver_tuner.download.cache import Repository
from llamaserver_tuner.download.fetch import Wish, fetch
from llamaserver_tuner.download.hub import (
    GatedRepoError,
    Hub,
    HubUnreachableError,
    NoWeightsError,
    RefusedError,
)
from llamaserver_tuner.download.progress import File, Meter, Plan
from llamaserver_tuner.download.selection import wanted
from llamaserver_tuner.lastwords import words_of

VLLM = os.environ.get("LLAMASERVER_VLLM_PYTHON", "")
TUNER = Path(__file__).resolve().parents[2] / "images" / "tuner"

REPOSITORY = "org/tiny"
WEIGHTS = bytes(range(256)) * 512
FILES = {
    "config.json": b"{}",
    "tokenizer [v1].json": b"[]",
    "model-1.safetensors": WEIGHTS,
    "model-2.safetensors": WEIGHTS[::-1],
    "pytorch_model.bin": WEIGHTS * 2,
    "original/consolidated.00.pth": WEIGHTS * 3,
}
READ = {path: FILES[path] for path in list(FILES)[:4]}


@pytest.mark.parametrize(
    ("there", "left_out"),
    [
        ({"config.json", "model.safetensors", "tokenizer.model"}, set()),
        ({"config.json", "model.safetensors"}, {"pytorch_model.bin", "model.pt", "tf_model.h5", "a.gguf"}),
        ({"config.json", "pytorch_model.bin", "vocab.txt"}, {"flax_model.msgpack"}),
        ({"a.safetensors", "params.json"}, {"original/a.safetensors", "metal/model.bin", "onnx/model.onnx"}),
        ({"model.safetensors", "2_Dense/pytorch_model.bin", "1_Pooling/config.json"}, set()),
        ({"consolidated.safetensors", "model-00001.safetensors", "tekken.json"}, set()),
        ({"modeling_own.py", "original_model.py", "model.bin"}, set()),
    ],
)
def test_the_files_are_those_that_vllm_reads(there: set[str], left_out: set[str]) -> None:
    assert set(wanted(there | left_out)) == there


def plan(folder: Path, **sizes: int | None) -> Plan:
    return Plan(folder, "c", [File(path, size, f"blob-{path}") for path, size in sizes.items()])


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


class TestProgress:
    """What is told of a download, by what is on disk."""

    def test_parts_count_in_every_form_that_the_cache_has_and_never_twice(self, tmp_path: Path) -> None:
        made = plan(tmp_path, a=100, b=100, c=100, d=100)
        write(tmp_path / "blobs" / "blob-a", 100)
        write(tmp_path / "snapshots" / "c" / "a", 100)
        write(tmp_path / "blobs" / "blob-b.llamaserver.incomplete", 40)
        write(tmp_path / "blobs" / "blob-c.0123abcd.incomplete", 10)
        write(tmp_path / "blobs" / "blob-c.4567abcd.incomplete", 30)
        write(tmp_path / "blobs" / "of-another-revision", 999)
        assert made.on_disk().bytes == 170
        assert made.total == 400
        assert made.missing() == ["b", "c", "d"]

    def test_a_file_of_another_size_is_not_there(self, tmp_path: Path) -> None:
        write(tmp_path / "snapshots" / "c" / "a", 99)
        assert plan(tmp_path, a=100).missing() == ["a"]
        assert plan(tmp_path, a=None).missing() == []
        assert plan(tmp_path, a=None).total is None

    def test_the_rate_is_that_of_the_last_half_minute(self, tmp_path: Path) -> None:
        made, meter, part = plan(tmp_path, a=10_000), Meter(0.0), tmp_path / "blobs" / "blob-a.incomplete"
        for now in range(0, 65, 5):
            write(part, 10 * now)
            reading = meter.read(made, float(now))
        assert (reading.bytes, reading.total, reading.bytes_per_second) == (600, 10_000, 10.0)
        assert reading.silent_s == 0.0
        for now in range(65, 105, 5):
            reading = meter.read(made, float(now))
        assert (reading.bytes_per_second, reading.silent_s) == (0.0, 40.0)

    def test_a_file_that_has_its_full_length_and_is_still_written_to_is_no_silence(
        self, tmp_path: Path
    ) -> None:
        made, meter, part = plan(tmp_path, a=100), Meter(0.0), tmp_path / "blobs" / "blob-a.incomplete"
        write(part, 100)
        meter.read(made, 0.0)
        os.utime(part, (10**9, 10**9))
        assert meter.read(made, 60.0).silent_s == 0.0

    def test_before_the_hub_has_answered_nothing_is_known(self) -> None:
        reading = Meter(5.0).read(None, 12.0)
        assert (reading.bytes, reading.total, reading.silent_s) == (0, None, 7.0)


class TestRecord:
    """What is known to be whole."""

    def test_is_found_again_while_all_of_it_is_there(self, tmp_path: Path) -> None:
        made = plan(tmp_path / "repo", a=3)
        write(made.snapshot / "a", 3)
        record.write(tmp_path, "org/m", "v" * 256, made)
        found = record.read(tmp_path, tmp_path / "repo", "org/m", "v" * 256)
        assert found is not None
        assert found.snapshot == made.snapshot
        assert record.read(tmp_path, tmp_path / "repo", "org/m", "main") is None
        write(made.snapshot / "a", 2)
        assert record.read(tmp_path, tmp_path / "repo", "org/m", "v" * 256) is None

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"commit": "c", "files": []}', "\x00"])
    def test_one_that_cannot_be_read_is_none(self, tmp_path: Path, content: str) -> None:
        made = plan(tmp_path / "repo", a=3)
        write(made.snapshot / "a", 3)
        record.write(tmp_path, "org/m", "main", made)
        next(tmp_path.glob("*.json")).write_text(content)
        assert record.read(tmp_path, tmp_path / "repo", "org/m", "main") is None


def at_once(_: float) -> None:
    """No pause between two tries."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("no_proxy", "*")
    with FakeHub(REPOSITORY, dict(FILES)) as made:
        yield made


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    return tmp_path / "claim"


@pytest.fixture
def folder(claim: Path) -> Path:
    """Where huggingface_hub keeps this repository."""
    return claim / "huggingface" / "hub" / "models--org--tiny"


Download = Callable[..., Plan]


@pytest.fixture
def download(hub: FakeHub, claim: Path) -> Download:
    """A download in this process; keywords are the hub's variables."""

    def run(
        revision: str | None = None, said: list[str] | None = None, pod: str = "pod-0", **variables: str
    ) -> Plan:
        asked = Hub({"HF_ENDPOINT": hub.url} | variables)
        wish = Wish(Repository(REPOSITORY, claim, pod), revision)
        return fetch(wish, asked, lambda _: None, (said if said is not None else []).append, at_once)

    return run


def started(count: int, download: Download, plans: list[Plan]) -> list[threading.Thread]:
    """Pods that download at once."""

    def run(number: int) -> None:
        plans.append(download(pod=f"pod-{number}"))

    pods = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for pod in pods:
        pod.start()
    return pods


class SlowAtFirst:
    """SHA-256 that takes `seconds` for the first `count` bytes of each content, as a large part does, and
    counts what it is shown.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, seconds: float) -> None:
        self._shown: list[tuple[Any, list[int]]] = []
        real = hashlib.sha256

        def made() -> Any:
            digest, counts = real(), [0]
            self._shown.append((digest, counts))

            def update(chunk: bytes) -> None:
                if counts[0] < count:
                    time.sleep(seconds)
                counts[0] += len(chunk)
                digest.update(chunk)

            return SimpleNamespace(update=update, hexdigest=digest.hexdigest)

        monkeypatch.setattr(fetching, "hashlib", SimpleNamespace(sha256=made, sha1=hashlib.sha1))

    def of(self, content: bytes) -> int:
        """Bytes that were shown for this content."""
        return sum(
            counts[0] for digest, counts in self._shown if digest.digest() == hashlib.sha256(content).digest()
        )


def content(folder: Path) -> dict[str, bytes]:
    """What an engine finds there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestDownload:
    """What is in the cache afterwards, and what was asked of the hub for it."""

    def test_the_cache_has_what_the_engine_reads_and_nothing_else_was_fetched(
        self, hub: FakeHub, download: Download, folder: Path
    ) -> None:
        assert content(download().snapshot) == READ
        assert set(hub.fetched) == set(READ)
        assert (folder / "refs" / "main").read_text() == hub.commit
        for path in READ:
            found = folder / "snapshots" / hub.commit / path
            assert found.is_symlink()
            assert not found.readlink().is_absolute()
            assert found.resolve() == folder / "blobs" / hub.oid(path)
        assert {path.name for path in (folder / "blobs").iterdir()} == {hub.oid(path) for path in READ}

    def test_the_token_is_for_the_hub_and_not_for_the_store_that_it_sends_to(
        self, hub: FakeHub, download: Download
    ) -> None:
        download(HF_TOKEN=" secret\n")
        assert hub.tokens == {"Bearer secret"}
        assert hub.store_tokens == {""}

    def test_a_second_pod_finds_it_there(self, hub: FakeHub, download: Download) -> None:
        download()
        assert content(download().snapshot) == READ
        assert set(hub.fetched.values()) == {1}

    def test_pods_at_once_fetch_every_file_once(self, hub: FakeHub, download: Download) -> None:
        hub.held.clear()
        plans: list[Plan] = []
        pods = started(3, download, plans)
        wait_for(lambda: hub.fetched["model-2.safetensors"])
        hub.held.set()
        for pod in pods:
            pod.join()
        assert [content(plan.snapshot) for plan in plans] == [READ] * 3
        assert set(hub.fetched.values()) == {1}

    @pytest.mark.parametrize("granted", [True, False])
    def test_pods_at_once_do_no_harm_where_locks_do_not_hold(
        self, hub: FakeHub, download: Download, folder: Path, monkeypatch: pytest.MonkeyPatch, granted: bool
    ) -> None:
        def flock(*_: object) -> None:
            if not granted:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", flock)
        hub.pace_s = 2.0
        plans: list[Plan] = []
        for pod in started(3, download, plans):
            pod.join()
        assert hub.fetched["model-1.safetensors"] == 3
        assert [content(plan.snapshot) for plan in plans] == [READ] * 3
        assert {path.name for path in (folder / "blobs").iterdir()} == {hub.oid(path) for path in READ}

    def test_what_another_pod_still_writes_to_is_not_what_the_engine_reads(
        self, hub: FakeHub, download: Download, claim: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where locks do not hold."""
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
        path = "model-1.safetensors"
        part = Repository(REPOSITORY, claim, "pod-1").part(File(path, len(WEIGHTS), hub.oid(path), True))
        part.parent.mkdir(parents=True)
        over = threading.Event()
        with part.open("wb", buffering=0) as other:
            other.write(WEIGHTS[:100])

            def go_on() -> None:
                while not over.wait(0.05):
                    other.write(b"wrong")

            writes = threading.Thread(target=go_on)
            writes.start()
            found = download().snapshot
            over.set()
            writes.join()
            other.seek(0)
            other.write(b"wrong" * len(WEIGHTS))
        assert content(found) == READ

    def test_what_a_pod_has_left_is_gone_on_with_once_nobody_can_be_writing_to_it(
        self, hub: FakeHub, download: Download, claim: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "LEFT_S", 2.0)
        path = "model-1.safetensors"
        part = Repository(REPOSITORY, claim, "pod-1").part(File(path, len(WEIGHTS), hub.oid(path), True))
        write(part, 0)
        part.write_bytes(WEIGHTS[:1000])
        began = time.monotonic()
        assert content(download().snapshot) == READ
        assert time.monotonic() - began >= 1.5
        assert hub.began[path] == 1000
        assert not part.exists()

    def test_a_large_part_is_checked_before_a_store_is_asked_that_waits_for_nobody(
        self, hub: FakeHub, download: Download, claim: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = "model-1.safetensors"
        hub.files[path] = whole = WEIGHTS * 64
        hub.patience_s = 0.3
        part = Repository(REPOSITORY, claim, "pod-0").part(File(path, len(whole), hub.oid(path), True))
        write(part, 0)
        part.write_bytes(whole[:1000])
        seen = SlowAtFirst(monkeypatch, 1000, 1.0)
        assert content(download().snapshot)[path] == whole
        assert hub.fetched[path] == 1
        assert seen.of(whole) == len(whole)

    def test_checking_a_part_is_a_sign_of_life(
        self, hub: FakeHub, download: Download, claim: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetching, "SIGN_S", 0.0)
        path = "model-1.safetensors"
        hub.files = {path: WEIGHTS}
        file = File(path, len(WEIGHTS), hub.oid(path), True)
        part = Repository(REPOSITORY, claim, "pod-0").part(file)
        write(part, 0)
        part.write_bytes(WEIGHTS)
        os.utime(part, (10**9, 10**9))
        made = Plan(part.parents[1], hub.commit, [file])
        meter = Meter(0.0)
        meter.read(made, 0.0)
        assert meter.read(made, 2000.0).silent_s == 2000.0
        SlowAtFirst(monkeypatch, len(WEIGHTS), 1.0)
        pod = threading.Thread(target=download)
        pod.start()
        wait_for(lambda: meter.read(made, 2001.0).silent_s == 0.0)
        assert part.exists(), "it is not checked yet"
        pod.join()

    def test_what_was_checked_once_is_not_read_again_at_the_next_try(
        self, hub: FakeHub, download: Download, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.cut = {"model-1.safetensors"}
        seen = SlowAtFirst(monkeypatch, 0, 0.0)

        class Mended(list[str]):
            def append(self, text: str) -> None:
                super().append(text)
                hub.cut.clear()

        assert content(download(said=Mended()).snapshot) == READ
        assert seen.of(WEIGHTS) == len(WEIGHTS)

    @pytest.mark.parametrize("left", [WEIGHTS[:1000], b"wrong" * 200])
    def test_a_store_that_begins_at_the_first_byte_is_followed(
        self, hub: FakeHub, download: Download, claim: Path, left: bytes
    ) -> None:
        hub.ranges = False
        path = "model-1.safetensors"
        part = Repository(REPOSITORY, claim, "pod-0").part(File(path, len(WEIGHTS), hub.oid(path), True))
        write(part, 0)
        part.write_bytes(left)
        assert content(download().snapshot) == READ
        assert hub.fetched[path] == 1

    @pytest.mark.parametrize(
        "files",
        [
            {"model-Q4_K_M.gguf": WEIGHTS},
            {"model-Q4_K_M.gguf": WEIGHTS, "README.md": b"#", "config.json": b"{}"},
            {"config.json": b"{}", "training_args.bin": b"x", "optimizer.pt": WEIGHTS},
            {},
        ],
    )
    def test_a_repository_without_weights_is_told_as_one(
        self, hub: FakeHub, download: Download, files: dict[str, bytes]
    ) -> None:
        hub.files = files
        with pytest.raises(NoWeightsError, match="org/tiny holds no weights that vLLM reads") as caught:
            download()
        death = cause_of_death(words_of(caught.value))
        assert death is not None
        assert death.reason is Reason.MODEL_UNSUPPORTED
        assert "--load-format=gguf" in death.advice
        assert not hub.fetched

    def test_a_file_system_without_links_holds_the_content_itself(
        self, hub: FakeHub, download: Download, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*_: object, **__: object) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        monkeypatch.setattr(Path, "symlink_to", refused)
        assert content(download().snapshot) == READ
        assert content(download().snapshot) == READ
        assert set(hub.fetched.values()) == {1}

    def test_a_commit_that_is_there_needs_no_hub_and_a_branch_none_that_is_gone(
        self, hub: FakeHub, download: Download
    ) -> None:
        hub.refs["v1"] = hub.commit
        download(hub.commit)
        download("v1")
        hub.stop()
        said: list[str] = []
        assert download(hub.commit, said).commit == hub.commit
        assert not said
        assert content(download("v1", said).snapshot) == READ
        assert f"going on with commit {hub.commit}, the last that was downloaded of v1" in said[-1]

    def test_a_branch_that_moved_is_followed_and_what_runs_keeps_its_commit(
        self, hub: FakeHub, download: Download, folder: Path
    ) -> None:
        before = download()
        hub.commit = "b" * 40
        hub.refs["main"], hub.files["config.json"] = hub.commit, b'{"new": 1}'
        after = download()
        assert content(before.snapshot) == READ
        assert content(after.snapshot) == READ | {"config.json": b'{"new": 1}'}
        assert (folder / "refs" / "main").read_text() == hub.commit
        assert hub.fetched["model-1.safetensors"] == 1

    def test_a_cut_connection_is_gone_on_with_at_the_byte_where_it_ended(
        self, hub: FakeHub, download: Download, folder: Path
    ) -> None:
        hub.cut = {"model-2.safetensors"}
        with pytest.raises(HubUnreachableError, match="bytes are missing"):
            download()
        assert not (folder / "snapshots" / hub.commit / "model-2.safetensors").exists()
        assert not (folder / "refs" / "main").exists()
        assert hub.sent["model-2.safetensors"] == len(WEIGHTS) // 2
        hub.cut.clear()
        assert content(download().snapshot) == READ
        assert hub.sent["model-2.safetensors"] == len(WEIGHTS)
        assert hub.fetched["model-1.safetensors"] == 1

    def test_one_process_goes_on_too(self, hub: FakeHub, download: Download) -> None:
        hub.cut = {"model-1.safetensors"}

        class Mended(list[str]):
            def append(self, text: str) -> None:
                super().append(text)
                hub.cut.clear()

        said = Mended()
        assert content(download(said=said).snapshot) == READ
        assert "trying again" in said[0]
        assert hub.sent["model-1.safetensors"] == len(WEIGHTS)

    def test_half_a_model_is_none_when_the_hub_is_gone(self, hub: FakeHub, download: Download) -> None:
        hub.cut = {"model-2.safetensors"}
        with pytest.raises(HubUnreachableError):
            download()
        hub.stop()
        with pytest.raises(HubUnreachableError):
            download()

    @pytest.mark.parametrize("path", ["config.json", "model-1.safetensors"])
    def test_content_that_is_not_what_was_announced_is_not_kept(
        self, hub: FakeHub, download: Download, folder: Path, path: str
    ) -> None:
        hub.forged[path] = FILES[path][::-1]
        with pytest.raises(HubUnreachableError, match="is not what the hub announced"):
            download()
        assert not (folder / "blobs" / hub.oid(path)).exists()
        hub.forged.clear()
        assert content(download().snapshot) == READ

    def test_a_part_that_is_too_long_or_wrong_is_fetched_anew(
        self, hub: FakeHub, download: Download, folder: Path
    ) -> None:
        for path, size in (("model-1.safetensors", len(WEIGHTS) + 1), ("model-2.safetensors", 100)):
            write(folder / "blobs" / f"{hub.oid(path)}.pod-0.llamaserver.incomplete", size)
        assert content(download().snapshot) == READ

    def test_a_mirror_that_lists_no_digests_is_asked_for_each(
        self, hub: FakeHub, download: Download, folder: Path
    ) -> None:
        hub.tells_digests = False
        assert content(download().snapshot) == READ
        assert {path.name for path in (folder / "blobs").iterdir()} == {hub.oid(path) for path in READ}

    def test_a_path_that_leads_out_of_the_repository_is_refused(
        self, hub: FakeHub, download: Download, claim: Path
    ) -> None:
        hub.files["../../../escaped.json"] = b"{}"
        with pytest.raises(HubUnreachableError, match="something else than a model"):
            download()
        assert not list(claim.rglob("escaped.json"))

    def test_a_gate_is_met_before_a_byte_is_fetched(self, hub: FakeHub, download: Download) -> None:
        hub.gate = (403, "GatedRepo", "Access to model org/tiny is restricted")
        with pytest.raises(GatedRepoError, match="Access to model org/tiny is restricted"):
            download()
        assert not hub.fetched

    @pytest.mark.parametrize(
        ("refusal", "reason"),
        [
            ((401, "RepoNotFound", "Repository not found"), Reason.MODEL_NOT_FOUND),
            ((404, "RepoNotFound", "Repository not found"), Reason.MODEL_NOT_FOUND),
            ((404, "", "a mirror's own words"), Reason.MODEL_NOT_FOUND),
            ((404, "RevisionNotFound", "Invalid rev id: v2"), Reason.MODEL_NOT_FOUND),
            ((403, "GatedRepo", "Access to model org/tiny is restricted"), Reason.MODEL_ACCESS_DENIED),
            ((401, "", "Invalid credentials in Authorization header"), Reason.MODEL_ACCESS_DENIED),
            ((403, "", "Forbidden"), Reason.MODEL_ACCESS_DENIED),
            ((429, "", "Too Many Requests"), Reason.HUB_UNREACHABLE),
            ((503, "", "maintenance"), Reason.HUB_UNREACHABLE),
        ],
    )
    def test_what_the_hub_refuses_is_told_as_what_it_is(
        self, hub: FakeHub, download: Download, refusal: tuple[int, str, str], reason: Reason
    ) -> None:
        hub.refusal = refusal
        with pytest.raises(Exception) as caught:
            download("v2")
        death = cause_of_death(words_of(caught.value))
        assert death is not None, caught.value
        assert (death.reason, refusal[2] in death.line) == (reason, True)

    def test_a_token_that_the_hub_does_not_know_is_told_as_one(
        self, hub: FakeHub, download: Download
    ) -> None:
        hub.token = "granted"
        with pytest.raises(RefusedError) as caught:
            download(HF_TOKEN="expired")
        death = cause_of_death(words_of(caught.value))
        assert death is not None
        assert death.reason is Reason.MODEL_ACCESS_DENIED
        assert "the hub does not know the token" in death.advice
        assert "the Secret of spec.model.tokenSecretRef" in death.advice
        assert not hub.fetched
        assert content(download(HF_TOKEN="granted").snapshot) == READ

    def test_a_claim_that_is_too_small_is_told_before_it_is_full(
        self, hub: FakeHub, download: Download
    ) -> None:
        hub.pretended = {"model-1.safetensors": 10**16}
        with pytest.raises(OSError, match=r"9313225\.7 GiB are still to be downloaded") as caught:
            download()
        death = cause_of_death(words_of(caught.value))
        assert death is not None
        assert death.reason is Reason.DISK_FULL
        assert not hub.fetched

    def test_a_cache_that_was_filled_by_others_is_used_where_asking_is_forbidden(
        self, hub: FakeHub, download: Download, claim: Path
    ) -> None:
        download()
        for path in (claim / "downloads").iterdir():
            path.unlink()
        hub.stop()
        for revision in (None, hub.commit):
            assert content(download(revision, HF_HUB_OFFLINE="1").snapshot) == READ
        for revision in ("v3", "../../../etc/passwd"):
            with pytest.raises(Exception, match="HF_HUB_OFFLINE is set") as caught:
                download(revision, HF_HUB_OFFLINE="true")
            death = cause_of_death(words_of(caught.value))
            assert (death and death.reason) is Reason.HUB_UNREACHABLE

    def test_parts_that_nobody_goes_on_with_are_cleared_away(
        self, hub: FakeHub, download: Download, folder: Path
    ) -> None:
        names = ("x.0123abcd.incomplete", f"{'0' * 64}.llamaserver.incomplete")
        for name in names:
            write(folder / "blobs" / name, 10)
        download()
        assert all((folder / "blobs" / name).exists() for name in names)
        old = time.time() - cache.ABANDONED_S - 60
        for name in names:
            os.utime(folder / "blobs" / name, (old, old))
        download()
        assert not any((folder / "blobs" / name).exists() for name in names)


Run = Callable[..., "subprocess.Popen[str]"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def run(hub: FakeHub, tmp_path: Path, claim: Path) -> Iterator[Run]:
    """Starts a download as the init container does, with nothing but Python."""
    started: list[subprocess.Popen[str]] = []

    def start(link: str = "link", port: int | None = None, **variables: str) -> subprocess.Popen[str]:
        command = [
            *(sys.executable, "-S", "-m", "llamaserver_tuner.download", f"--repository={REPOSITORY}"),
            *(f"--cache={claim}", f"--link={tmp_path / link / REPOSITORY}", f"--port={port or free_port()}"),
        ]
        process = subprocess.Popen(
            command,
            env={"PYTHONPATH": str(TUNER), "HF_ENDPOINT": hub.url, "HF_TOKEN": "secret"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and log."""
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


class TestInitContainer:
    """The process that runs before the engine."""

    def test_the_engine_finds_the_model_where_it_looks(self, hub: FakeHub, run: Run, tmp_path: Path) -> None:
        code, said = ended(run())
        assert code == 0, said
        assert content(tmp_path / "link" / REPOSITORY) == READ
        assert "secret" not in said
        assert ended(run())[0] == 0, "a restart of the container finds its link there"

    def test_another_pod_goes_on_where_a_killed_one_was(self, hub: FakeHub, run: Run, tmp_path: Path) -> None:
        hub.held.clear()
        killed = run()
        half = len(WEIGHTS) // 2
        wait_for(lambda: all(hub.sent[f"model-{number}.safetensors"] == half for number in (1, 2)))
        blobs = tmp_path / "claim/huggingface/hub/models--org--tiny/blobs"
        wait_for(lambda: sum(path.stat().st_size for path in blobs.glob("*.incomplete")) >= half)
        killed.kill()
        killed.wait()
        for part in blobs.glob("*.incomplete"):
            os.utime(part, (part.stat().st_mtime - cache.LEFT_S,) * 2)
        hub.held.set()
        code, said = ended(run(link="other"))
        assert code == 0, said
        assert content(tmp_path / "other" / REPOSITORY) == READ
        assert not (tmp_path / "link" / REPOSITORY).exists()
        assert hub.began["model-1.safetensors"] + hub.began["model-2.safetensors"] >= half

    def test_tells_how_far_it_is(self, hub: FakeHub, run: Run) -> None:
        hub.held.clear()
        port = free_port()
        process = run(port=port)
        total = sum(len(content) for content in READ.values())

        def told() -> Any:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/llamaserver/v1/download", timeout=5
                ) as answer:
                    return read_progress(answer.read())
            except OSError:
                return None

        wait_for(lambda: (found := told()) is not None and found.total == total and found.bytes > 0)
        assert told().moves
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
        hub.held.set()
        assert ended(process)[0] == 0

    def test_says_why_it_cannot_be_done(self, hub: FakeHub, run: Run) -> None:
        hub.stop()
        code, said = ended(run())
        death = cause_of_death(said)
        assert (code, death and death.reason) == (1, Reason.HUB_UNREACHABLE), said

    def test_ends_when_it_is_told_to(self, hub: FakeHub, run: Run) -> None:
        hub.held.clear()
        process = run()
        wait_for(lambda: hub.fetched["model-1.safetensors"] > 0)
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 143


@pytest.mark.skipif(not VLLM, reason="LLAMASERVER_VLLM_PYTHON does not name an environment with vLLM")
class TestLibrary:
    """What the huggingface_hub of the engine's environment makes of the cache."""

    def test_it_finds_what_was_written_and_asks_for_nothing_more(
        self, hub: FakeHub, download: Download, claim: Path
    ) -> None:
        snapshot = download().snapshot
        asked = sum(hub.fetched.values())
        found = library(
            claim,
            hub,
            """
            offline = h.snapshot_download("org/tiny", local_files_only=True)
            file = h.try_to_load_from_cache("org/tiny", "model-1.safetensors", revision="main")
            online = h.snapshot_download("org/tiny", allow_patterns=["*.safetensors", "*.json"])
            told = h.scan_cache_dir()
            repo = next(iter(told.repos))
            kept = [len(told.warnings), repo.size_on_disk, sorted(repo.refs)]
            print(json.dumps([offline, file, online, *kept]))
            """,
        )
        place, size = str(snapshot), sum(len(content) for content in READ.values())
        assert found == [place, f"{place}/model-1.safetensors", place, 0, size, ["main"]]
        assert sum(hub.fetched.values()) == asked

    def test_what_it_wrote_is_found_and_not_fetched_again(
        self, hub: FakeHub, download: Download, claim: Path
    ) -> None:
        path = library(claim, hub, 'print(json.dumps(h.hf_hub_download("org/tiny", "model-1.safetensors")))')
        plan = download()
        assert str(plan.snapshot / "model-1.safetensors") == path
        assert content(plan.snapshot) == READ
        assert hub.fetched["model-1.safetensors"] == 1


def library(claim: Path, hub: FakeHub, code: str) -> Any:
    """What code in vLLM's environment prints as JSON."""
    done = subprocess.run(
        [VLLM, "-W", "ignore", "-c", "import json, huggingface_hub as h\n" + textwrap.dedent(code)],
        env={"HF_HOME": str(claim / "huggingface"), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def wait_for(condition: Callable[[], Any]) -> None:
    """Within a time that only a fault can need."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
