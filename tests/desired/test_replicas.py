"""The number of replicas, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api import effective, parse
from llamaserver.api.effective import EffectiveSpec
from llamaserver.api.names import FIELD_MANAGER
from llamaserver.desired import HANDOVER_MANAGER, BuildSettings, DesiredFleet, build, desired_fleet, handover

Object = dict[str, Any]
NUMBERS = st.integers(min_value=0, max_value=1000) | st.none()


def resolved(**spec: Any) -> EffectiveSpec:
    obj = {
        "apiVersion": "llamaserver.dev/v1alpha1",
        "kind": "LlamaServer",
        "metadata": {"name": "x"},
        "spec": {"model": {"uri": "hf://a/b"}, "engine": {"image": "i"}, **spec},
    }
    return effective(parse(obj).spec)


@given(current=NUMBERS, wanted=NUMBERS, bounds=st.tuples(st.integers(1, 1000), st.integers(1, 1000)))
def test_the_bounds_hold_whatever_was_decided(
    current: int | None, wanted: int | None, bounds: tuple[int, int]
) -> None:
    least, most = sorted(bounds)
    for mode in ("Auto", "Recommend"):
        spec = resolved(scaling={"mode": mode, "minReplicas": least, "maxReplicas": most})
        number = desired_fleet(spec, current, wanted).replicas
        assert number is not None
        assert least <= number <= most


@pytest.mark.parametrize(
    ("spec", "current", "wanted", "expected"),
    [
        ({"scaling": {"maxReplicas": 8}}, 3, 5, 5),
        ({"scaling": {"maxReplicas": 8}}, 3, None, 3),
        ({"scaling": {"maxReplicas": 8}}, None, None, 1),
        ({"scaling": {"maxReplicas": 8}, "suspend": True}, 3, 5, 3),
        ({"scaling": {"mode": "Recommend", "maxReplicas": 8}}, 3, 5, 3),
        ({"scaling": {"mode": "Fixed"}, "replicas": 2}, 3, 5, 2),
        ({"scaling": {"mode": "Fixed"}, "replicas": 0}, 3, 5, 0),
        ({"scaling": {"mode": "External"}, "replicas": 2}, 3, 5, 2),
        ({"scaling": {"mode": "External"}}, 3, 5, None),
    ],
)
def test_who_decides(spec: Object, current: int | None, wanted: int | None, expected: int | None) -> None:
    assert desired_fleet(resolved(**spec), current, wanted) == DesiredFleet(expected)


def test_giving_the_number_up_does_not_shrink_the_fleet(
    changed: Callable[..., Object], settings: BuildSettings, api_server: Any, namespace: str
) -> None:
    """On a real API server: server-side apply deletes what its only owner leaves out, and 1 is filled in."""

    def deployment(mode: str, replicas: int | None) -> Object:
        changes = {"metadata.namespace": namespace, "spec.scaling.mode": mode}
        made = build(parse(changed(changes)), DesiredFleet(replicas), settings)
        return next(obj for obj in made if obj["kind"] == "Deployment")

    ours, theirs = deployment("Fixed", 8), deployment("External", None)
    live = api_server.apply(ours, FIELD_MANAGER).body
    assert handover(live, DesiredFleet(8)) is None, "a number that stays ours is not handed over"
    passed_on = handover(live, DesiredFleet(None))
    assert passed_on is not None
    assert api_server.apply(passed_on, HANDOVER_MANAGER).status == 200
    live = api_server.apply(theirs, FIELD_MANAGER).body
    assert live["spec"]["replicas"] == 8
    assert handover(live, DesiredFleet(None)) is None, "once is enough"

    scaled = api_server.merge(ours, {"spec": {"replicas": 3}}, "scale")
    assert scaled.status == 200
    assert api_server.apply(theirs, FIELD_MANAGER).body["spec"]["replicas"] == 3
    assert api_server.apply(ours, FIELD_MANAGER).body["spec"]["replicas"] == 8, "and back"
