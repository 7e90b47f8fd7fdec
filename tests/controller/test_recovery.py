"""A pod whose engine hangs is told, and evicted where the spec asks for it: once, and never by half.

First without a cluster, at the one step that decides and acts; then whole, against the real API server.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fakes import FakeEngine
from llamaserver.api import Status, effective, parse
from llamaserver.api.conditions import timestamp
from llamaserver.api.names import child_labels
from llamaserver.api.server import read_status
from llamaserver.api.status import RecoveryStatus
from llamaserver.cluster import AioKube, ApiError, NotLeadingError, UnavailableError
from llamaserver.cluster.kinds import DEPLOYMENT, POD, Object
from llamaserver.control import Cause, Decision, Diagnosis, Observed, StalledEngine, recovery, stalls
from llamaserver.controller import Operator, Options
from llamaserver.controller import recovery as shell
from llamaserver.controller.cache import Cache
from llamaserver.controller.diff import HASH_ANNOTATION
from llamaserver.controller.queue import Key
from llamaserver.controller.recovery import Recovery
from llamaserver.controller.runtime import Registry, Report
from llamaserver.telemetry import Metrics
from workbench import Cluster, condition, eventually, running, serving

KEY = Key("ns", "chat")
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


class Bench:
    """Two ready pods in a cache, of which one hangs. It is the Kube and the Recorder too."""

    def __init__(self, after: str | None = "5m") -> None:
        self.now = 1000.0
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.cache = Cache(lambda: self.now)
        self.refusal: ApiError | None = None
        self.asked = 0
        self.evicted: list[tuple[str, str]] = []
        self.told: list[tuple[str, str]] = []
        self.registry = Registry()
        self.recovery = Recovery(
            self,  # type: ignore[arg-type]
            self.cache,
            self.registry,
            self,  # type: ignore[arg-type]
            Metrics(),
            lambda: self.now,
            lambda: self.wall,
        )
        self.server = self.registry.obtain(KEY, "uid")
        self.server.wanted_mark, self.server.written = "mark", Status()
        self.spec(after)
        self.deployment()
        for name in ("a", "b"):
            self.pod(name)
        self.hangs("a")

    def spec(self, after: str | None, **more: Any) -> None:
        groups: Object = {} if after is None else {"recovery": {"replaceStalledAfter": after}}
        base = {"model": {"uri": "hf://org/model"}, "engine": {"image": "vllm/vllm-openai:v0.32.0"}}
        obj = {"apiVersion": "llamaserver.dev/v1alpha1", "kind": "LlamaServer", "metadata": {"name": "chat"}}
        self.server.spec = effective(parse({**obj, "spec": base | groups | more}).spec)

    def deployment(self, **status: int) -> None:
        counted = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), 2) | status
        metadata = {"namespace": "ns", "name": "chat", "labels": child_labels("chat")}
        metadata["annotations"] = {HASH_ANNOTATION: "mark"}  # type: ignore[assignment]
        self.cache.put(DEPLOYMENT, {"metadata": metadata, "spec": {"replicas": 2}, "status": counted})

    def pod(self, name: str, started: str | None = None, **metadata: str) -> None:
        named = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": child_labels("chat")}
        ready = [{"type": type_, "status": "True"} for type_ in ("PodScheduled", "Ready")]
        engine: Object = {"name": "vllm", "ready": True, "started": True, "restartCount": 0}
        if started is not None:
            engine["state"] = {"running": {"startedAt": started}}
        status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready, "containerStatuses": [engine]}
        self.cache.put(POD, {"metadata": named | metadata, "status": status})

    def hangs(self, *pods: str, witnessed: bool = True, moving: Collection[str] = ()) -> None:
        engines = tuple(
            StalledEngine(
                *(pod, f"uid-{pod}/0/boot", 400.0, 120.0, 200, 8, 0),
                silent=True,
                doubt=None,
                witnessed=witnessed,
            )
            for pod in pods
        )
        observed = Observed(None, None, None, 0, 0, None, None, None, None)
        diagnosis = Diagnosis(Cause.STALLED, "", "", {}, 0.0)
        decision = Decision(
            {}, None, None, "", observed, diagnosis, (), stalled=engines, moving=frozenset(moving)
        )
        self.server.newest = Report(self.now, self.now, decision, (), {}, {}, {}, False)

    def later(self, **time: float) -> None:
        passed = timedelta(**time)
        self.now += passed.total_seconds()
        self.wall += passed

    def replaced(self, pod: str, by: str) -> None:
        """The Deployment has done its part."""
        self.cache.drop(POD, "ns", pod)
        self.pod(by)

    def new_leader(self) -> None:
        """Another replica takes over: of this one nothing is left but what it wrote."""
        written = read_status(self.server.written.to_dict() if self.server.written else None)
        self.registry = Registry()
        self.recovery = replace(self.recovery, registry=self.registry)
        server = self.registry.obtain(KEY, "uid")
        server.spec, server.wanted_mark = self.server.spec, "mark"
        server.written, server.recovery = written, written.recovery
        server.decisions.extend(written.decisions or ())
        self.server = server

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        self.evicted.append((name, uid))

    def emit(self, about: Any, kind: Any, reason: str, message: str) -> bool:
        self.told.append((reason, message))
        return True

    async def look(self, *, written: bool = True, scaling: bool = False) -> float | None:
        """One look: decide, write status, act."""
        again = self.recovery.decide(self.server, scaling)
        if written:
            assert self.server.written is not None
            told = {"recovery": self.server.recovery, "decisions": tuple(self.server.decisions) or None}
            self.server.written = self.server.written.model_copy(update=told)
        await self.recovery.act(self.server)
        return again


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_the_pod_is_evicted_and_status_says_which_when_and_why(bench: Bench) -> None:
    assert await bench.look() is not None
    assert bench.evicted == [("a", "uid-a")]
    assert bench.server.recovery == RecoveryStatus(pod="a", time="2026-01-01T00:00:00Z", replacements=1)
    (entry,) = bench.server.decisions
    assert (entry.action, entry.pod) == ("Replacement", "a")
    assert "its core is silent for 400 s in 200 answers, with 8 requests running" in entry.reason


async def test_nothing_is_done_before_it_is_written_and_nothing_is_decided_twice(bench: Bench) -> None:
    await bench.look(written=False)
    assert bench.evicted == []
    await bench.look()
    assert bench.evicted == [("a", "uid-a")]
    assert len(bench.server.decisions) == 1
    assert bench.server.recovery is not None
    assert bench.server.recovery.replacements == 1


async def test_who_did_not_ask_gets_nothing(bench: Bench) -> None:
    bench.spec(None)
    assert await bench.look() is None
    assert (bench.evicted, bench.server.recovery) == ([], None)


async def test_a_suspended_server_is_left_alone(bench: Bench) -> None:
    bench.spec("5m", suspend=True)
    assert await bench.look() is None
    assert bench.evicted == []


async def test_figures_that_are_old_or_missing_are_no_evidence(bench: Bench) -> None:
    bench.now += 11
    assert await bench.look() is None
    bench.server.newest = None
    assert await bench.look() is None
    assert bench.evicted == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"updatedReplicas": 1}, "a rollout is under way"),
        ({"replicas": 3, "updatedReplicas": 3}, "the number of replicas is changing"),
        ({"readyReplicas": 1}, "1 of 2 replicas are ready"),
    ],
)
async def test_while_the_deployment_is_on_its_way_the_pod_stays_and_status_says_why(
    bench: Bench, change: dict[str, int], why: str
) -> None:
    bench.deployment(**change)
    assert await bench.look() is not None
    assert bench.evicted == []
    assert bench.server.recovery is not None
    assert why in (bench.server.recovery.reason or "")


async def test_while_a_scale_down_is_decided_the_pod_stays(bench: Bench) -> None:
    await bench.look(scaling=True)
    assert bench.evicted == []


async def test_while_a_pod_is_ending_the_other_stays(bench: Bench) -> None:
    bench.pod("c", deletionTimestamp="2026-01-01T00:00:00Z")
    await bench.look()
    assert bench.evicted == []


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_a_pod_that_has_ended_and_is_only_kept_to_be_looked_at_is_no_obstacle(
    bench: Bench, phase: str
) -> None:
    """As one that a kubelet evicted for want of disk, until somebody collects it."""
    labels = child_labels("chat")
    old = {"namespace": "ns", "name": "old", "uid": "uid-old", "labels": labels}
    bench.cache.put(POD, {"metadata": old, "status": {"phase": phase, "reason": "Evicted"}})
    await bench.look()
    assert bench.evicted == [("a", "uid-a")]


async def test_one_that_is_ending_already_is_not_evicted(bench: Bench) -> None:
    bench.pod("a", deletionTimestamp="2026-01-01T00:00:00Z")
    assert await bench.look() is None
    assert bench.evicted == []


@pytest.mark.parametrize(
    "refusal",
    [
        UnavailableError(429, "TooManyRequests", BUDGET),
        ApiError(403, "Forbidden", 'pods "a" is forbidden: cannot create resource "pods/eviction"'),
    ],
)
async def test_a_refusal_is_told_and_tried_again_without_another_pause(
    bench: Bench, refusal: ApiError
) -> None:
    bench.refusal = refusal
    assert await bench.look() == recovery.LOOK_AGAIN_S
    assert bench.server.recovery is not None
    assert refusal.message in (bench.server.recovery.reason or "")
    ((reason, message),) = bench.told
    assert reason == "ReplacementRefused"
    assert refusal.message in message
    # However often it is looked at, it is asked for now and then, and what is said stays.
    for _ in range(3):
        bench.later(seconds=2)
        assert (await bench.look() or 0.0) <= recovery.LOOK_AGAIN_S
        assert refusal.message in (bench.server.recovery.reason or "")
    assert bench.asked == 1
    bench.refusal = None
    bench.later(seconds=recovery.LOOK_AGAIN_S - 6)
    bench.hangs("a")
    await bench.look()
    assert bench.evicted == [("a", "uid-a")]
    assert bench.server.recovery == RecoveryStatus(pod="a", time="2026-01-01T00:00:20Z", replacements=1)
    assert len(bench.server.decisions) == 1


async def refused_for(bench: Bench, minutes: float) -> None:
    """A budget stands in the way for so long, and gives way at the last look."""
    bench.refusal = UnavailableError(429, "TooManyRequests", BUDGET)
    for _ in range(round(3 * minutes)):
        bench.hangs("a")
        await bench.look()
        assert bench.evicted == []
        bench.later(seconds=20)
    bench.refusal = None
    bench.hangs("a")
    await bench.look()
    assert bench.evicted == [("a", "uid-a")]
    assert len(bench.server.decisions) == 1


@pytest.mark.parametrize("leaders", [1, 2])
async def test_the_pause_counts_from_the_deed_and_not_from_the_decision(bench: Bench, leaders: int) -> None:
    await refused_for(bench, 30)
    if leaders > 1:
        # It ended right after the deed, and wrote nothing more.
        bench.new_leader()
    bench.replaced("a", by="c")
    bench.later(seconds=599)
    bench.hangs("b")
    await bench.look()
    assert len(bench.evicted) == 1
    assert bench.server.recovery is not None
    assert "10 minutes after the last" in (bench.server.recovery.reason or "")
    bench.later(seconds=1)
    bench.hangs("b")
    await bench.look()
    assert bench.evicted[1:] == [("b", "uid-b")]
    assert bench.server.recovery.replacements == 2


async def test_an_eviction_that_nobody_answered_may_have_been_done(bench: Bench) -> None:
    other = bench.registry.obtain(Key("elsewhere", "chat"), "uid-2")
    bench.refusal = UnavailableError(0, "Timeout", "no answer")
    await bench.look()
    assert bench.recovery._elsewhere_at(other) == bench.wall.timestamp()


async def test_a_budget_that_refuses_one_server_keeps_no_other_waiting_until_it_gives_way(
    bench: Bench,
) -> None:
    other = bench.registry.obtain(Key("elsewhere", "chat"), "uid-2")
    bench.refusal = UnavailableError(429, "TooManyRequests", BUDGET)
    for _ in range(9):
        bench.hangs("a")
        await bench.look()
        assert bench.recovery._elsewhere_at(other) == float("-inf")
        bench.later(seconds=20)
    # The other one has its turn; that the budget gives way just then does not make it two at once.
    other.recovery = RecoveryStatus(pod="x", time=timestamp(bench.wall), replacements=1)
    bench.refusal = None
    bench.later(seconds=119)
    bench.hangs("a")
    await bench.look()
    assert bench.evicted == []
    assert bench.server.recovery is not None
    assert "another LlamaServer" in (bench.server.recovery.reason or "")
    bench.later(seconds=1)
    bench.hangs("a")
    await bench.look()
    assert bench.evicted == [("a", "uid-a")]
    assert bench.recovery._elsewhere_at(other) == bench.wall.timestamp()


async def got_on_for(bench: Bench, hours: float) -> None:
    """What was decided was refused, the engine got on for so long, and hangs anew."""
    bench.refusal = UnavailableError(429, "TooManyRequests", BUDGET)
    await bench.look()
    bench.refusal = None
    bench.later(seconds=2)
    bench.hangs(moving=["a", "b"])
    await bench.look()
    bench.later(hours=hours)


@pytest.mark.parametrize("leaders", [1, 2])
async def test_a_pod_that_got_on_and_hangs_anew_is_decided_upon_anew(bench: Bench, leaders: int) -> None:
    await got_on_for(bench, 10)
    assert bench.server.recovery is not None
    assert (bench.server.recovery.pod, bench.server.recovery.reason) == (None, None)
    if leaders > 1:
        bench.new_leader()
    bench.hangs("a", witnessed=leaders == 1)
    await bench.look()
    assert bench.evicted == [("a", "uid-a")]
    assert [entry.time for entry in bench.server.decisions] == [
        "2026-01-01T10:00:02Z",
        "2026-01-01T00:00:00Z",
    ]
    assert bench.server.recovery == RecoveryStatus(pod="a", time="2026-01-01T10:00:02Z", replacements=2)
    counted = bench.recovery.metrics.decisions.labels("Replacement")._value.get()
    assert counted == 2


@pytest.mark.parametrize("leaders", [1, 2])
async def test_a_pod_that_got_on_and_soon_hangs_anew_has_its_pause(bench: Bench, leaders: int) -> None:
    await got_on_for(bench, 0.1)
    if leaders > 1:
        bench.new_leader()
    bench.hangs("a", witnessed=leaders == 1)
    await bench.look()
    assert bench.evicted == []
    assert bench.server.recovery is not None
    assert "10 minutes after the last" in (bench.server.recovery.reason or "")


async def test_that_it_got_on_between_two_looks_is_noticed_too(bench: Bench) -> None:
    bench.refusal = UnavailableError(429, "TooManyRequests", BUDGET)
    await bench.look()
    bench.refusal = None
    bench.later(seconds=401)
    bench.hangs("a")
    await bench.look()
    assert bench.evicted == []


async def test_a_container_that_was_started_since_is_another_case(bench: Bench) -> None:
    bench.refusal = UnavailableError(429, "TooManyRequests", BUDGET)
    await bench.look()
    bench.refusal = None
    bench.later(seconds=100)
    bench.pod("a", started="2026-01-01T00:01:00Z")
    bench.hangs("a", witnessed=False)
    await bench.look()
    assert bench.evicted == []
    bench.pod("a", started="2025-12-31T00:01:00Z")
    await bench.look()
    assert bench.evicted == [("a", "uid-a")]


async def test_a_pod_that_has_just_been_evicted_is_not_taken_for_spared(bench: Bench) -> None:
    """Its engine makes a last token before it is seen to end."""
    await bench.look()
    bench.hangs(moving=["a", "b"])
    await bench.look()
    assert bench.server.recovery == RecoveryStatus(pod="a", time="2026-01-01T00:00:00Z", replacements=1)


async def test_figures_of_a_prometheus_replace_no_pod_and_status_goes_on_saying_so(bench: Bench) -> None:
    bench.spec("5m", metrics={"source": "Prometheus"})
    said = set()
    for _ in range(8):
        # Scraped seldom, looked at more often.
        await bench.look()
        assert bench.server.recovery is not None
        said.add(bench.server.recovery.reason)
        bench.later(seconds=15)
    assert bench.evicted == []
    (reason,) = said
    assert "figures come from Prometheus" in reason
    bench.hangs()
    assert await bench.look() is None
    assert bench.server.recovery.reason is None


async def test_a_replica_that_cannot_prove_that_it_leads_evicts_nothing(bench: Bench) -> None:
    bench.refusal = NotLeadingError()
    with pytest.raises(NotLeadingError):
        await bench.look()


async def test_the_next_one_has_to_wait_also_for_a_new_operator(bench: Bench) -> None:
    await bench.look()
    bench.cache.drop(POD, "ns", "a")
    bench.pod("c")
    bench.server = replace(bench.server, recovery=copy.deepcopy(bench.server.recovery), replacing=None)
    bench.wall += timedelta(minutes=9)
    bench.hangs("c")
    await bench.look()
    assert len(bench.evicted) == 1
    assert bench.server.recovery is not None
    assert "10 minutes after the last" in (bench.server.recovery.reason or "")
    bench.wall += timedelta(minutes=1)
    await bench.look()
    assert bench.evicted[1:] == [("c", "uid-c")]
    assert bench.server.recovery.replacements == 2


async def test_pods_of_two_servers_do_not_go_at_once(bench: Bench) -> None:
    other = bench.registry.obtain(Key("elsewhere", "chat"), "uid-2")
    other.recovery = RecoveryStatus(pod="x", time="2026-01-01T00:00:00Z", replacements=1)
    bench.wall += timedelta(seconds=119)
    assert await bench.look() is not None
    assert bench.evicted == []
    assert bench.server.recovery is not None
    assert "another LlamaServer" in (bench.server.recovery.reason or "")
    bench.wall += timedelta(seconds=1)
    await bench.look()
    assert bench.evicted == [("a", "uid-a")]


async def test_when_it_gets_on_again_nothing_is_said_any_more(bench: Bench) -> None:
    bench.deployment(readyReplicas=1)
    await bench.look()
    bench.hangs()
    assert await bench.look() is None
    assert bench.server.recovery is not None
    assert bench.server.recovery.reason is None


# --- the whole operator -----------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds for minutes: an engine is told to hang after one, and 5m of the spec are three."""
    decide = recovery.replacement
    monkeypatch.setattr(stalls, "GRACE_S", 1.0)
    monkeypatch.setattr(stalls, "STEPS", 0.0)
    monkeypatch.setattr(shell, "replacement", lambda after_s, *rest: decide(after_s / 100, *rest))


async def two_pods(cluster: Cluster, engines: list[FakeEngine], **spec: Any) -> None:
    """A fleet of two that makes tokens."""
    for engine in engines[:2]:
        engine.running, engine.tokens_per_s = 4, 100.0
    await serving(cluster, engines[0], scaling={"mode": "Fixed"}, replicas=2, tuning={"mode": "Off"}, **spec)
    engines[1].public_keys = engines[0].public_keys
    await cluster.pod("chat-1", engines[1])
    await cluster.rolled_out()
    await eventually(lambda: engines[1].scrapes > 2)


def hang(engine: FakeEngine, *, silent: bool = False) -> None:
    """From now on it says the same for ever; `silent` if the core says nothing any more."""
    if silent:
        engine.fault = "silent"
        return
    said = engine.snapshot()
    engine.snapshot = lambda: copy.deepcopy(said) | {"monotonic_s": said["monotonic_s"]}  # type: ignore[method-assign]


async def allow(cluster: Cluster, disruptions: int) -> None:
    """Play the controller of disruption budgets."""
    budget = cluster.named("policy/v1", "PodDisruptionBudget", "chat")
    live = await eventually(lambda: cluster.get(budget))
    status = {
        "observedGeneration": live["metadata"]["generation"],
        "disruptionsAllowed": disruptions,
        "currentHealthy": 2,
        "desiredHealthy": 1,
        "expectedPods": 2,
        "disruptedPods": None,
    }
    await cluster.merge(budget, {"status": status}, "status")


async def pods(cluster: Cluster) -> list[str]:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    answer = await asyncio.to_thread(cluster.api.request, "GET", path)
    alive = [pod["metadata"] for pod in answer.body["items"] if "deletionTimestamp" not in pod["metadata"]]
    return sorted(metadata["name"] for metadata in alive)


async def told(cluster: Cluster) -> Object:
    found: Object = ((await cluster.get(cluster.server())) or {}).get("status") or {}
    return found


@pytest.mark.parametrize("silent", [True, False], ids=["a silent core", "a core that makes no step"])
@pytest.mark.usefixtures("impatient")
async def test_a_hung_engine_is_told_evicted_once_and_its_successor_is_left_alone(
    cluster: Cluster, operator: Operator, engines: list[FakeEngine], silent: bool
) -> None:
    await two_pods(cluster, engines, recovery={"replaceStalledAfter": "5m"})
    await allow(cluster, 1)
    hang(engines[1], silent=silent)
    await eventually(lambda: pods(cluster), lambda names: names == ["chat-0"])
    status = await eventually(lambda: told(cluster), lambda it: condition({"status": it}, "Stalled") != {})
    assert (status["recovery"]["pod"], status["recovery"]["replacements"]) == ("chat-1", 1)
    (decision,) = [one for one in status["decisions"] if one["action"] == "Replacement"]
    assert "4 requests running" in decision["reason"]
    (event,) = await eventually(lambda: cluster.events("Replacement"))
    assert event["message"].startswith(
        "pod chat-1 is evicted, for another to take its place: the engine hangs"
    )
    await eventually(lambda: cluster.events("EngineStalled"))
    # Kubernetes makes another, and every engine hangs: no second one goes for ten minutes.
    engines[2].running, engines[2].tokens_per_s, engines[2].public_keys = 4, 100.0, engines[0].public_keys
    await cluster.pod("chat-2", engines[2])
    await cluster.rolled_out()
    await eventually(lambda: engines[2].scrapes > 2)
    hang(engines[2], silent=silent)
    await eventually(
        lambda: told(cluster), lambda it: "10 minutes after the last" in it["recovery"].get("reason", "")
    )
    assert await pods(cluster) == ["chat-0", "chat-2"]
    assert len(await cluster.events("Replacement")) == 1


@pytest.mark.usefixtures("impatient")
async def test_without_being_asked_a_hung_engine_is_only_told(
    cluster: Cluster, operator: Operator, engines: list[FakeEngine]
) -> None:
    await two_pods(cluster, engines)
    await allow(cluster, 1)
    hang(engines[1], silent=True)
    await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: condition(it, "Stalled").get("reason") == "EngineStalled",
    )
    server = operator.registry.get(Key(cluster.namespace, "chat"))
    await eventually(lambda: bool(server and server.newest and server.newest.decision.stalled))
    assert await pods(cluster) == ["chat-0", "chat-1"]
    assert "recovery" not in await told(cluster)


@pytest.mark.usefixtures("impatient")
async def test_a_disruption_budget_has_the_last_word(
    cluster: Cluster, operator: Operator, engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "LOOK_AGAIN_S", 0.5)
    await two_pods(cluster, engines, recovery={"replaceStalledAfter": "5m"})
    await allow(cluster, 0)
    hang(engines[1], silent=True)
    (event, *_) = await eventually(lambda: cluster.events("ReplacementRefused"))
    assert "disruption budget" in event["message"]
    assert await pods(cluster) == ["chat-0", "chat-1"]
    await allow(cluster, 1)
    await eventually(lambda: pods(cluster), lambda names: names == ["chat-0"])
    assert (await told(cluster))["recovery"]["replacements"] == 1


@pytest.mark.usefixtures("impatient")
async def test_an_operator_killed_between_word_and_deed_is_followed_by_one_that_ends_it(
    cluster: Cluster, options: Options, engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def last_deed(*_: object) -> None:
        await asyncio.sleep(3600)

    with monkeypatch.context() as patch:
        patch.setattr(AioKube, "evict", last_deed)
        async with running(options):
            await two_pods(cluster, engines, recovery={"replaceStalledAfter": "5m"})
            await allow(cluster, 1)
            hang(engines[1], silent=False)
            before = await eventually(lambda: told(cluster), lambda it: "pod" in it.get("recovery", {}))
    assert await pods(cluster) == ["chat-0", "chat-1"]
    async with running(options):
        await eventually(lambda: pods(cluster), lambda names: names == ["chat-0"])
        after = await told(cluster)
        kept = ("pod", "replacements")
        assert [after["recovery"][name] for name in kept] == [before["recovery"][name] for name in kept]
        assert after["decisions"] == before["decisions"]


@pytest.mark.usefixtures("impatient")
async def test_an_operator_that_starts_in_front_of_a_silent_core_tells_it_and_does_nothing(
    cluster: Cluster, options: Options, engines: list[FakeEngine]
) -> None:
    async with running(options):
        await two_pods(cluster, engines, recovery={"replaceStalledAfter": "5m"})
        await allow(cluster, 1)
    hang(engines[1], silent=True)
    async with running(options):
        scrapes = engines[1].scrapes
        status = await eventually(lambda: told(cluster), lambda it: "reason" in it.get("recovery", {}))
        assert "never heard to have a request in hand" in status["recovery"]["reason"]
        assert condition({"status": status}, "Stalled")["reason"] == "EngineStalled"
        await eventually(lambda: engines[1].scrapes - scrapes > 20)
        assert await pods(cluster) == ["chat-0", "chat-1"]
