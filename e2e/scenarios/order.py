"""In which order the scenarios run, as far as time depends on it. Each passes alone as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

FIRST = (
    # Of simulated engines or of engines of their own, while two fleets miss their objectives (scenario 16).
    *("test_10_models", "test_8_gitops", "test_14_namespaces", "test_12_rollouts", "test_11_many_engines"),
    *("test_7_autoscaler", "test_15_prometheus", "test_6_no_tuner", "test_16_restart"),
    # With the shared engine: first those that need one, then those that begin with one and end with two, then
    # those that need two, and last whoever ends it.
    *("test_1_invalid_spec", "test_2_operator_killed", "test_3_engine_killed", "test_5_api_server_gone"),
    *("test_4_scaling", "test_13_hung_engine", "test_9_removal"),
)


class Item(Protocol):
    """What pytest has collected, as far as it matters here."""

    path: Path


T = TypeVar("T", bound=Item)


def in_order(items: Iterable[T], first: Sequence[str] = FIRST) -> list[T]:
    """The items by the places of their files, those of none at the end; within a file as they were."""
    places = {name: place for place, name in enumerate(first)}
    return sorted(items, key=lambda item: places.get(item.path.stem, len(first)))
