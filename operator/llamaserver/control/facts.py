"""What one tick knows of the whole LlamaServer: the ground that diagnosis and the slow loop stand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamaserver.api.enums import Precedence, ScalingMode, TuningMode
from llamaserver.control.answers import LOOKED_BACK_S, Finished, enough, lately
from llamaserver.control.context import in_force
from llamaserver.control.model import StepModel
from llamaserver.control.objective import JUDGED_S, QUANTILES
from llamaserver.control.pods import PodFacts
from llamaserver.control.state import Moment
from llamaserver.control.types import Fleet, Imbalance, Limits, Objective, Observed, Straggler
from llamaserver.observe.distribution import Estimate, estimate, mean
from llamaserver.observe.fleet import merged
from llamaserver.observe.types import Distribution, NoWindow

FULL_SHARE = 0.9
"""A replica whose running sequences reach this share of its cap is full."""
KV_TIGHT = 0.85
"""A cache that is fuller than this may be why requests wait."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All pods with a usable window, those without, and the figures of the last JUDGED_S."""

    objective: Objective
    limits: Limits
    fleet: Fleet
    model: StepModel | None
    pods: Sequence[PodFacts]
    blind: Sequence[NoWindow]
    observed: Observed
    queue_now_s: float | None
    """The declared statistic of queue time, or the wait that the present queue foretells, whichever is
    longer.
    """
    now: float
    straggler: Straggler | None = None
    imbalance: Imbalance | None = None

    @property
    def keeping_up(self) -> Sequence[PodFacts]:
        """The pods whose steps are as long as those of the others; what only a slow one suffers from is no
        illness of the fleet.
        """
        slow = () if self.straggler is None else self.straggler.slow
        return [p for p in self.pods if p.name not in slow]

    @property
    def waiting(self) -> int:
        """Requests that wait for room in an engine, without those deferred for another reason."""
        return sum(p.window.waiting_for_room for p in self.pods)

    @property
    def running(self) -> int:
        return sum(p.window.running for p in self.pods)

    @property
    def missed(self) -> bool:
        """Whether the latency objective was missed over the judged window."""
        return self.observed.itl_met is False

    @property
    def queue_missed(self) -> bool:
        return self.observed.queue_met is False

    @property
    def can_grow(self) -> bool:
        return self.limits.scaling is ScalingMode.AUTO and self.fleet.replicas < self.limits.replicas_max

    @property
    def queue_first(self) -> bool:
        return self.objective.precedence is Precedence.QUEUE_TIME and self.objective.queue_s is not None

    @property
    def full(self) -> bool:
        """Whether requests wait because every replica runs as many as it admits.

        One full replica is enough while the queue objective is missed: where requests stick to a replica the
        others' room does not help them.
        """
        full = [p.running >= FULL_SHARE * c for p in self.pods if (c := admits(p, self.limits))]
        return self.waiting > 0 and bool(full) and (all(full) or (any(full) and self.queue_missed))

    @property
    def settled(self) -> bool:
        """Whether every cap is where the objective wants it, so that room is not still being found."""
        return all(p.cap is None or p.best is None or p.cap >= 0.9 * p.best for p in self.pods)


def capacity(pod: PodFacts, limits: Limits) -> float | None:
    """Sequences per engine this pod holds at the objective and in its memory; None while unknown."""
    known = [c for c in (pod.best if pod.settable else pod.cap, pod.kv_ceiling) if c is not None]
    ceiling = pod.high if pod.high is not None else limits.ceiling
    if ceiling is not None:
        known.append(ceiling)
    if not pod.settable and pod.cap is None and ceiling is None:
        return None
    return max(1.0, float(min(known)))


def admits(pod: PodFacts, limits: Limits) -> float | None:
    """Sequences per engine that a full one runs: where caps are not moved, what is in force and not what the
    objective would want, or a missed latency would be answered with replicas.
    """
    cap = None if limits.tuning is TuningMode.AUTO else in_force(pod.window.last)
    return capacity(pod, limits) if cap is None else float(cap)


def judged(moments: Sequence[Moment], now: float) -> Sequence[Moment]:
    return [m for m in moments if m.at > now - JUDGED_S]


def statistic(d: Distribution | None, objective: Objective) -> Estimate | None:
    """The declared statistic of inter-token latency."""
    if d is None:
        return None
    quantile = QUANTILES.get(objective.itl_statistic)
    if quantile is not None:
        return estimate(d, quantile)
    value = mean(d)
    return None if value is None else Estimate(value)


def _met(found: Estimate | None, target_s: float | None) -> bool | None:
    """Whether the target was held; None when a coarse bucket hides it, or nothing is known."""
    if found is None or target_s is None:
        return None
    if found.value_s <= target_s:
        return None if found.relation == ">=" else True
    return None if found.relation == "<=" else False


def _all_met(objective: Objective, itl_met: bool | None, queue_met: bool | None) -> bool | None:
    declared = [
        met
        for target, met in ((objective.itl_s, itl_met), (objective.queue_s, queue_met))
        if target is not None
    ]
    if not declared:
        return None
    return False if False in declared else None if None in declared else True


def observed(
    objective: Objective,
    moments: Sequence[Moment],
    queue_now_s: float | None,
    now: float,
    finished: Sequence[Finished] = (),
) -> Observed:
    """The figures of the last JUDGED_S; gauges are those of the newest tick with any usable window.

    Gauges and rates are told only when every pod gave a window: a part is not the whole.
    """
    recent = [m for m in judged(moments, now) if m.fleet.pods > 0]
    if not recent:
        return Observed(None, None, None, None, None, None, None, None, None)
    newest = recent[-1].fleet
    itl, queue = merged(m.fleet.itl for m in recent), merged(m.fleet.queue for m in recent)
    found, lacks = statistic(itl, objective), ""
    if objective.of_requests and itl is not None and itl.count > 0:
        found, lacks = _of_requests(objective, recent, finished, now)
    wait = _queue(queue, objective)
    seconds = sum(m.seconds for m in recent)
    itl_met = _met(found, objective.itl_s)
    wanted = objective.queue_s
    queue_met = None if wanted is None or queue_now_s is None else queue_now_s <= wanted
    whole = newest.blind == 0
    return Observed(
        itl_s=None if found is None else found.value_s,
        itl_mean_s=None if itl is None else mean(itl),
        queue_s=wait,
        running=newest.running if whole else None,
        waiting=newest.waiting if whole else None,
        kv_usage=newest.kv_usage,
        preemptions_per_minute=60.0
        * _rate([(m.fleet.preemptions_per_s, m.seconds) for m in recent], seconds),
        tokens_per_s=_rate([(m.fleet.tokens_per_s, m.seconds) for m in recent], seconds) if whole else None,
        slo_met=_all_met(objective, itl_met, queue_met),
        itl_met=itl_met,
        queue_met=queue_met,
        itl_relation="=" if found is None else found.relation,
        itl_lacks=lacks if objective.itl_s is not None else "",
    )


def _of_requests(
    objective: Objective, recent: Sequence[Moment], finished: Sequence[Finished], now: float
) -> tuple[Estimate | None, str]:
    """The declared statistic over the requests that finished lately, or why it is not known."""
    if all(m.fleet.tpot is None for m in recent):
        return None, (
            "slo.interTokenLatency.scope is Request, and no engine tells the time per output token of its "
            "requests (vllm:request_time_per_output_token_seconds): use an image of vLLM 0.11 or newer, or "
            "set slo.interTokenLatency.scope to Token"
        )
    which = objective.itl_statistic
    found = lately(finished, which, now)
    if found.count < enough(which):
        return None, (
            f"{found.count} requests have finished in the last {LOOKED_BACK_S:.0f} s, and it takes "
            f"{enough(which)} to tell the {objective.itl_named}; until then it is bounded by the tokens. "
            "Where so few ever finish, set slo.interTokenLatency.scope to Token"
        )
    return statistic(found, objective), ""


def _rate(parts: Sequence[tuple[float, float]], seconds: float) -> float:
    return sum(rate * dt for rate, dt in parts) / seconds if seconds > 0.0 else 0.0


def _queue(d: Distribution | None, objective: Objective) -> float | None:
    """The queue statistic; queue times of zero are common and true, so a sum of zero is no fault here."""
    if d is None or d.count == 0:
        return None
    quantile = QUANTILES.get(objective.queue_statistic)
    if quantile is None or d.sum_s <= 0.0:
        return mean(d)
    found = estimate(d, quantile)
    return None if found is None else found.value_s


def queue_now(objective: Objective, moments: Sequence[Moment], waiting: int, now: float) -> float | None:
    """Queue time as it is now: the statistic of those admitted, or the queue's length over the rate of
    finishing.

    The statistic alone looks back: a queue that does not move has no one admitted to speak of it. A queue
    counts when it was there all the time, so that a request on its way in is none; nobody waiting and nobody
    admitted is a queue time of zero only when the engines were seen.
    """
    recent = [m for m in judged(moments, now) if m.fleet.pods > 0]
    admitted = _queue(merged(m.fleet.queue for m in recent), objective)
    seconds = sum(m.seconds for m in moments)
    known = [m.fleet.finished for m in moments if m.fleet.finished is not None]
    standing = all(m.fleet.waiting_for_room > 0 for m in recent)
    if waiting == 0 or not standing or not known or seconds < JUDGED_S / 2:
        return admitted
    foretold = waiting * seconds / max(1, sum(known))
    return foretold if admitted is None else max(foretold, admitted)
