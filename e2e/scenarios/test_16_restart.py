"""Engines without the tuner miss their objective for ten minutes. Who has asked for it has them restarted
with a lower cap, once, and is told before what it costs; who has not has nothing restarted.
"""

from __future__ import annotations

from datetime import UTC, datetime

from harness.fleet import Fleet
from harness.kube import Object
from harness.manifests import CEILING
from harness.wait import stays, until
from scenarios.slow import Slow
from scenarios.terms import TICK_S

SUSTAINED_S = 600.0
"""So long an objective has to be missed; the operator's own figure, which nobody can set."""
DECIDED_S = 120.0
"""With the two minutes that the latency is averaged over, and the looks in between."""
HELD_S, NO_OTHER_S = 240.0, 15.0
PREFIX = "--max-num-seqs="


def started_with(pod: Object) -> int:
    """The cap on an engine's command line."""
    (engine,) = (one for one in pod["spec"]["containers"] if one["name"] == "vllm")
    (word,) = (word for word in engine["args"] if word.startswith(PREFIX))
    return int(word.removeprefix(PREFIX))


def told(fleet: Fleet, reason: str) -> list[Object] | None:
    """The Events about a fleet with this reason; None for none."""
    uid = fleet.get()["metadata"]["uid"]
    found = fleet.kube.list("event", fleet.namespace)
    return [
        one for one in found if (one["involvedObject"].get("uid"), one["reason"]) == (uid, reason)
    ] or None


def decisions(fleet: Fleet) -> list[Object]:
    """The restarts among what the status tells of decisions."""
    return [one for one in fleet.status().get("decisions", []) if one["action"] == "Restart"]


def test_engines_that_cannot_be_tuned_are_restarted_once_where_that_is_asked_for(slow: Slow) -> None:
    asked, left, pod = slow.asked, slow.left, slow.first
    slow.check_running()
    asked.wait_condition("Tuned", "False", 30, reason="ActuatorUnavailable")
    assert started_with(pod) == CEILING
    left_s = max(0.0, SUSTAINED_S - (datetime.now(UTC) - slow.began).total_seconds())
    (event,) = until("a restart to be told", lambda: told(asked, "Restart"), left_s + DECIDED_S, every=2.0)
    assert event["type"] == "Warning"
    for words in ("has been missed for", "1 pod starts anew", "nothing is served from when"):
        assert words in event["message"]
    restart = asked.status()["restart"]
    fewer, decided = int(restart["maxNumSeqs"]), datetime.fromisoformat(restart["time"])
    assert fewer < CEILING
    assert (decided - slow.began).total_seconds() >= SUSTAINED_S - 2 * TICK_S, "it was not missed for long"
    assert restart["upperBound"]["numSeqs"] == CEILING

    until("the old pod to go", lambda: pod["metadata"]["uid"] not in uids(asked), 60, seen=asked.describe)
    asked.wait_replicas(1)
    asked.wait_ready()
    after = asked.engine_pod()
    assert started_with(after) == fewer
    begun = datetime.fromisoformat(after["metadata"]["creationTimestamp"])
    assert decided <= begun, "it was done before it was told"
    (decision,) = decisions(asked)
    assert (decision["from"], decision["to"]) == (str(CEILING), str(fewer))
    spec, status = asked.get()["spec"], asked.status()
    assert (spec["engine"]["maxNumSeqs"], status["effective"]["maxNumSeqs"]) == (CEILING, fewer)

    slow.check_running()
    asked.wait_condition("SLOMet", "True", HELD_S)
    stays("the pod", lambda: uids(asked) == {after["metadata"]["uid"]}, NO_OTHER_S)
    assert len(decisions(asked)) == 1
    assert asked.status()["restart"]["time"] == restart["time"]
    # As slow all the time, and nobody has asked.
    slow.check_running()
    left.wait_condition("SLOMet", "False", 30)
    assert left.engines() == slow.kept
    assert (told(left, "Restart"), "restart" in left.status()) == (None, False)
    slow.end()


def uids(fleet: Fleet) -> set[str]:
    """Of the pods that are not ending."""
    alive = (pod for pod in fleet.pods() if "deletionTimestamp" not in pod["metadata"])
    return {str(pod["metadata"]["uid"]) for pod in alive}
