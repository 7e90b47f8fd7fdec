"""The way in: what is read, how kindly the status is taken, and in which words a mistake is explained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api import InvalidSpec, LlamaServer, parse, read_status

Object = dict[str, Any]

WORDS = [
    ({"spec.slo.interTokenLatncy": {}}, "spec.slo.interTokenLatncy", "did you mean interTokenLatency?"),
    ({"spec.engine.maxnumseqs": 4}, "spec.engine.maxnumseqs", "did you mean maxNumSeqs?"),
    ({"spec.shutdown.xyzzy": 4}, "spec.shutdown.xyzzy", "the fields here are drainTimeout"),
    ({"spec.engine.maxNumSeqs": "64"}, "spec.engine.maxNumSeqs", 'write a whole number (got "64")'),
    ({"spec.engine.maxNumSeqs": 0}, "spec.engine.maxNumSeqs", "must be at least 1 (got 0)"),
    ({"spec.engine.gpuMemoryUtilization": 1.2}, "spec.engine.gpuMemoryUtilization", "must be at most 1"),
    ({"spec.engine.extraArgs": "--x"}, "spec.engine.extraArgs", "write a list"),
    ({"spec.scaling.mode": "auto"}, "spec.scaling.mode", "'Auto', 'Recommend', 'Fixed' or 'External'"),
    ({"spec.suspend": "yes"}, "spec.suspend", "write true or false"),
    ({"spec.model.uri": None}, "spec.model.uri", "is required"),
    ({"spec.slo.queueTime.target": 5}, "spec.slo.queueTime.target", "e.g. 50ms, 90s or 24h (got 5)"),
    ({"spec.scheduling.nodeSelector": {"a": 1}}, "spec.scheduling.nodeSelector.a", "write text in quotes"),
    ({"spec.engine.env": [{"value": "x"}]}, "spec.engine.env[0].name", "is required"),
    ({"metadata.name": "Chat.prod"}, "metadata.name", "start with a letter"),
    ({"metadata.name": "a" * 64}, "metadata.name", "at most 63 characters"),
    ({"apiVersion": "llamaserver.dev/v9"}, "apiVersion", "must be llamaserver.dev/v1alpha1"),
    ({"kind": "Llama"}, "kind", "must be LlamaServer"),
    ({"spec": None}, "spec", "give at least spec.model.uri and spec.engine.image"),
]


@pytest.mark.parametrize(("changes", "field", "words"), WORDS)
def test_a_mistake_is_explained_by_field_and_cure(
    changes: Object, field: str, words: str, changed: Callable[..., Object]
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(changed(changes))
    assert caught.value.field == field
    assert words in caught.value.message


def test_all_mistakes_are_told_at_once(changed: Callable[..., Object]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(changed({"spec.engine.maxNumSeqs": 0, "spec.slo.queueTime.target": "5"}))
    assert {problem.field for problem in caught.value.problems} == {
        "spec.engine.maxNumSeqs",
        "spec.slo.queueTime.target",
    }
    assert all(problem.field in str(caught.value) for problem in caught.value.problems)


def test_what_kubernetes_adds_to_metadata_is_no_mistake(changed: Callable[..., Object]) -> None:
    obj = changed(
        {"metadata.uid": "u-1", "metadata.generation": 7, "metadata.managedFields": [{"manager": "x"}]}
    )
    parsed = parse(obj)
    assert (parsed.metadata.name, parsed.metadata.uid, parsed.metadata.generation) == ("chat", "u-1", 7)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(spec=JSON, status=JSON)
def test_whatever_is_stored_gives_a_server_or_an_explanation(spec: Any, status: Any) -> None:
    obj = {"apiVersion": "llamaserver.dev/v1alpha1", "kind": "LlamaServer", "metadata": {"name": "x"}}
    try:
        found = parse({**obj, "spec": spec, "status": status})
    except InvalidSpec as error:
        assert error.field.startswith("spec")
    else:
        assert isinstance(found, LlamaServer)


def test_a_status_of_another_version_loses_only_what_does_not_fit() -> None:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Serving",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = read_status(
        {
            "observedGeneration": 4,
            "conditions": [condition],
            "tuning": {"numSeqs": 8, "laterField": 1},
            "laterSection": {},
            "model": {"a_s": "0.01"},
            "replicas": "two",
        }
    )
    assert status.to_dict() == {
        "observedGeneration": 4,
        "conditions": [condition],
        "tuning": {"numSeqs": 8},
        "model": {"a_s": "0.01"},
    }


WHOLE: Object = {
    "observedGeneration": 4,
    "conditions": [
        {
            "type": type_,
            "status": "True",
            "reason": "Serving",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for type_ in ("Ready", "Accepted")
    ],
    "observed": {"interTokenLatency": "41ms", "running": 3},
    "tuning": {"numSeqs": 8, "actuator": "Live", "pods": [{"name": "a", "numSeqs": 8, "state": "InForce"}]},
    "diagnosis": {"cause": "Healthy", "message": "", "evidence": {"x": "1"}},
    "decisions": [
        {"time": "2026-01-01T00:00:00Z", "action": action, "reason": "r"}
        | {"evidence": {"x": "1"}, "outcome": "Asked"}
        for action in ("Restart", "Replicas")
    ],
    "recovery": {"pod": "a", "replacements": 2},
    "restart": {
        "maxNumSeqs": 96,
        "time": "2026-01-01T00:00:00Z",
        "specDigest": "0123456789ab",
        "upperBound": {"numSeqs": 256, "contextTokens": 1000, "prefillRatio": "0.5"},
        "lowerBound": {"numSeqs": 12},
        "state": "NotNeeded",
    },
    "effective": {"maxNumSeqs": 96},
    "model": {"a_s": "0.01"},
}


def objects_in(value: Any) -> list[Object]:
    """Every mapping in a plain value whose keys are fields, the whole first."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [value] if isinstance(value, dict) and value.keys() not in ({"x"}, {"a_s"}) else []
    return [*found, *(one for item in inner for one in objects_in(item))]


@given(st.lists(st.tuples(st.integers(0, 30), st.text(max_size=8), JSON), max_size=6))
def test_fields_of_a_later_version_cost_nothing_that_this_one_knows(
    fields: list[tuple[int, str, Any]],
) -> None:
    later = copy.deepcopy(WHOLE)
    places = objects_in(later)
    for where, name, value in fields:
        places[where % len(places)][f"later{name}"] = value
    assert read_status(later).to_dict() == WHOLE


def test_a_word_of_a_later_version_costs_that_field_alone() -> None:
    later = WHOLE | {"restart": WHOLE["restart"] | {"state": "Later", "upperBound": {"contextTokens": 7}}}
    found = read_status(later).to_dict()["restart"]
    assert found == {
        key: WHOLE["restart"][key] for key in WHOLE["restart"] if key not in ("state", "upperBound")
    }


@given(status=JSON)
def test_no_status_is_too_odd_to_be_read(status: Any) -> None:
    assert isinstance(read_status(status).to_dict(), dict)
