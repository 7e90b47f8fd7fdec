"""The core of one of two real engines stands still behind a server that says 200: it is told, its pod stays
until the spec asks for another, and then it alone is replaced, once.
"""

from __future__ import annotations

import time

from harness.fleet import ENGINE_PORT, Fleet
from harness.kube import Object
from harness.server import READY_S
from harness.wait import stays, until
from scenarios.terms import NAMESPACE, TICK_S, pair_of

CORE = "VLLM::EngineCore"
"""The process that makes the steps, as it calls itself; that of the HTTP server is another."""
STREAMS = 2
GRACE_S = 120.0
"""So long an engine may stand still; no step of this model takes as long."""
LEAST_AFTER = "2m"
"""The shortest that spec.recovery.replaceStalledAfter may be: it is over when the grace is."""
NOTICE_S = 20.0
NO_OTHER_S = 15.0


def wait_two(fleet: Fleet) -> None:
    def serve() -> bool:
        return fleet.status().get("readyReplicas") == 2 == len(serving(fleet))

    until("two engines", serve, READY_S, every=1.0, seen=fleet.describe)


def serving(fleet: Fleet) -> dict[str, Object]:
    """The pods that are not ending, by uid."""
    alive = (pod for pod in fleet.pods() if "deletionTimestamp" not in pod["metadata"])
    return {str(pod["metadata"]["uid"]): pod for pod in alive}


def url(pod: Object) -> str:
    return f"http://{pod['status']['podIP']}:{ENGINE_PORT}"


def replacements(fleet: Fleet) -> int:
    """How often the operator has said that it replaces a pod."""
    uid = fleet.get()["metadata"]["uid"]
    about = (one for one in fleet.kube.list("event", NAMESPACE) if one["involvedObject"].get("uid") == uid)
    return sum(one["reason"] == "Replacement" for one in about)


def answers(fleet: Fleet, pod: Object) -> None:
    """Have an engine generate two streams to their ends."""
    address = str(pod["status"]["podIP"])
    with fleet.load(STREAMS, pod=address) as load:
        until("the streams to run", lambda: fleet.ask(address)["running"] == STREAMS, 30, every=0.2)
        summary = load.finish()
    assert summary["streams"] >= STREAMS
    assert summary["cut"] == 0, summary["causes"]


def test_a_hung_engine_is_told_and_its_pod_alone_is_replaced(pair: Fleet) -> None:
    hung, other = pair.pods()
    known = pair.engines()
    address, name = str(hung["status"]["podIP"]), str(hung["metadata"]["name"])
    with pair.load(STREAMS, pod=address):
        until("the streams to run", lambda: pair.ask(address)["running"] == STREAMS, 30, every=0.2)
        pair.stop_process(hung, "vllm", CORE)
        stopped = time.monotonic()
        told = pair.wait_condition("Stalled", "True", GRACE_S + NOTICE_S, reason="EngineStalled")
        assert time.monotonic() - stopped >= GRACE_S - 2 * TICK_S, "it was told before its grace was over"
    assert name in told["message"]
    assert pair.status()["diagnosis"]["cause"] == "Stalled"
    assert pair.healthy(url(hung)), "a server whose engine hangs was to answer /health"
    assert pair.engines() == known, "nobody has asked for another pod, or for a restart"

    answers(pair, other)
    assert pair.engines() == known
    pair.apply(pair_of(pair, recovery={"replaceStalledAfter": LEAST_AFTER}))
    hung_uid, other_uid = (str(pod["metadata"]["uid"]) for pod in (hung, other))
    until("its pod to go", lambda: hung_uid not in serving(pair), NOTICE_S, seen=pair.describe)
    assert other_uid in serving(pair), "the pod that serves had to go"
    wait_two(pair)
    after = serving(pair)
    (successor,) = (pod for uid, pod in after.items() if uid != other_uid)
    assert other_uid in after
    pair.wait_condition("Stalled", "False", NOTICE_S)
    answers(pair, successor)

    stays("both pods", lambda: serving(pair).keys() == after.keys(), NO_OTHER_S)
    recovery = pair.status()["recovery"]
    assert (recovery["pod"], recovery["replacements"], replacements(pair)) == (name, 1, 1)
    (before,), (kept,) = ([one for one in found if one[0] == other_uid] for found in (known, pair.engines()))
    assert kept == before, "the engine that serves was started anew"
