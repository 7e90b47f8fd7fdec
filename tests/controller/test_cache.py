"""The cache: what is kept, whom a change concerns, and how lost deletions are found."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api.names import child_labels
from llamaserver.cluster.kinds import DEPLOYMENT, LLAMASERVER, POD, SERVICE, Kind, Object
from llamaserver.controller.cache import Cache
from llamaserver.controller.queue import Key


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def made(kind: Kind, name: str, server: str = "chat", version: str = "1", **more: Any) -> Object:
    labels = {} if kind is LLAMASERVER else child_labels(server)
    metadata = {
        "namespace": "ns",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": version,
        "labels": labels,
    }
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": metadata | {"managedFields": [{"manager": "somebody"}]},
        **more,
    }


def test_a_childs_change_concerns_its_server() -> None:
    cache = Cache(Clock())
    assert cache.put(POD, made(POD, "chat-0")) == Key("ns", "chat")
    assert cache.put(SERVICE, made(SERVICE, "chat")) == Key("ns", "chat")
    assert cache.put(LLAMASERVER, made(LLAMASERVER, "chat")) == Key("ns", "chat")


def test_what_is_not_ours_concerns_nobody() -> None:
    cache = Cache(Clock())
    foreign = made(POD, "other")
    foreign["metadata"]["labels"] = {"app": "other"}
    assert cache.put(POD, foreign) is None
    assert cache.get(POD, "ns", "other") is None


def test_big_and_secret_parts_are_not_kept() -> None:
    cache = Cache(Clock())
    cache.put(DEPLOYMENT, made(DEPLOYMENT, "chat", spec={"replicas": 2, "template": {"spec": "x" * 10_000}}))
    kept = cache.deployment(Key("ns", "chat"))
    assert kept is not None
    assert kept["spec"] == {"replicas": 2}
    assert "managedFields" not in kept["metadata"]
    assert len(str(kept)) < 1000


def test_of_a_pod_the_ports_of_its_engine_are_kept_and_nothing_else_of_what_it_was_made_of() -> None:
    cache = Cache(Clock())
    port = {"name": "https", "containerPort": 8000}
    engine = {"name": "vllm", "env": [{"name": "A", "value": "x" * 10_000}], "ports": [port]}
    cache.put(POD, made(POD, "chat-0", spec={"containers": [engine, {"name": "proxy"}], "volumes": ["x"]}))
    (kept,) = cache.pods(Key("ns", "chat"))
    assert kept["spec"] == {"containers": [{"name": "vllm", "ports": [port]}]}


def test_pods_come_in_order_and_go_with_their_server() -> None:
    cache = Cache(Clock())
    for name in ("chat-1", "chat-0"):
        cache.put(POD, made(POD, name))
    cache.put(POD, made(POD, "batch-0", "batch"))
    assert [pod["metadata"]["name"] for pod in cache.pods(Key("ns", "chat"))] == ["chat-0", "chat-1"]
    assert cache.drop(POD, "ns", "chat-0") == Key("ns", "chat")
    assert cache.drop(POD, "ns", "chat-0") is None
    assert [pod["metadata"]["name"] for pod in cache.pods(Key("ns", "chat"))] == ["chat-1"]


def test_a_pod_that_is_given_to_another_or_to_nobody_leaves_its_server() -> None:
    cache = Cache(Clock())
    old = Key("ns", "chat")
    cache.put(POD, made(POD, "chat-0"))
    cache.put(POD, made(POD, "chat-1"))
    assert cache.put(POD, made(POD, "chat-0", "debug", version="2")) == Key("ns", "debug")
    assert [pod["metadata"]["name"] for pod in cache.pods(old)] == ["chat-1"]
    cache.drop(POD, "ns", "chat-0")
    assert [pod["metadata"]["name"] for pod in cache.pods(old)] == ["chat-1"]
    orphan = made(POD, "chat-1", version="2")
    orphan["metadata"]["labels"] = {}
    assert cache.put(POD, orphan) == old, "who has lost a pod is concerned"
    assert cache.pods(old) == []
    assert cache.get(POD, "ns", "chat-1") is None


def test_an_event_older_than_what_a_write_returned_changes_nothing() -> None:
    cache = Cache(Clock())
    cache.put(DEPLOYMENT, made(DEPLOYMENT, "chat", version="10", spec={"replicas": 2}))
    assert cache.put(DEPLOYMENT, made(DEPLOYMENT, "chat", version="9", spec={"replicas": 1})) is None
    kept = cache.deployment(Key("ns", "chat"))
    assert kept is not None
    assert kept["spec"] == {"replicas": 2}
    again = made(DEPLOYMENT, "chat", version="3", spec={"replicas": 5})
    again["metadata"]["uid"] = "made anew"
    cache.put(DEPLOYMENT, again)
    kept = cache.deployment(Key("ns", "chat"))
    assert kept is not None
    assert kept["spec"] == {"replicas": 5}


def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    cache = Cache(Clock())
    cache.put(LLAMASERVER, made(LLAMASERVER, "chat"))
    cache.reconcile_with(LLAMASERVER, [], began=1.0, namespace="other")
    assert cache.server(Key("ns", "chat")) is not None
    assert cache.reconcile_with(LLAMASERVER, [], began=1.0, namespace="ns") == {Key("ns", "chat")}


def test_a_list_older_than_an_event_does_not_undo_it() -> None:
    clock = Clock()
    cache = Cache(clock)
    began = clock.now = 10.0
    clock.now = 11.0
    cache.put(LLAMASERVER, made(LLAMASERVER, "new"))
    assert cache.reconcile_with(LLAMASERVER, [], began) == set()
    assert cache.server(Key("ns", "new")) is not None


NAMES = st.sets(st.sampled_from([f"s{number}" for number in range(8)]))


@given(cached=NAMES, listed=NAMES, changed=NAMES)
def test_after_a_comparison_the_cache_is_the_list(
    cached: set[str], listed: set[str], changed: set[str]
) -> None:
    clock = Clock()
    cache = Cache(clock)
    for name in cached:
        cache.put(LLAMASERVER, made(LLAMASERVER, name))
    clock.now = 5.0
    objects = [made(LLAMASERVER, name, version="2" if name in changed else "1") for name in listed]
    concerned = cache.reconcile_with(LLAMASERVER, objects, began=5.0)
    assert {key.name for key in cache.servers()} == listed
    assert {key.name for key in concerned} == (cached ^ listed) | (cached & listed & changed)
