"""A pod that tells plausible falsehoods about its steps moves nothing beyond its own replica.

The replicas share one model of a step, so its sums reach the others through that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from statistics import fmean

import pytest

from llamaserver.api.enums import Statistic
from llamaserver.control import Limits, Objective
from llamaserver.observe import Failure, Sample, parse_snapshot
from llamaserver.simulate import speech
from llamaserver.simulate.clients import statistic, windows
from llamaserver.simulate.demand import constant
from llamaserver.simulate.engine import Engine
from llamaserver.simulate.lengths import chat, words
from llamaserver.simulate.profiles import CPU_24M, H100_8B
from llamaserver.simulate.world import View, World

DEAD_BAND = 0.2
"""Within which a cap may rest anywhere, from where prefill is at ease to where it starves."""
LIAR, HONEST = "pod-1", ("pod-2", "pod-3")
LIES: Mapping[str, Mapping[str, float]] = {
    "steps of two fifths of their length": {"y": 0.4},
    "steps of two and a half times their length": {"y": 2.5},
    "contexts of four times their length": {"K": 4.0},
    "a fifth of the prefill": {"P": 0.2},
}


def told(lie: Mapping[str, float]) -> View:
    """The pod's answer with sums over its steps, from now on, that go together and are false."""

    since: dict[str, dict[str, int]] = {}

    def view(name: str, engine: Engine, now: float) -> Sample | Failure:
        said = json.loads(speech.snapshot(engine))
        for kind, moments in said["engines"][0]["steps"].items():
            true = since.setdefault(kind, dict(moments))
            for key in moments:
                factor = math.prod(lie.get(letter, 1.0) for letter in key)
                moments[key] = true[key] + round(factor * (moments[key] - true[key]))
        return parse_snapshot(json.dumps(said).encode(), now, f"{name}/0")

    return view


def served(made: World, start: float) -> float:
    return sum(n for pod in HONEST for t, _, n in made.engines[pod].log if t > start)


def missed(made: World, start: float) -> float:
    """Share of 10-s windows in which clients of the honest replicas saw the objective missed."""
    tokens = [t for pod in HONEST for t in (*made.engines[pod].log, *made.engines[pod].gaps)]
    which, target_s = made.objective.itl_statistic, made.objective.itl_s
    assert target_s is not None
    return fmean(statistic(w, which) > target_s for _, w in windows(tokens, start))


def world(load: str, begins: float, lie: str = "") -> World:
    """Three replicas for 200 s from `begins` on, one of which lies meanwhile."""
    profile, lengths, streams = (CPU_24M, words, 120) if load == "cpu" else (H100_8B, chat, 600)
    made = World(
        Objective(0.030, Statistic.P95),
        Limits(replicas_min=3, replicas_max=3),
        profile,
        lengths,
        constant(streams),
        replicas=3,
        seed=2,
    ).run(begins)
    if lie:
        made.views[LIAR] = told(LIES[lie])
    return made.run(begins + 200.0)


honest = cache(world)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("begins", [0.0, 100.0], ids=["from the start", "in mid-run"])
@pytest.mark.parametrize("load", ["cpu", "h100"])
def test_a_liar_moves_nothing_beyond_its_own_replica(load: str, begins: float, lie: str) -> None:
    without, beside, start = honest(load, begins), world(load, begins, lie), begins + 40.0
    assert missed(beside, start) <= 0.05
    assert served(beside, start) >= 0.96 * served(without, start)
    for pod in HONEST:
        assert beside.engines[pod].cap == pytest.approx(without.engines[pod].cap, rel=DEAD_BAND)
