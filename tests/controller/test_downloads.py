"""What is told of pods whose model is being downloaded before their engine starts."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from fakes import FakeEngine
from llamaserver.api import effective, parse
from llamaserver.api.conditions import Reason
from llamaserver.api.names import child_labels
from llamaserver.cluster.kinds import POD
from llamaserver.controller import Operator, pods
from llamaserver.controller.cache import Cache
from llamaserver.controller.conditions import judge
from llamaserver.controller.downloads import Told, current
from llamaserver.controller.facts import Facts, Rollout
from llamaserver.controller.mandate import Mandate
from llamaserver.controller.queue import Key
from llamaserver.controller.runtime import Server
from llamaserver.controller.tick import Ticker
from llamaserver.engine import Progress, Target
from llamaserver.engine.progress import read_progress
from llamaserver.telemetry import Metrics
from workbench import Cluster, condition, eventually

Object = dict[str, Any]
GIB = 2**30
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
HALF = Progress(bytes=int(3.1 * GIB), total=int(15.2 * GIB), bytes_per_second=110 * 2**20, silent_s=1.0)
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:10Z"}}
GATED = "GatedRepoError: 403 Client Error from https://huggingface.co/x: Access to model x is restricted"


def container(state: Object, restarts: int = 0, **last: Any) -> Object:
    lived = {"lastState": {"terminated": last}} if last else {}
    return {"name": "model-download", "state": state, "restartCount": restarts, "ready": False} | lived


def pod(*init: Object, ready: bool = False, **metadata: Any) -> Object:
    times = {"PodScheduled": "2026-01-01T00:00:00Z", "Ready": "2026-01-01T00:02:30Z"}
    conditions = [{"type": type_, "status": "True", "lastTransitionTime": at} for type_, at in times.items()]
    conditions[1]["status"] = str(ready)
    status = {"podIP": "10.0.0.7", "conditions": conditions, "initContainerStatuses": list(init)}
    return {"metadata": {"name": "chat-0", "namespace": "ns", "uid": "uid-0"} | metadata, "status": status}


SERVER = {
    "apiVersion": "llamaserver.dev/v1alpha1",
    "kind": "LlamaServer",
    "metadata": {"name": "chat", "namespace": "ns"},
    "spec": {"model": {"uri": "hf://org/model"}, "engine": {"image": "vllm:v0.32.0"}},
}


def starting(*downloads: Progress | None, **changes: Any) -> Facts:
    """Pods that download, and how far they are."""
    found = {f"chat-{number}": progress for number, progress in enumerate(downloads)}
    count = len(found)
    made = Facts(
        spec=effective(parse(SERVER).spec),
        invalid="",
        apply_problem=None,
        claim_problem=None,
        rollout=Rollout(True, True, wanted=count, updated=count, total=count, ready=0, deadline_exceeded=""),
        rollout_reason="",
        pods=[],
        report=None,
        now=NOW,
        patience_s=330.0,
        downloads=found,
    )
    return replace(made, **changes)


def told(given: Facts, type_: str) -> tuple[str, str]:
    (found,) = (one for one in judge(given) if one.type == type_)
    return str(found.reason), found.message


class TestWhomToAsk:
    """What a pod's status says of a download."""

    def test_a_running_download_is_asked(self) -> None:
        seen = pods.read(pod(container(RUNNING, restarts=2)))
        assert seen.downloads is not None
        assert (seen.downloads.host, seen.downloads.port) == ("10.0.0.7", 8000)
        assert seen.target is None, "there is no engine yet"
        assert seen.trouble is None

    @pytest.mark.parametrize(
        "obj",
        [
            pod(),
            pod(container({"waiting": {"reason": "PodInitializing"}})),
            pod(container({"terminated": {"exitCode": 0}})),
            pod(container(RUNNING), deletionTimestamp="2026-01-01T00:00:00Z"),
        ],
    )
    def test_no_other_is(self, obj: Object) -> None:
        assert pods.read(obj).downloads is None

    def test_a_start_is_as_long_as_it_was_without_its_download(self) -> None:
        """What the next replica will take, which finds the model in the cache."""
        ended = {"startedAt": "2026-01-01T00:00:10Z", "finishedAt": "2026-01-01T00:01:40Z", "exitCode": 0}
        seen = pods.read(pod(container({"terminated": ended}), ready=True))
        assert seen.cold_start_s == 60.0
        again = pods.read(pod(container({"terminated": ended}, restarts=1), ready=True))
        assert again.cold_start_s is None, "its earlier tries are not told"

    def test_why_a_download_failed_is_the_pods_trouble(self) -> None:
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        seen = pods.read(pod(container(waiting, restarts=3, exitCode=1, message=GATED)))
        assert seen.trouble is not None
        assert seen.trouble.reason is Reason.MODEL_ACCESS_DENIED
        assert "spec.model.tokenSecretRef" in seen.trouble.message
        assert "container model-download of pod chat-0" in seen.trouble.message


class TestWhatWasTold:
    """An answer tells of the try that gave it, and for a while."""

    ASKED: ClassVar = {"chat-0": Target("chat-0", "uid-0", 2, "10.0.0.7", 8000)}

    @pytest.mark.parametrize(
        ("life", "until", "told"),
        [("uid-0/2", 100.0, HALF), ("uid-0/1", 100.0, None), ("uid-0/2", 40.0, None)],
    )
    def test_it_holds_for_that_try_and_not_for_long(
        self, life: str, until: float, told: Progress | None
    ) -> None:
        assert current(self.ASKED, {"chat-0": Told(HALF, life, until)}, 50.0) == {"chat-0": told}

    def test_a_pod_that_has_not_told_is_one_that_downloads(self) -> None:
        assert current(self.ASKED, {}, 50.0) == {"chat-0": None}

    def test_one_that_downloads_no_more_is_not_told_of(self) -> None:
        assert current({}, {"chat-0": Told(HALF, "uid-0/2", 100.0)}, 50.0) == {}


class TestConditions:
    """What is said of it."""

    def test_ready_and_progressing_say_how_far_it_is(self) -> None:
        given = starting(HALF)
        text = "0 of 1 replicas ready; downloading org/model: 3.1 of 15.2 GiB, 110 MiB/s (pod chat-0)"
        assert told(given, "Ready") == ("Downloading", text)
        assert told(given, "Progressing") == ("Scaling", text)
        assert told(given, "Stalled")[0] == "NotStalled"

    def test_of_several_pods_the_one_is_told_that_is_furthest(self) -> None:
        behind = Progress(GIB, HALF.total, 0.0, 1.0)
        assert (
            "3.1 of 15.2 GiB, 110 MiB/s (pod chat-1 and 2 more)"
            in told(starting(behind, HALF, None), "Ready")[1]
        )

    def test_a_pod_that_does_not_tell_is_told_to_download(self) -> None:
        assert told(starting(None), "Ready") == (
            "Downloading",
            "0 of 1 replicas ready; downloading org/model: it has not told how far it is (pod chat-0)",
        )

    def test_a_rollout_tells_of_it_beside_its_reason(self) -> None:
        state = Rollout(True, True, wanted=2, updated=1, total=2, ready=1, deadline_exceeded="")
        given = starting(HALF, rollout=state, rollout_reason="spec.model.uri: hf://org/old -> hf://org/model")
        for type_ in ("Ready", "Progressing"):
            reason, text = told(given, type_)
            assert reason == "RollingOut"
            assert "3.1 of 15.2 GiB" in text
        assert "hf://org/old" in told(given, "Progressing")[1]

    @pytest.mark.parametrize(("silent_s", "reason"), [(1.0, "Downloading"), (300.0, "ModelAccessDenied")])
    def test_while_bytes_come_an_earlier_failure_is_over(self, silent_s: float, reason: str) -> None:
        ended = {
            "startedAt": "2026-01-01T11:50:00Z",
            "finishedAt": "2026-01-01T11:50:10Z",
            "exitCode": 1,
            "message": GATED,
        }
        seen = pods.read(pod(container(RUNNING, restarts=3, **ended)))
        moves = Progress(GIB, 2 * GIB, 0.0, silent_s)
        assert told(starting(moves, pods=[seen]), "Ready")[0] == reason


class TestProgress:
    """What an answer is worth."""

    @pytest.mark.parametrize(
        ("progress", "text"),
        [
            (HALF, "3.1 of 15.2 GiB, 110 MiB/s"),
            (Progress(0, None, 0.0, 2.0), "the hub has not told yet how much there is"),
            (Progress(5 * 2**20, 500 * 2**20, 2.5 * 2**20, 0.0), "5.0 of 500 MiB, 2.5 MiB/s"),
            (Progress(GIB, None, 0.0, 0.0), "1.0 GiB"),
            (Progress(GIB, 2 * GIB, 0.0, 600.0), "1.0 of 2.0 GiB, no byte came for 10 min"),
        ],
    )
    def test_in_words(self, progress: Progress, text: str) -> None:
        assert str(progress) == text

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"the model is being downloaded",
            b'{"bytes": 1}',
            b'{"bytes": -1, "total": 5, "bytes_per_second": 0, "silent_s": 0}',
            b'{"bytes": 6, "total": 5, "bytes_per_second": 0, "silent_s": 0}',
            b'{"bytes": true, "total": 5, "bytes_per_second": 0, "silent_s": 0}',
            b'{"bytes": 1, "total": 5, "bytes_per_second": NaN, "silent_s": 0}',
            b'{"bytes": 1, "total": 5, "bytes_per_second": 1e999, "silent_s": 0}',
        ],
    )
    def test_what_cannot_be_is_not_believed(self, body: bytes) -> None:
        assert read_progress(body) is None


@pytest.mark.looptime
async def test_downloads_are_followed_where_figures_come_seldom() -> None:
    """By way of a Prometheus that scrapes once a minute, say."""
    loop, asked = asyncio.get_running_loop(), []

    class Engines:
        async def progress(self, target: Target, deadline_s: float) -> Progress:
            asked.append(loop.time())
            return HALF

    class Seldom:
        ticks = 0

        async def read(self, *_: Any) -> None:
            self.ticks += 1

        def pause_s(self, *_: Any) -> float:
            return 60.0

        def forget(self, *_: Any) -> None:
            pass

    cache, key = Cache(loop.time), Key("ns", "chat")
    begun = pod(container(RUNNING), labels=child_labels("chat"), resourceVersion="1")
    cache.put(POD, begun)
    ticker = Ticker(
        cache=cache,
        engines=Engines(),  # type: ignore[arg-type]
        mandate=Mandate(lambda: True, lambda: True),
        queue=SimpleNamespace(add=lambda *_, **__: None),  # type: ignore[arg-type]
        metrics=Metrics(),
        monotonic=loop.time,
        wall=lambda: NOW,
    )
    ticker._figures = seldom = Seldom()  # type: ignore[assignment]
    server = Server(key, "uid", spec=effective(parse(SERVER).spec))
    ticker.start(server)
    await asyncio.sleep(50.0)
    assert seldom.ticks == 1
    assert max(later - at for at, later in itertools.pairwise(asked)) <= 2.1
    now = {"chat-0": pods.read(begun).downloads}
    assert current(now, server.downloads, loop.time()) == {"chat-0": HALF}
    await ticker.close()


async def test_the_operator_asks_the_pod_and_tells_in_status(
    cluster: Cluster, operator: Operator, engine: FakeEngine
) -> None:
    engine.download = {"bytes": GIB, "total": 4 * GIB, "bytes_per_second": 2**20, "silent_s": 0.5}
    await cluster.apply(cluster.server())
    await eventually(lambda: cluster.get(cluster.deployment()))
    made = await cluster.pod("chat-0", engine)
    not_yet = {"type": "Ready", "status": "False", "lastTransitionTime": made["status"]["startTime"]}
    waiting = {"name": "vllm", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    status = {
        "phase": "Pending",
        "conditions": [not_yet],
        "initContainerStatuses": [{**waiting, "name": "model-download", "state": {"running": {}}}],
        "containerStatuses": [{**waiting, "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    await cluster.merge(made, {"status": status}, "status")
    await cluster.rolled_out()
    await cluster.merge(
        cluster.deployment(), {"status": {"readyReplicas": 0, "availableReplicas": 0}}, "status"
    )
    seen = await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: "1.0 of 4.0 GiB, 1.0 MiB/s (pod chat-0)" in condition(it, "Ready").get("message", ""),
    )
    assert condition(seen, "Ready")["reason"] == "Downloading"
    assert condition(seen, "Stalled")["status"] == "False"
    engine.download["bytes"] = 3 * GIB
    await eventually(
        lambda: cluster.get(cluster.server()),
        lambda it: "3.0 of 4.0 GiB" in condition(it, "Ready")["message"],
    )
