"""Ways from a plain resource to its objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from llamaserver.api import effective, parse
from llamaserver.desired import BuildSettings, KubeObject, build, desired_fleet

Object = dict[str, Any]
Built = dict[str, KubeObject]


@pytest.fixture
def settings() -> BuildSettings:
    """The operator's settings in these tests."""
    return BuildSettings("llamaserver/tuner:0.1.0", public_keys={"k1": "PEM"})


@pytest.fixture
def built(changed: Callable[..., Object], settings: BuildSettings) -> Callable[..., Built]:
    """`built({"spec.x": 1})`: the children of the minimal LlamaServer with fields set, by kind."""

    def make(changes: Mapping[str, Any] | None = None, **other: Any) -> Built:
        server = parse(changed(changes or {}))
        fleet = other.get("fleet") or desired_fleet(effective(server.spec), None, None)
        return {obj["kind"]: obj for obj in build(server, fleet, other.get("settings", settings))}

    return make


@pytest.fixture
def pod(built: Callable[..., Built]) -> Callable[..., Object]:
    """`pod({"spec.x": 1})`: the spec of its pods."""

    def make(changes: Mapping[str, Any] | None = None, **other: Any) -> Object:
        found: Object = built(changes, **other)["Deployment"]["spec"]["template"]["spec"]
        return found

    return make


@pytest.fixture
def engine(pod: Callable[..., Object]) -> Callable[..., Object]:
    """`engine({"spec.x": 1})`: the engine's container."""

    def make(changes: Mapping[str, Any] | None = None, **other: Any) -> Object:
        found: Object = pod(changes, **other)["containers"][0]
        return found

    return make
