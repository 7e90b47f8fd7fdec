"""What the end-to-end scenarios are made of, as far as no cluster is needed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.settings import REPOSITORY
from harness import simulated
from harness.fleet import Fleet
from harness.kube import Kube
from llamaserver.api import parse
from scenarios.order import FIRST, in_order
from scenarios.terms import pair_of

FILES = sorted((REPOSITORY / "e2e" / "scenarios").glob("test_*.py"))


class Item:
    """What pytest collects of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(Kube(list, {}, "kubectl", "helm"), "chat", "ns", simulated.IMAGE, None, 25)


def test_every_scenario_has_a_place_and_every_place_a_scenario() -> None:
    assert sorted(FIRST) == sorted(file.stem for file in FILES)


def test_they_run_by_their_places_and_new_ones_at_the_end() -> None:
    items = [Item(Path(f"{name}.py")) for name in ("test_new", FIRST[1], FIRST[0], FIRST[1])]
    assert [item.path.stem for item in in_order(items)] == [FIRST[0], FIRST[1], FIRST[1], "test_new"]


def test_the_operator_accepts_what_they_declare(fleet: Fleet) -> None:
    made = [
        pair_of(fleet, recovery={"replaceStalledAfter": "2m"}),
        simulated.resource(fleet, ["--profile=CPU"], {"maxNumSeqs": 4}, scaling={"mode": "External"}),
    ]
    for resource in made:
        parse(resource)
