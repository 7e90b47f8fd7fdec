"""The snapshot and the outcome of a change, as a client sees them, with engines that behave and engines
that do not."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from llamaserver_tuner import signing
from llamaserver_tuner.access import Reading, UnansweredError
from llamaserver_tuner.service import REFRESH_S, Identity, TunerService
from llamaserver_tuner.setpoints import BUDGET, CAP, Limits, Refusal, Setpoints, parse_change
from llamaserver_tuner.totals import Collected

POD = "pod-a"
LIMITS = Limits(32, 2048, 32, 2048, 1, 0, {CAP: "", BUDGET: ""})


class Engines:
    """Stands for the engine cores: real setpoints, no scheduler."""

    def __init__(self, count: int = 1, limits: Limits = LIMITS) -> None:
        self.setpoints = [Setpoints(limits) for _ in range(count)]
        self.silence: UnansweredError | None = None
        self.failed = ""
        self.reads = 0
        self.age_s = 0.0

    async def read(self) -> Reading:
        self.reads += 1
        if self.silence:
            raise self.silence
        return Reading([self._state(index) for index in range(len(self.setpoints))], self.age_s)

    async def apply(self, body: str, not_after: float) -> list[dict[str, Any]]:
        if self.silence:
            raise self.silence
        change = parse_change(body)
        assert not isinstance(change, Refusal)
        assert not_after > time.time()
        answers = []
        for index, setpoints in enumerate(self.setpoints):
            refusal = setpoints.put(change, 0.0)
            state = self._state(index)
            answers.append(state if refusal is None else {**state, "error": refusal.to_json()})
        return answers

    def _state(self, index: int) -> dict[str, Any]:
        setpoints = self.setpoints[index]
        return {
            "engine": index,
            "max_num_seqs": LIMITS.max_num_seqs,
            CAP: setpoints.cap,
            BUDGET: setpoints.budget,
            "wanted": {CAP: setpoints.cap, BUDGET: setpoints.budget},
            "live": dict(setpoints.limits.live),
            "generation": setpoints.generation,
            "retunes": {"applied": setpoints.applied, "expired": setpoints.expired, "rejected": 0},
            "arrived": 5,
            "failed": self.failed,
        }


class Metrics:
    def __init__(self) -> None:
        self.results: list[str] = []
        self.observed = 0

    def observe(self, engines: list[dict[str, Any]]) -> None:
        self.observed += 1

    def count(self, result: str) -> None:
        self.results.append(result)


class Pod:
    """A service with a signer for it."""

    def __init__(self, folder: Path, engines: Engines, uid: str = POD, api_servers: int = 1) -> None:
        self.key = Ed25519PrivateKey.generate()
        pem = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (folder / "k1.pem").write_bytes(pem)
        self.engines, self.metrics, self.collected = engines, Metrics(), Collected()
        self.collected.start(list(range(len(engines.setpoints))))
        self.now = 50.0
        self.service = TunerService(
            Identity(uid, "boot", "0.32.0", api_servers),
            engines,  # type: ignore[arg-type]
            signing.KeyRing(folder),
            self.collected,
            self.metrics,  # type: ignore[arg-type]
            clock=lambda: self.now,
        )

    async def put(self, generation: int = 1, **changes: Any) -> tuple[int, dict[str, Any]]:
        claims = changes.pop("claims", {})
        data = {CAP: 8, BUDGET: None, "generation": generation, "lease_seconds": 60, **changes}
        body = json.dumps(data).encode()
        now = int(time.time())
        payload = {"iss": signing.ISSUER, "aud": POD, "iat": now, "exp": now + 30, "gen": generation}
        payload |= {"boot": "boot", "sha256": hashlib.sha256(body).hexdigest(), **claims}
        token = jwt.encode(payload, self.key, algorithm="EdDSA", headers={"kid": "k1"})
        return await self.service.put(f"Bearer {token}", body)


async def test_a_healthy_snapshot(tmp_path: Path) -> None:
    got = await Pod(tmp_path, Engines()).service.snapshot()
    assert (got["schema"], got["vllm"], got["pod_uid"], got["boot_id"]) == (1, "0.32.0", POD, "boot")
    assert (got["writable"], got["reason"], got["message"]) == (True, "", "")
    assert (got["engines"][0][CAP], got["monotonic_s"], got["api_servers"]) == (32, 50.0, 1)
    assert got["requests"]["0"]["arrived"] == 5
    json.dumps(got)


async def test_an_aged_reading_says_its_age(tmp_path: Path) -> None:
    pod = Pod(tmp_path, Engines())
    assert (await pod.service.snapshot())["age_s"] == 0.0
    pod.engines.age_s = 2.5
    got = await pod.service.snapshot()
    assert (got["age_s"], got["writable"], len(got["engines"])) == (2.5, True, 1)
    pod.engines.silence = UnansweredError("EngineUnreachable", "no answer")
    assert (await pod.service.snapshot())["age_s"] is None


async def test_a_change_is_applied_and_read_back_from_every_engine(tmp_path: Path) -> None:
    pod = Pod(tmp_path, Engines(2))
    status, reply = await pod.put(**{CAP: 8, BUDGET: 256})
    assert status == 200
    assert [(e[CAP], e[BUDGET], e["generation"]) for e in reply["engines"]] == [(8, 256, 1)] * 2
    assert reply["differs"] == []
    assert pod.metrics.results == ["applied"]


@pytest.mark.parametrize(
    ("changes", "status", "reason", "field"),
    [
        ({CAP: 33}, 400, "OutOfBounds", CAP),
        ({BUDGET: 1}, 400, "OutOfBounds", BUDGET),
        ({"lease_seconds": 1}, 400, "OutOfBounds", "lease_seconds"),
        ({CAP: "8"}, 400, "InvalidBody", CAP),
        ({"extra": 1}, 400, "InvalidBody", "extra"),
        ({"generation": 0}, 409, "StaleGeneration", "generation"),
        ({"claims": {"aud": "pod-b"}}, 401, "WrongAudience", "Authorization"),
        ({"claims": {"boot": "the one before"}}, 401, "WrongBoot", "Authorization"),
        ({"claims": {"gen": 9}}, 401, "BodyMismatch", "generation"),
    ],
)
async def test_a_change_that_is_refused_changes_nothing(
    tmp_path: Path, changes: dict[str, Any], status: int, reason: str, field: str
) -> None:
    pod = Pod(tmp_path, Engines())
    got_status, reply = await pod.put(**{"generation": 1, **changes})
    assert (got_status, reply["error"]["reason"], reply["error"]["field"]) == (status, reason, field)
    assert reply["error"]["message"]
    assert (pod.engines.setpoints[0].cap, pod.engines.setpoints[0].generation) == (32, 0)
    assert pod.metrics.results == ["unauthorized" if status == 401 else "rejected"]


async def test_without_a_token(tmp_path: Path) -> None:
    status, reply = await Pod(tmp_path, Engines()).service.put(None, b"{}")
    assert (status, reply["error"]["reason"]) == (401, "MissingToken")


async def test_engines_apart_by_one_generation_are_brought_together_by_a_retry(tmp_path: Path) -> None:
    """One engine took a change that the other did not hear of: the refusal names the generation to go
    beyond."""
    pod = Pod(tmp_path, Engines(2))
    assert pod.engines.setpoints[1].put(parse_change_of(5), 0.0) is None
    status, reply = await pod.put(generation=3)
    assert (status, reply["error"]["reason"], reply["error"]["generation"]) == (409, "StaleGeneration", 5)
    assert [engine["generation"] for engine in reply["engines"]] == [3, 5]
    status, reply = await pod.put(generation=6)
    assert (status, reply["differs"]) == (200, [])


def parse_change_of(generation: int) -> Any:
    return parse_change(
        json.dumps({CAP: 4, BUDGET: None, "generation": generation, "lease_seconds": 60}).encode()
    )


@pytest.mark.parametrize(
    ("silence", "status", "reason"),
    [
        ("EngineTimeout", 504, "EngineTimeout"),
        ("EngineDead", 503, "EngineDead"),
        ("ShuttingDown", 503, "NotWritable"),
        ("EnginePluginMissing", 503, "NotWritable"),
    ],
)
async def test_engines_that_do_not_answer_a_change(
    tmp_path: Path, silence: str, status: int, reason: str
) -> None:
    pod = Pod(tmp_path, Engines())
    pod.engines.silence = UnansweredError(silence, "because")
    got, reply = await pod.put()
    assert (got, reply["error"]["reason"]) == (status, reason)
    assert pod.metrics.results == ["failed"]


async def test_an_unreachable_engine_leaves_the_rest_of_the_snapshot(tmp_path: Path) -> None:
    pod = Pod(tmp_path, Engines())
    pod.engines.silence = UnansweredError("EngineUnreachable", "no answer")
    got = await pod.service.snapshot()
    assert (got["writable"], got["reason"], got["engines"]) == (False, "EngineUnreachable", None)
    assert got["requests"]["0"]["itl"]["count"] == 0
    # Arrivals are counted in the engine: unknown is not zero.
    assert got["requests"]["0"]["arrived"] is None


@pytest.mark.parametrize("change", ["uid", "library", "keys", "live", "failed"])
async def test_why_nothing_can_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    limits = Limits(32, 2048, 32, 2048, 1, 0, {CAP: "CustomScheduler", BUDGET: "CustomScheduler"})
    engines = Engines(limits=limits) if change == "live" else Engines()
    pod = Pod(tmp_path, engines, uid="" if change == "uid" else POD)
    if change == "library":
        monkeypatch.setattr(signing, "HAS_LIBRARY", False)
    if change == "keys":
        (tmp_path / "k1.pem").unlink()
    if change == "failed":
        engines.failed = "ValueError: boom"
    reasons = {
        "uid": "NoPodUid",
        "library": "NoSigningLibrary",
        "keys": "NoPublicKeys",
        "live": "NoLiveCap",
        "failed": "TunerFailed",
    }
    got = await pod.service.snapshot()
    assert (got["writable"], got["reason"]) == (False, reasons[change])
    assert got["message"]
    assert got["engines"] is not None
    if change in ("uid", "library", "keys"):
        status, reply = await pod.put()
        assert (status, reply["error"]["reason"]) == (503, "NotWritable")
        assert reasons[change] in reply["error"]["message"]


async def test_with_several_api_servers_the_requests_are_left_to_the_metrics(tmp_path: Path) -> None:
    pod = Pod(tmp_path, Engines(), api_servers=2)
    got = await pod.service.snapshot()
    assert (got["requests"], got["requests_reason"]) == (None, "SeveralApiServers")
    assert (got["writable"], got["engines"][0]["arrived"]) == (True, 5)
    assert (await pod.put())[0] == 200


async def test_request_figures_that_stopped_are_not_shown_as_still(tmp_path: Path) -> None:
    pod = Pod(tmp_path, Engines(2))
    del pod.collected.engines[1]
    got = await pod.service.snapshot()
    assert (got["requests"], got["requests_reason"]) == (None, "StatLoggerLost")
    pod = Pod(tmp_path, Engines())
    with pytest.raises(AttributeError):
        pod.collected.add(0, SimpleNamespace())
    got = await pod.service.snapshot()
    assert (got["requests"], got["requests_reason"]) == (None, "StatisticsChanged")


async def test_the_gauges_are_refreshed_when_nobody_asks(tmp_path: Path) -> None:
    pod = Pod(tmp_path, Engines())
    await pod.service.refresh()
    assert pod.engines.reads == 0
    pod.now += REFRESH_S
    await pod.service.refresh()
    assert (pod.engines.reads, pod.metrics.observed) == (1, 1)
    pod.now += REFRESH_S
    pod.engines.silence = UnansweredError("EngineUnreachable", "no answer")
    await pod.service.refresh()
    assert pod.metrics.observed == 1
