"""Is what we want already there? Judged as server-side apply would."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.controller.diff import covers, digest, fingerprint

LIVE: dict[str, Any] = {
    "metadata": {"name": "chat", "labels": {"a": "b", "theirs": "yes"}},
    "spec": {
        "replicas": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "template": {
            "spec": {
                "containers": [
                    {"name": "sidecar", "image": "injected"},
                    {
                        "name": "vllm",
                        "image": "vllm:1",
                        "args": ["--a", "--b"],
                        "env": [{"name": "X", "value": "1"}, {"name": "THEIRS", "value": "2"}],
                        "volumeMounts": [
                            {"name": "shm", "mountPath": "/dev/shm"},
                            {"name": "shm", "mountPath": "/x"},
                        ],
                        "resources": {"limits": {"cpu": "1", "memory": "2Gi"}},
                        "terminationMessagePath": "/dev/termination-log",
                    },
                ]
            }
        },
    },
}


def engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "vllm", **fields}]}}}}


@pytest.mark.parametrize(
    "wanted",
    [
        {"metadata": {"labels": {"a": "b"}}},
        engine(image="vllm:1"),
        engine(args=["--a", "--b"]),
        engine(env=[{"name": "X", "value": "1"}]),
        engine(volumeMounts=[{"name": "shm", "mountPath": "/x"}]),
        engine(resources={"limits": {"cpu": "1000m", "memory": "2048Mi"}}),
        engine(resources={"limits": {"cpu": 1}}),
        engine(command=[], ports=None, securityContext={}),
    ],
)
def test_what_others_added_and_how_the_server_writes_it_do_not_count(wanted: dict[str, Any]) -> None:
    assert covers(LIVE, wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        {"metadata": {"labels": {"a": "c"}}},
        engine(image="vllm:2"),
        engine(args=["--b", "--a"]),
        engine(args=["--a"]),
        engine(env=[{"name": "Y", "value": "1"}]),
        engine(volumeMounts=[{"name": "shm", "mountPath": "/y"}]),
        engine(resources={"limits": {"cpu": "1001m"}}),
        engine(ports=[{"containerPort": 8000}]),
        {"spec": {"replicas": 3}},
        {"spec": {"paused": False}},
        {"spec": {"replicas": True}},
    ],
)
def test_a_field_of_ours_that_differs_counts(wanted: dict[str, Any]) -> None:
    assert not covers(LIVE, wanted)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=3), JSON, max_size=4))
def test_everything_covers_itself(obj: dict[str, Any]) -> None:
    assert covers(copy.deepcopy(obj), obj)


@given(JSON)
def test_a_digest_does_not_depend_on_the_order_of_keys(value: Any) -> None:
    obj = {"a": value, "b": 1}
    assert digest(obj) == digest(dict(reversed(obj.items())))


def test_a_fingerprint_changes_with_the_spec_and_our_metadata_but_not_with_status() -> None:
    live = {"metadata": {"uid": "u", "generation": 1, "resourceVersion": "5", "labels": {"a": "b"}}}
    status = copy.deepcopy(live)
    status["metadata"]["resourceVersion"] = "6"
    assert fingerprint(status) == fingerprint(live)
    for field, value in (("generation", 2), ("labels", {}), ("uid", "v"), ("ownerReferences", [])):
        changed = copy.deepcopy(live)
        changed["metadata"][field] = value
        assert fingerprint(changed) != fingerprint(live)


def test_a_kind_without_generations_is_known_by_its_version() -> None:
    live = {"metadata": {"uid": "u", "resourceVersion": "5"}}
    assert fingerprint(live) != fingerprint({"metadata": {"uid": "u", "resourceVersion": "6"}})
