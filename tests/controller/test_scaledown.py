"""A scale-down marks the pods that are to go and leaves no mark behind; neither refusals nor silence stop it.

First without a cluster, at the one step that marks; then whole, against the real API server, with the test in
the place of Kubernetes' controllers.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fakes import FakeEngine
from llamaserver.api.effective import effective
from llamaserver.api.names import child_labels
from llamaserver.api.podtemplate import DELETION_COST
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.cluster import ApiError, ConflictError, NotFoundError, NotLeadingError, UnavailableError
from llamaserver.cluster.kinds import DEPLOYMENT, POD, SCALE_DOWN_MANAGER, Object
from llamaserver.control import Cause, Decision, Diagnosis, Observed
from llamaserver.controller import Operator, Options
from llamaserver.controller.cache import Cache
from llamaserver.controller.diff import HASH_ANNOTATION, digest
from llamaserver.controller.queue import Key
from llamaserver.controller.runtime import PodReport, Report, Server
from llamaserver.controller.scaledown import PATIENCE_S, ScaleDown
from workbench import Cluster, eventually, running, serving

KEY = Key("ns", "chat")
SPEC: Object = {"model": {"uri": "hf://org/model"}, "engine": {"image": "vllm/vllm-openai:v0.32.0"}}


def templated(image: str) -> Object:
    """A Deployment whose pods run this image, as it is applied."""
    pod = {"containers": [{"name": "vllm", "image": image}]}
    return {"metadata": {"name": "chat"}, "spec": {"template": {"spec": pod}}}


class Bench:
    """Pods in a cache, the API server that keeps them, and a clock. It is the Kube and the Recorder too."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.cache = Cache(lambda: self.now)
        self.server = Server(KEY, "uid")
        self.pods: dict[str, Object] = {}
        self.refusal: ApiError | None = None
        self.writes: list[str] = []
        self.told: list[str] = []
        self.version = 0
        self.made_from = "mark"
        self.live = templated("v1")
        self.wanted = templated("v1")
        self.down = ScaleDown(self, self.cache, self, lambda: self.now)  # type: ignore[arg-type]

    def pod(self, name: str, load: tuple[int, int] | None, **status: Any) -> None:
        """A ready pod, unless `status` says otherwise; `load` is what runs and what waits."""
        conditions = [{"type": type_, "status": "True"} for type_ in ("PodScheduled", "Ready")]
        metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": child_labels("chat")}
        self._keep({"metadata": metadata, "status": {"phase": "Running", "conditions": conditions, **status}})
        if load is not None:
            found = PodReport(name, 64, 2048, 64, *load, "InForce")
            pods = self.server.newest.pods if self.server.newest else ()
            self.report(*pods, found)

    def report(self, *pods: PodReport, every_s: float | None = None) -> None:
        observed = Observed(None, None, None, 0, 0, None, None, None, None)
        diagnosis = Diagnosis(Cause.HEALTHY, "", "", {}, 0.0)
        decision = Decision({}, None, None, "", observed, diagnosis, ())
        self.server.newest = Report(self.now, self.now, decision, pods, {}, {}, {}, False, every_s=every_s)

    def end(self, name: str) -> None:
        """The pod is asked to end, and the watch has told."""
        self.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._keep(self.pods[name])

    def gone(self, name: str) -> None:
        """The pod is gone, and the watch has not told yet."""
        del self.pods[name]

    def _keep(self, obj: Object) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.pods[obj["metadata"]["name"]] = obj
        self.cache.put(POD, copy.deepcopy(obj))

    async def apply(self, obj: Object, *, manager: str, force: bool = True) -> Object:
        """Server-side apply of annotations, for the one manager there is."""
        assert manager == SCALE_DOWN_MANAGER
        name = obj["metadata"]["name"]
        self.writes.append(name)
        if self.refusal is not None:
            raise self.refusal
        if name not in self.pods:
            raise ConflictError(409, "Conflict", "uid mismatch: no existing object was found")
        live = self.pods[name]["metadata"]
        wanted = obj["metadata"].get("annotations", {})
        live["annotations"] = wanted
        live["managedFields"] = [{"manager": manager, "operation": "Apply"}] if wanted else []
        self.version += 1
        live["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.pods[name])

    def deployed(self, replicas: int, updated: int, generation: int = 0, **rollout: int) -> None:
        """The Deployment as the watches tell of it, with the rollout bounds of its LlamaServer."""
        self.server.spec = effective(LlamaServerSpec.model_validate({**SPEC, "rollout": rollout}))
        self.server.wanted_mark = "mark"
        self.version += 1
        metadata: Object = {"namespace": "ns", "name": "chat", "uid": "uid-d", "labels": child_labels("chat")}
        metadata |= {"resourceVersion": str(self.version), "annotations": {HASH_ANNOTATION: self.made_from}}
        metadata["generation"] = generation
        status = {"replicas": replicas, "updatedReplicas": updated}
        self.cache.put(DEPLOYMENT, {"metadata": metadata, "spec": {"replicas": replicas}, "status": status})

    def emit(self, about: Any, kind: Any, reason: str, message: str) -> bool:
        assert reason in ("VictimUncertain", "ScaleDownWaits")
        self.told.append(message)
        return True

    @property
    def marked(self) -> dict[str, str]:
        """The cost of each pod that has one."""
        costs = {name: pod["metadata"].get("annotations", {}) for name, pod in self.pods.items()}
        return {name: cost[DELETION_COST] for name, cost in costs.items() if cost}

    async def prepare(self, current: int | None, wanted: int | None) -> int | None:
        return await self.down.prepare(self.server, current, wanted, lambda: self.wanted)

    async def get(self, kind: Any, namespace: str, name: str) -> Object | None:
        assert (kind, namespace, name) == (DEPLOYMENT, *KEY)
        return copy.deepcopy(self.live)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.pod("a", (9, 0))
    made.pod("b", (1, 7))
    made.pod("c", (7, 0))
    return made


async def test_the_pod_with_the_fewest_requests_is_marked_and_no_other(bench: Bench) -> None:
    assert await bench.prepare(3, 2) == 2
    # Seven run on c; on b one runs and seven wait, which have to be served as well.
    assert bench.marked == {"c": "-1"}
    assert bench.told == []


async def test_a_mark_that_stands_is_not_written_again_and_one_that_is_out_of_date_moves(
    bench: Bench,
) -> None:
    await bench.prepare(3, 2)
    await bench.prepare(3, 2)
    assert bench.writes == ["c"]
    bench.report(*(PodReport(name, 64, 2048, 64, load, 0, "InForce") for name, load in (("a", 0), ("c", 5))))
    bench.pod("b", (9, 0))
    await bench.prepare(3, 2)
    assert bench.marked == {"a": "-1"}


async def test_a_step_that_is_taken_back_leaves_no_mark(bench: Bench) -> None:
    await bench.prepare(3, 2)
    assert await bench.prepare(2, 3) == 3
    assert bench.marked == {"c": "-1"}, "the Deployment still asks for two"
    assert await bench.prepare(3, 3) == 3
    assert bench.marked == {}


async def test_the_mark_stays_until_kubernetes_has_acted_by_it(bench: Bench) -> None:
    await bench.prepare(3, 2)
    await bench.prepare(2, 2)
    assert bench.marked == {"c": "-1"}, "the number is lowered, and no pod is ending yet"


async def test_when_another_pod_has_gone_the_mark_goes_too(bench: Bench) -> None:
    await bench.prepare(3, 2)
    bench.end("a")
    await bench.prepare(2, 2)
    assert bench.marked == {}
    assert bench.writes == ["c", "c"]
    await bench.prepare(2, 2)
    assert bench.writes == ["c", "c"], "a steady fleet costs no writes"


async def test_where_all_go_or_are_gone_already_nothing_is_marked(bench: Bench) -> None:
    assert await bench.prepare(3, 0) == 0
    bench.end("a")
    assert await bench.prepare(3, 2) == 2
    assert bench.writes == []


async def test_a_number_that_is_somebody_elses_marks_nothing(bench: Bench) -> None:
    assert await bench.prepare(3, None) is None
    assert await bench.prepare(None, 1) == 1
    assert bench.writes == []


async def test_marks_are_taken_away_when_the_number_becomes_somebody_elses(bench: Bench) -> None:
    await bench.prepare(3, 2)
    await bench.prepare(3, None)
    assert bench.marked == {}


async def test_a_cost_that_somebody_else_wrote_is_left_alone(bench: Bench) -> None:
    mine = {"manager": "kubectl-annotate", "operation": "Update"}
    bench.pods["a"]["metadata"] |= {"annotations": {DELETION_COST: "-5"}, "managedFields": [mine]}
    bench._keep(bench.pods["a"])
    await bench.prepare(3, 2)
    await bench.prepare(3, 3)
    assert bench.marked == {"a": "-5"}


async def test_pods_that_are_not_ready_go_first_and_no_figures_are_needed_for_it(bench: Bench) -> None:
    bench.server.newest = None
    waits = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
    bench.pod("d", None, conditions=waits)
    assert await bench.prepare(4, 3) == 3
    assert bench.marked == {"d": "-1"}


@pytest.mark.parametrize("figures", [True, False])
async def test_a_step_that_would_let_a_rollout_end_the_last_pod_waits_for_it(
    bench: Bench, figures: bool
) -> None:
    """The version that comes does not start. Fewer replicas are taken from both, from the older one first."""
    if not figures:
        bench.server.newest = None
    bench.deployed(3, 1)
    for _ in range(3):
        assert await bench.prepare(3, 1) == 3
        bench.now += PATIENCE_S
    assert bench.writes == []
    assert set(bench.told) == {
        "replicas 3 -> 1 waits until the rollout is over, which with so few replicas might end the last pod "
        "that serves before another one does; a version that does not start has to be taken back first"
    }
    bench.deployed(3, 3)
    bench.report(*(bench.server.newest.pods if bench.server.newest else ()))
    assert await bench.prepare(3, 1) == (1 if figures else 3), "it knows what runs where, or waits to"
    bench.now += PATIENCE_S
    assert await bench.prepare(3, 1) == 1


async def test_a_step_that_begins_a_rollout_with_the_same_write_waits_for_it(bench: Bench) -> None:
    bench.deployed(3, 3)
    bench.wanted = templated("v2")
    assert await bench.prepare(3, 1) == 3
    assert len(bench.told) == 1
    assert await bench.prepare(3, 2) == 2, "one more than may be down"


async def test_what_the_api_server_has_not_kept_of_the_pods_holds_no_step_up(bench: Bench) -> None:
    bench.wanted = templated("v2")
    bench.made_from = digest(bench.wanted)
    bench.deployed(3, 3)
    assert await bench.prepare(3, 1) == 1
    assert bench.told == []


async def test_a_step_right_after_a_restart_of_the_operator_waits_for_no_rollout(bench: Bench) -> None:
    bench.deployed(3, 3)
    bench.server.wanted_mark = bench.server.settled = ""
    assert await bench.prepare(3, 1) == 1
    assert bench.told == []


async def test_until_the_state_of_a_rollout_is_told_a_step_waits_without_a_word(bench: Bench) -> None:
    bench.deployed(3, 3, generation=2)
    assert await bench.prepare(3, 1) == 3
    assert bench.told == []
    bench.deployed(3, 3)
    assert await bench.prepare(3, 1) == 1


@pytest.mark.parametrize(
    ("wanted", "rollout"),
    [(2, {}), (0, {}), (1, {"maxSurge": 1}), (2, {"maxUnavailable": 1})],
)
async def test_a_step_that_leaves_a_rollout_its_floor_or_means_none_at_all_waits_for_no_rollout(
    bench: Bench, wanted: int, rollout: dict[str, int]
) -> None:
    bench.deployed(3, 1, **rollout)
    assert await bench.prepare(3, wanted) == wanted
    assert bench.told == []


@pytest.mark.parametrize("told", ["never", "long ago", "by two of three"])
async def test_a_scale_down_waits_for_figures_and_not_for_ever(bench: Bench, told: str) -> None:
    if told == "never":
        bench.server.newest = None
    elif told == "long ago":
        bench.now += PATIENCE_S + 1
    else:
        assert bench.server.newest is not None
        bench.report(*bench.server.newest.pods[:2])
    assert await bench.prepare(3, 2) == 3
    assert bench.writes == []
    bench.now += PATIENCE_S
    if told == "by two of three":
        bench.report(*(bench.server.newest.pods if bench.server.newest else ()))
    assert await bench.prepare(3, 2) == 2
    assert len(bench.marked) == 1
    if told == "by two of three":
        assert bench.marked == {"b": "-1"}, "what is not known is not idle"
    (message,) = bench.told
    assert message.startswith("replicas 3 -> 2")
    assert "no figures of" in message


async def test_figures_that_come_in_time_are_used(bench: Bench) -> None:
    assert bench.server.newest is not None
    figures, bench.server.newest = bench.server.newest, None
    assert await bench.prepare(3, 2) == 3
    bench.now += 2
    bench.report(*figures.pods)
    assert await bench.prepare(3, 2) == 2
    assert bench.marked == {"c": "-1"}
    assert bench.told == []


async def test_what_was_idle_before_the_scale_down_was_wanted_is_asked_again(bench: Bench) -> None:
    assert bench.server.newest is not None
    bench.now += 1
    assert await bench.prepare(3, 2) == 3
    assert bench.writes == [], "c was the idlest a second ago, and has got streams since"
    *others, c = bench.server.newest.pods
    bench.report(*others, replace(c, running=20))
    assert await bench.prepare(3, 2) == 2
    assert bench.marked == {"b": "-1"}
    assert bench.told == []


async def test_figures_from_a_prometheus_count_as_long_as_it_takes_to_get_others(bench: Bench) -> None:
    assert bench.server.newest is not None
    bench.report(*bench.server.newest.pods, every_s=30)
    bench.now += 60
    assert await bench.prepare(3, 2) == 2
    assert bench.marked == {"c": "-1"}


async def test_patience_begins_anew_with_every_scale_down(bench: Bench) -> None:
    bench.server.newest = None
    await bench.prepare(3, 2)
    await bench.prepare(3, 3)
    bench.now += PATIENCE_S
    assert await bench.prepare(3, 2) == 3


@pytest.mark.parametrize(
    "refusal",
    [
        ApiError(403, "Forbidden", 'pods "c" is forbidden'),
        ConflictError(409, "Conflict", "the object has been modified"),
        NotFoundError(404, "NotFound", 'pods "c" not found'),
        UnavailableError(500, "InternalError", "failed calling webhook"),
    ],
)
async def test_a_refused_mark_delays_a_scale_down_and_is_told(bench: Bench, refusal: ApiError) -> None:
    bench.refusal = refusal
    assert await bench.prepare(3, 2) == 3
    assert bench.told == []
    bench.now += PATIENCE_S
    bench.server.newest = bench.server.newest and Report(bench.now, bench.now, *_rest(bench.server.newest))
    assert await bench.prepare(3, 2) == 2
    (message,) = bench.told
    assert refusal.message in message
    assert "pod c" in message


async def test_a_refusal_that_passes_is_not_told(bench: Bench) -> None:
    bench.refusal = UnavailableError(503, "ServiceUnavailable", "not now")
    assert await bench.prepare(3, 2) == 3
    bench.refusal = None
    assert await bench.prepare(3, 2) == 2
    assert (bench.marked, bench.told) == ({"c": "-1"}, [])


async def test_a_victim_that_vanishes_is_replaced_by_the_next_choice(bench: Bench) -> None:
    bench.gone("c")
    assert await bench.prepare(3, 2) == 3, "the watch has not told yet"
    bench.cache.drop(POD, "ns", "c")
    starting = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
    bench.pod("d", None, phase="Pending", conditions=starting)
    assert await bench.prepare(3, 2) == 2
    assert bench.marked == {"d": "-1"}, "Kubernetes has made another in its place, which serves nobody yet"
    assert bench.told == []


async def test_a_replica_that_cannot_prove_that_it_leads_marks_nothing(bench: Bench) -> None:
    bench.refusal = NotLeadingError()
    with pytest.raises(NotLeadingError):
        await bench.prepare(3, 2)


async def test_prices_of_an_earlier_version_of_the_operator_are_taken_away(bench: Bench) -> None:
    for name, cost in (("a", "9"), ("b", "1000000")):
        ours = {"manager": SCALE_DOWN_MANAGER, "operation": "Apply"}
        bench.pods[name]["metadata"] |= {"annotations": {DELETION_COST: cost}, "managedFields": [ours]}
        bench._keep(bench.pods[name])
    await bench.prepare(3, 3)
    assert bench.marked == {}


async def test_what_goes_is_logged_with_its_load(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await bench.prepare(3, 2)
    assert "replicas 3 -> 2, to go: c (READY, 7 requests)" in caplog.text


def _rest(report: Report) -> Sequence[Any]:
    return report.decision, report.pods, report.silent, report.unavailable, report.failed, report.partial


# --- the whole operator -----------------------------------------------------------------------------


async def three_pods(cluster: Cluster, engines: list[FakeEngine]) -> None:
    """A fleet of three with 9, 2 and 5 streams."""
    await serving(cluster, engines[0], scaling={"mode": "Fixed"}, replicas=3, tuning={"mode": "Off"})
    for number, (engine, load) in enumerate(zip(engines, (9, 2, 5), strict=True)):
        engine.running, engine.public_keys = load, engines[0].public_keys
        if number:
            await cluster.pod(f"chat-{number}", engine)
    await cluster.rolled_out()


async def costs(cluster: Cluster) -> dict[str, str]:
    """The deletion cost of each pod that has one and is not ending."""
    answer = await asyncio.to_thread(
        cluster.api.request, "GET", f"/api/v1/namespaces/{cluster.namespace}/pods"
    )
    found = {}
    for pod in answer.body["items"]:
        cost = (pod["metadata"].get("annotations") or {}).get(DELETION_COST)
        if cost is not None and "deletionTimestamp" not in pod["metadata"]:
            found[pod["metadata"]["name"]] = cost
    return found


async def replicas(cluster: Cluster) -> int:
    live = await cluster.get(cluster.deployment())
    assert live is not None
    return int(live["spec"]["replicas"])


def all_seen(operator: Operator, cluster: Cluster) -> bool:
    server = operator.registry.get(Key(cluster.namespace, "chat"))
    return server is not None and sorted(server.loads().values()) == [2, 5, 9]


async def scale(cluster: Cluster, count: int) -> None:
    await cluster.merge(cluster.server(), {"spec": {"replicas": count}}, "scale")


@pytest.mark.parametrize("mode", ["Fixed", "External"])
async def test_the_idlest_pod_is_marked_before_the_number_falls_and_the_mark_goes_when_it_is_taken_back(
    cluster: Cluster, operator: Operator, engines: list[FakeEngine], mode: str
) -> None:
    await three_pods(cluster, engines)
    await cluster.merge(cluster.server(), {"spec": {"scaling": {"mode": mode}}})
    await eventually(lambda: all_seen(operator, cluster))
    await scale(cluster, 2)
    await eventually(lambda: replicas(cluster), lambda count: count == 2)
    assert await costs(cluster) == {"chat-1": "-1"}
    await scale(cluster, 3)
    await eventually(lambda: costs(cluster), lambda marked: marked == {})
    assert await replicas(cluster) == 3
    assert await cluster.events("VictimUncertain") == []


async def test_an_operator_killed_between_mark_and_scale_is_followed_by_one_that_chooses_anew(
    cluster: Cluster, options: Options, engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = ScaleDown.prepare

    async def last_deed(down: ScaleDown, server: Server, current: int | None, *more: Any) -> Any:
        count = await prepare(down, server, current, *more)
        if current is not None and count != current:
            await asyncio.sleep(3600)
        return count

    with monkeypatch.context() as patch:
        patch.setattr(ScaleDown, "prepare", last_deed)
        async with running(options) as first:
            await three_pods(cluster, engines)
            await eventually(lambda: all_seen(first, cluster))
            await scale(cluster, 2)
            await eventually(lambda: costs(cluster), lambda marked: marked == {"chat-1": "-1"})
    assert await replicas(cluster) == 3
    # Meanwhile the load has moved on.
    engines[1].running, engines[2].running = 8, 1
    async with running(options):
        await eventually(lambda: replicas(cluster), lambda count: count == 2)
        assert await costs(cluster) == {"chat-2": "-1"}


async def test_a_mark_that_a_dead_operator_left_on_a_fleet_that_stays_is_taken_away(
    cluster: Cluster, options: Options, engines: list[FakeEngine]
) -> None:
    async with running(options):
        await three_pods(cluster, engines)
    mark = cluster.named("v1", "Pod", "chat-1")
    mark["metadata"]["annotations"] = {DELETION_COST: "-1"}
    await asyncio.to_thread(cluster.api.apply, mark, SCALE_DOWN_MANAGER)
    async with running(options):
        await eventually(lambda: costs(cluster), lambda marked: marked == {})


async def test_a_victim_that_vanishes_in_between_holds_nothing_up(
    cluster: Cluster, operator: Operator, engines: list[FakeEngine]
) -> None:
    await three_pods(cluster, engines)
    await eventually(lambda: all_seen(operator, cluster))
    await cluster.delete(cluster.named("v1", "Pod", "chat-1"))
    await scale(cluster, 2)
    await eventually(lambda: replicas(cluster), lambda count: count == 2)
    assert await costs(cluster) == {}, "two are left, and two are to stay"
