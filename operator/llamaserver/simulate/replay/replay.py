"""A history beside two runs of a plant on its demand: as it was, and under the law."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from llamaserver.control import Objective
from llamaserver.control.objective import JUDGED_S
from llamaserver.simulate.compare import Scenario, Tell, run, silently
from llamaserver.simulate.demand import Demand
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.outcome import Traced
from llamaserver.simulate.policies import LAW, Policy, policy
from llamaserver.simulate.profiles import Calibrated
from llamaserver.simulate.replay.fit import most_running
from llamaserver.simulate.replay.history import History
from llamaserver.simulate.replay.judged import Was, was
from llamaserver.simulate.replay.limits import limits
from llamaserver.simulate.replay.rebuild import rebuilt
from llamaserver.simulate.rules.caps import Static
from llamaserver.simulate.rules.seen import FleetSeen

TRUSTED = 0.15
"""A plant that misses the history by more is not to be believed."""
AS_IT_WAS = "as it was"


@dataclass(frozen=True, slots=True)
class Scripted:
    """As many replicas as there were: (from when on, how many), times rising."""

    course: tuple[tuple[float, int], ...]

    def step(self, fleet: FleetSeen) -> tuple[Scripted, int | None]:
        i = bisect_right(self.course, (fleet.now, math.inf))
        return self, self.course[max(0, i - 1)][1]


@dataclass(frozen=True)
class Question:
    """What a history is asked. `least` and `most` replicas are those between which the law may scale."""

    name: str
    objective: Objective
    calibrated: Calibrated
    assumed: Sequence[str]
    """What of the plant was not known, in words."""
    least: int | None = None
    most: int | None = None
    cold_start_s: float = 60.0
    seed: int = 1


@dataclass(frozen=True)
class Replay:
    """What was, what the plant makes of the same, and what the law would have made of it."""

    question: Question
    history: History
    demand: Demand
    serving: Sequence[int]
    """Replicas in each step of the history."""
    least: int
    most: int
    window_s: float
    """Over which the runs are judged."""
    was: Was
    as_it_was: Traced
    law: Traced
    limits: Sequence[str]

    @property
    def errors(self) -> dict[str, float]:
        """The plant as it was over the history, minus one; of the p95, how far it is out of its bucket."""
        low, high = self.was.itl[1]
        p95 = self.as_it_was.outcome.itl_p95_s
        return {
            "itl_mean": self.as_it_was.itl_mean_s / self.was.itl_mean_s - 1.0,
            "itl_p95": p95 / min(max(p95, low), high) - 1.0,
            "tokens_per_s": self.as_it_was.outcome.tokens_per_s / self.was.tokens_per_s - 1.0,
        }

    @property
    def trusted(self) -> bool:
        return all(abs(error) <= TRUSTED for error in self.errors.values())


def replay(history: History, question: Question, tell: Tell = silently) -> Replay:
    """Runs both. Raises SimulationError where the history has no request, or does not fit the plant."""
    _check(history, question)
    demand = rebuilt(history, question.name, question.seed)
    serving = [max(1, n) for n in history.serving()]
    least, most = question.least or 1, question.most or max(serving)
    if least > most:
        raise SimulationError(
            f"--min {least} is more than --max {most}, which unless told is the most replicas that there were"
        )
    scenario = Scenario(
        lambda _: demand,
        question.calibrated.profile,
        question.objective,
        min(max(serving[0], least), most),
        least,
        most,
        question.cold_start_s,
        (question.seed,),
        max(JUDGED_S, history.step_s),
    )
    then = replace(scenario, replicas=serving[0], replicas_min=1, replicas_max=max(serving), cold_start_s=0.0)
    course = tuple((k * history.step_s, n) for k, n in enumerate(serving))
    static = Policy(AS_IT_WAS, Static(_cap(history, question.calibrated)), Scripted(course))
    as_it_was = run(then, demand, static, question.seed, lambda share: tell(AS_IT_WAS, share))
    law = run(scenario, demand, policy(LAW), question.seed, lambda share: tell(LAW, share))
    found = was(history, question.objective)
    told = [*limits(history, found, question.objective), *_tokens(demand, history)]
    return Replay(
        question, history, demand, serving, least, most, scenario.window_s, found, as_it_was, law, told
    )


def _check(history: History, question: Question) -> None:
    if not any(i.itl is not None and i.itl.count for r in history.replicas for i in r.intervals):
        raise SimulationError(
            "no inter-token latency was recorded in this time (answers of one token, or a model that "
            "generates none, have none): there is no objective to replay; choose another time or --model"
        )
    most, seqs = most_running(history)[0], question.calibrated.profile.max_num_seqs
    if most > seqs:
        raise SimulationError(
            f"a replica of this history ran {most} requests at once, and the plant starts with {seqs} "
            f"places: add max_num_seqs to --profile, as "
            f"{question.calibrated.name.split(',')[0]},max_num_seqs={most}"
        )


def _cap(history: History, calibrated: Calibrated) -> int | None:
    """The cap that was in force, None where nobody told it."""
    caps = [r.cap for r in history.replicas if r.cap is not None]
    return min(round(median(caps)), calibrated.profile.max_num_seqs) if caps else None


def _tokens(demand: Demand, history: History) -> list[str]:
    """What to say where the demand that was drawn is not what was made."""
    made = sum(i.generated for i in history.intervals)
    asked = sum(r.output for r in demand.requests)
    if not made or abs(asked / made - 1.0) <= 0.05:
        return []
    return [
        f"The requests that were rebuilt ask for {asked} tokens, and {made:.0f} were made "
        f"({100 * (asked / made - 1.0):+.0f} %): much of what was in hand at an end of this time was cut off."
    ]


def mean_lengths(demand: Demand) -> tuple[float, float]:
    """Tokens in and out of a request."""
    return fmean(r.prompt for r in demand.requests), fmean(r.output for r in demand.requests)
