"""What the fast loop keeps and lets through, without engines."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import FakeEngine
from llamaserver.api import Duration, effective, parse
from llamaserver.api.enums import ScalingMode
from llamaserver.api.names import child_labels
from llamaserver.cluster.kinds import DEPLOYMENT, POD
from llamaserver.control import Cause, Decision, Diagnosis, Fleet, Observed, Setpoint, Verdict
from llamaserver.controller import Operator, pods, retune
from llamaserver.controller.cache import Cache
from llamaserver.controller.mandate import Mandate
from llamaserver.controller.queue import Key
from llamaserver.controller.report import Outcome, word
from llamaserver.controller.retune import InForce
from llamaserver.controller.runtime import Server
from llamaserver.controller.tick import Ticker, limits
from llamaserver.engine import Applied, Refused, Unreachable
from llamaserver.engine.client import EngineInForce
from llamaserver.observe import Failure, Unusable
from llamaserver.telemetry import Metrics
from workbench import Cluster, eventually, serving

KEY = Key("ns", "chat")


class Engines:
    """None of them answers."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    async def scrape(self, target: Any, deadline_s: float) -> Failure:
        return Failure(0.0, Unusable.UNREACHABLE, "no answer")

    def forget(self, pod: str) -> None:
        self.forgotten.append(pod)


@pytest.fixture
def made() -> tuple[Ticker, Cache, Engines, Server]:
    cache, engines = Cache(lambda: 0.0), Engines()
    ticker = Ticker(
        cache=cache,
        engines=engines,  # type: ignore[arg-type]
        mandate=Mandate(lambda: True, lambda: True),
        queue=SimpleNamespace(add=lambda *_, **__: None),  # type: ignore[arg-type]
        metrics=Metrics(),
        monotonic=lambda: 10.0,
        wall=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )
    server = Server(KEY, "uid")
    spec = {"model": {"uri": "hf://org/model"}, "engine": {"image": "vllm/vllm-openai:v0.32.0"}}
    metadata = {"namespace": "ns", "name": "chat"}
    server.spec = effective(
        parse(
            {
                "apiVersion": "llamaserver.dev/v1alpha1",
                "kind": "LlamaServer",
                "metadata": metadata,
                "spec": spec,
            }
        ).spec
    )
    for name in ("chat-0", "chat-1"):
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}
        labels = child_labels("chat")
        pod = {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1", "labels": labels}
        cache.put(POD, {"metadata": pod, "status": status})
    return ticker, cache, engines, server


async def test_a_pod_that_never_answered_is_forgotten_with_the_others(
    made: tuple[Ticker, Cache, Engines, Server],
) -> None:
    ticker, cache, engines, server = made
    await ticker.tick(server)
    assert engines.forgotten == []
    cache.drop(POD, "ns", "chat-0")
    await ticker.tick(server)
    assert engines.forgotten == ["chat-0"]
    ticker.stop(KEY)
    assert engines.forgotten == ["chat-0", "chat-1"]


async def test_a_pod_of_the_same_name_in_another_namespace_is_not_forgotten_with_it(
    made: tuple[Ticker, Cache, Engines, Server],
) -> None:
    ticker, cache, engines, server = made
    twin = Server(Key("other", "chat"), "uid-2")
    twin.spec = server.spec
    for one in list(cache.pods(KEY)):
        metadata = {**one["metadata"], "namespace": "other", "uid": f"other-{one['metadata']['name']}"}
        cache.put(POD, {**one, "metadata": metadata})
    await ticker.tick(server)
    await ticker.tick(twin)
    for namespace in ("ns", "other"):
        ticker._mandate.claims.add(Key(namespace, "chat-0"))
    cache.drop(POD, "ns", "chat-0")
    await ticker.tick(server)
    await ticker.tick(twin)
    assert engines.forgotten == ["chat-0"]
    assert ticker._mandate.claims == {Key("other", "chat-0")}


async def test_a_pod_that_is_ending_is_counted_nowhere(
    made: tuple[Ticker, Cache, Engines, Server],
) -> None:
    ticker, cache, _, server = made
    await ticker.tick(server)
    assert server.report is not None
    assert sorted(server.report.silent) == ["chat-0", "chat-1"]
    (ending,) = (obj for obj in cache.pods(KEY) if obj["metadata"]["name"] == "chat-1")
    now = {"deletionTimestamp": "2026-01-01T00:01:00Z", "resourceVersion": "2"}
    cache.put(POD, {**ending, "metadata": {**ending["metadata"], **now}})
    cache.put(DEPLOYMENT, _deployment(replicas=1))
    await ticker.tick(server)
    assert list(server.report.silent) == ["chat-0"]
    fleet = ticker._fleet(server, [pods.read(obj) for obj in cache.pods(KEY)])
    assert (fleet.replicas, fleet.ready, fleet.pending) == (1, 1, 0)


async def test_what_was_measured_is_of_the_pods_of_this_spec(
    made: tuple[Ticker, Cache, Engines, Server],
) -> None:
    """Another model is started from another digest, for restarts; another bound of the cap is not."""
    _, _, _, server = made
    assert server.spec is not None
    assert limits(server.spec, Fleet(1, 1, 0)).rolling == server.spec.rolling != ""


@pytest.mark.parametrize(
    ("status", "settled"),
    [
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}, True),
        ({"replicas": 2, "updatedReplicas": 1, "readyReplicas": 2}, False),
        ({"replicas": 3, "updatedReplicas": 3, "readyReplicas": 2}, False),
        ({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1}, False),
    ],
)
def test_a_fleet_is_settled_once_its_rollout_is_done(
    status: dict[str, int], settled: bool, made: tuple[Ticker, Cache, Engines, Server]
) -> None:
    ticker, cache, _, server = made
    assert server.spec is not None
    server.spec = replace(server.spec, restart_min_interval=Duration("1h"))
    for obj in list(cache.pods(KEY)):
        engine = {"name": "vllm", "ready": True, "started": True, "restartCount": 0}
        cache.put(POD, {**obj, "status": obj["status"] | {"containerStatuses": [engine]}})
    cache.put(DEPLOYMENT, _deployment(replicas=2) | {"status": status})
    assert ticker._fleet(server, [pods.read(obj) for obj in cache.pods(KEY)]).settled is settled


def _deployment(replicas: int) -> Any:
    metadata = {"namespace": "ns", "name": "chat", "uid": "d", "labels": child_labels("chat")}
    return {"metadata": metadata, "spec": {"replicas": replicas}}


async def test_a_report_bears_the_generation_that_was_decided_by(
    made: tuple[Ticker, Cache, Engines, Server],
) -> None:
    ticker, _, _, server = made
    server.generation = 7
    await ticker.tick(server)
    assert server.report is not None
    assert server.report.generation == 7


def decided(replicas: int | None, recommended: int | None) -> Decision:
    observed = Observed(None, None, None, 0, 0, None, None, None, None)
    diagnosis = Diagnosis(Cause.AT_CAPACITY, "full", "", {}, 0.0)
    return Decision({}, replicas, recommended, "every replica is full", observed, diagnosis, ())


def note(ticker: Ticker, server: Server, decision: Decision, mode: ScalingMode, present: int) -> None:
    assert server.spec is not None
    spec = replace(server.spec, scaling_mode=mode)
    ticker._notes.replicas(server, spec, decision, Fleet(present, present, 0))


def test_what_runs_already_is_no_decision(made: tuple[Ticker, Cache, Engines, Server]) -> None:
    ticker, _, _, server = made
    note(ticker, server, decided(3, 3), ScalingMode.AUTO, present=3)
    assert server.decided_replicas is None
    note(ticker, server, decided(4, 4), ScalingMode.AUTO, present=3)
    note(ticker, server, decided(4, 4), ScalingMode.AUTO, present=3)
    assert server.decided_replicas == 4
    assert [(one.from_, one.to) for one in server.decisions] == [("3", "4")]


def test_a_recommended_number_is_written_down_once_and_not_decided(
    made: tuple[Ticker, Cache, Engines, Server],
) -> None:
    ticker, _, _, server = made
    for _ in range(3):
        note(ticker, server, decided(None, 5), ScalingMode.RECOMMEND, present=3)
    assert server.decided_replicas is None
    (entry,) = server.decisions
    assert (entry.from_, entry.to) == ("3", "5")
    assert entry.reason.startswith("recommended: ")


def test_a_reason_that_no_tuner_gives_becomes_no_label() -> None:
    assert word(Refused(401, "UnknownKey", "")) == "UnknownKey"
    assert word(Refused(400, "Reason-of-my-own-1234", "")) == "Other"
    assert word(Unreachable("gone")) == "Unreachable"


async def test_a_hostile_reason_reaches_neither_status_nor_metrics(
    cluster: Cluster, operator: Operator, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serving(cluster, engine)
    honest = engine.snapshot
    monkeypatch.setattr(engine, "snapshot", lambda: honest() | {"writable": False, "reason": "EvilWord"})
    seen = await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: it["status"].get("tuning", {}).get("pods", [{}])[0].get("state") == "Other",
    )
    assert seen["status"]["tuning"]["actuator"] == "Unavailable"
    assert "Evil" not in operator.metrics.exposition().decode()


def changed(answer: Applied | Refused | Unreachable, renewal: bool = False) -> Outcome:
    change = retune.Change("chat-0", Setpoint(48), 2, InForce(64, None), renewal)
    return Outcome(change, answer)


def write_down(ticker: Ticker, server: Server, *outcomes: Outcome) -> list[str | None]:
    assert server.spec is not None
    samples: Any = {outcome.change.pod: None for outcome in outcomes}
    ticker._notes.retunes(server, server.spec, decided(None, None), list(outcomes), samples)
    return [entry.outcome for entry in server.decisions]


def test_a_refusal_is_written_down_once_for_each_reason(
    made: tuple[Ticker, Cache, Engines, Server],
) -> None:
    ticker, _, _, server = made
    bounds, key = Refused(400, "OutOfBounds", "at most 32"), Refused(401, "UnknownKey", "")
    for _ in range(3):
        told = write_down(ticker, server, changed(bounds))
    assert told == ["Refused: OutOfBounds: at most 32"]
    (entry,) = server.decisions
    assert (entry.from_, entry.to) == ("64", "48")
    assert write_down(ticker, server, changed(key))[0] == "Refused: UnknownKey"
    for now in (bounds, key, bounds):
        assert len(write_down(ticker, server, changed(now))) == 2, "it is told already"
    assert len(write_down(ticker, server, changed(key, renewal=True), changed(Unreachable("gone")))) == 2
    write_down(ticker, server, changed(Applied(3, (EngineInForce(0, 48, None),), agreed=True)))
    assert write_down(ticker, server, changed(key))[:2] == ["Refused: UnknownKey", "Applied"]
    assert [one.entry.outcome for one in server.followed] == ["Applied"]
    assert server.followed[0].entry.evidence == {"running": "0", "waiting": "0"}


def test_what_a_pod_refused_is_forgotten_with_it(made: tuple[Ticker, Cache, Engines, Server]) -> None:
    ticker, _, _, server = made
    write_down(ticker, server, changed(Refused(401, "UnknownKey", "")))
    assert set(server.refused) == {"chat-0"}
    assert server.spec is not None
    silent = replace(decided(None, None), setpoints={"chat-0": Setpoint(48)})
    ticker._notes.retunes(server, server.spec, silent, [], {})
    assert set(server.refused) == {"chat-0"}, "it did not answer this time"
    write_down(ticker, server)
    assert server.refused == {}


def test_a_decision_tells_the_figures_that_it_was_decided_by(
    made: tuple[Ticker, Cache, Engines, Server],
) -> None:
    ticker, _, _, server = made
    figures = {"needed": 4, "arrivals_per_s": 2.5}
    verdict = Verdict("Replicas", True, "every replica is full", figures)
    decision = replace(decided(4, 4), trail=(verdict,))
    note(ticker, server, decision, ScalingMode.AUTO, present=3)
    (entry,) = server.decisions
    assert entry.evidence == {"running": "0", "waiting": "0", "needed": "4", "arrivals_per_s": "2.5"}
    assert entry.outcome == "Asked"
