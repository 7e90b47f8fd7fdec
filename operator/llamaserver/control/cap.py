"""The cap of one engine pod, one tick: the rules for a cap that works alone, and those it always obeys.

`setpoint` says where the cap should be at rest, `move_alone` how to get there: a breach is answered at once
and in one step, then the drain is waited for; a raise needs evidence, a queue, and patience. There is no
integrator, so nothing winds up: the only memory is the estimate. Where the prefill budget moves too,
`control/knobs.py` decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llamaserver.control import joint
from llamaserver.control.history import RECENT_S, History, Record, changed_load
from llamaserver.control.model import StepModel
from llamaserver.control.objective import MARGIN, Figure, Predictor
from llamaserver.control.types import Setpoint, Verdict

SLOW_START_SEQS = 8
FAST_S = 4.0
"""Length of the newest evidence that may cut by itself."""
CUT_SIGMAS = 2.0
JUDGED_SIGMAS = 1.0
"""Doubt granted over the length that an objective is judged by: there a miss is a miss."""
RAISE_SIGMAS = 1.5
DEADBAND = 0.04
"""Relative change below which the cap stays: less than the noise of a good estimate."""
RAISE_BAND = 0.05
RAISE_FACTOR = 1.25
FAR_FACTOR = 2.0
"""Largest raise in one move: near the wanted cap, and while it is at least twice the cap away."""
TRIM = 0.1
"""Deepest cut in one move when only the long run says that the aim is missed, not yet the objective; or when
the model sees no reason in batch or prefill why it should be.
"""
DISTURBED_CUT, DISTURBED_NOW = 0.5, 0.8
"""No cut goes below this share of the cap that the model says would hold a percentile under the present load:
a tail that is there at every cap is no reason to give the throughput away. Half, in the long run, leaves room
for a model off by two. A few seconds alone may take less, also below what the whole history says, since few
slow steps make a tail; a load that has changed is told by itself, and then its history is short.
"""
DISTURBED_ROOM = 1.15
"""Where the model would allow so much more than the cap, a miss is not the cap's fault: it is only trimmed.
"""
UNTRUSTED_CUT = 0.5
"""Deepest cut in one move while the slope is not known well."""
NO_RAISE_AFTER_PREEMPTION_S = 20.0
FORECAST_PATIENCE_S = 30.0
"""How long no raise is tried after the KV ceiling has cut on a forecast alone; twice as long each time that a
raise had to be taken back for it.
"""
PLATEAU = 0.99
"""The batch objective takes the smallest cap with this share of the throughput that the largest would give.
"""


@dataclass(frozen=True, slots=True)
class View:
    """What the fast loop looks at: one pod, now. Sequences are per engine."""

    acting: bool
    """False where the engine is only looked at."""
    itl_wanted: bool
    """False for the batch objective."""
    predictor: Predictor | None
    """Over the whole history. None for the batch objective or while nothing is known."""
    model: StepModel | None
    history: History
    context: float
    usual_context: float
    """The same over the time in which those that run are replaced."""
    prefill: float
    mixed: float
    prompt_cv: float
    """Standard deviation of the prompts' lengths over their mean."""
    kv: float | None
    preempted: bool
    """Preemptions were seen lately: never raise."""
    low: int
    high: int
    cap: int
    running: int
    waiting: int
    now: float
    tick_s: float
    changed_at: float
    cut_at: float
    patience_s: float
    before_kv: int | None
    """The cap that the KV ceiling cut last, if nothing else has cut since."""
    failed: int | None
    """A cap that missed the objective not long ago, under this same load."""
    budgets: joint.BudgetRange | None
    """None where the prefill budget cannot be moved."""
    budget: int | None
    """The budget wanted so far; None for the start value."""
    tail: float | None
    """The tail of `control/joint.py`; None until it was measured."""
    calmer: bool
    """The tail is much smaller than when the cap was cut for it."""
    rare: bool
    """Prompts have been too rare for the percentile to see them, for a while."""
    of_tail: bool
    """The objective is a percentile of the tail, of tokens or of requests."""
    of_requests: bool
    """It is one of requests: the predictor is about the mean of tokens that holds it."""
    answered: bool
    """So many requests have finished that this mean is known."""

    @property
    def draining(self) -> bool:
        return self.running > self.cap + 1

    @property
    def limited(self) -> bool:
        """Whether the cap is what holds requests back."""
        return self.waiting > 0 and self.running >= 0.9 * self.cap


@dataclass(frozen=True, slots=True)
class Move:
    """The cap from now on, and the rules that were asked."""

    cap: int
    trail: tuple[Verdict, ...]
    best: int
    """Where the cap is heading: what the objective and memory allow as far as is known."""
    shifted: bool = False
    """The load changed its nature, so that old evidence should go."""
    budget: int | None = None
    """The prefill budget from now on; None leaves it at the start value."""
    tail: float | None = None
    """The tail of `control/joint.py` as it is known now; None keeps what was known."""


def plateau(model: StepModel, context: float, prefill: float, mixed: float, most: int) -> int:
    """The smallest batch whose throughput M/(a + s M) is PLATEAU of that at `most` sequences."""
    a, s = model.a_s, model.mean_slope_s(context, prefill, mixed)
    if a <= 0.0 or s <= 0.0:
        return most
    wanted = PLATEAU * most / (a + s * most)
    return min(most, max(1, math.ceil(a * wanted / (1.0 - s * wanted))))


def setpoint(
    model: StepModel | None,
    predictor: Predictor | None,
    kv: float | None,
    low: int,
    high: int,
    load: tuple[float, float, float],
    sigmas: float = 0.0,
) -> Setpoint:
    """Where the knobs should rest: the largest cap in [low, high] that memory and the objective allow.

    `predictor` is None for the batch objective, which wants the plateau of throughput; `load` is (context,
    prefill, mixed) as the model takes them. `sigmas` > 0 asks for a cap that is safe, < 0 for one that is
    surely not too low. The prefill budget is left at its start value.
    """
    most = high if kv is None else max(low, min(high, math.floor(kv)))
    if predictor is None:
        if model is None or not model.trusted(load[0]):
            return Setpoint(most)
        return Setpoint(max(low, plateau(model, *load, most)))
    return Setpoint(predictor.largest(low, most, predictor.aim(), sigmas))


def move_alone(v: View) -> Move:
    """The rules for a cap without the budget, in order; the first that fires decides."""
    shifted = has_shifted(v)
    trail: list[Verdict] = []
    for rule in (within_bounds, within_memory, _breach, _plateau):
        verdict, cap = rule(v)
        trail.append(verdict)
        if verdict.fired:
            return Move(cap, tuple(trail), cap, shifted)
    wanted = _room(v)
    verdict, cap = raised(v, wanted)
    return Move(cap, (*trail, verdict), wanted, shifted)


def wanted_seqs(v: View, predictor: Predictor | None, sigmas: float = 0.0, most: int | None = None) -> int:
    high = v.high if most is None else min(v.high, most)
    found = setpoint(
        v.model, predictor, v.kv, v.low, max(v.low, high), (v.context, v.prefill, v.mixed), sigmas
    )
    assert found.max_num_active_seqs is not None
    return found.max_num_active_seqs


def said(rule: str, fired: bool, reason: str, evidence: Mapping[str, float | int | str]) -> Verdict:
    return Verdict(rule, fired, reason, evidence)


def _over(v: View, seconds: float | None) -> Predictor | None:
    """The predictor over the newest `seconds` alone; over everything for None."""
    p = v.predictor
    if p is None or seconds is None:
        return p
    return p.over(v.history.last(seconds, v.now))


def within_bounds(v: View) -> tuple[Verdict, int]:
    cap = min(v.high, max(v.low, v.cap))
    evidence = {"cap": v.cap, "min": v.low, "max": v.high}
    return said("Bounds", cap != v.cap, "the cap lies outside of what is allowed", evidence), cap


def within_memory(v: View) -> tuple[Verdict, int]:
    """The cache holds fewer sequences than the cap admits."""
    if v.kv is None:
        return said("KVCeiling", False, "capacity or lengths are not known yet", {}), v.cap
    cap = max(v.low, math.floor(v.kv))
    evidence = {"cap": v.cap, "fitting": round(v.kv, 1)}
    fired = cap < v.cap and v.kv < (1.0 - DEADBAND) * v.cap and (not v.draining or cap < 0.8 * v.cap)
    return said("KVCeiling", fired, "the KV cache holds fewer sequences than the cap admits", evidence), cap


def _breach(v: View) -> tuple[Verdict, int]:
    """The objective is missed at this cap: now, over the last seconds, or in the long run."""
    if v.predictor is None:
        return said("Breach", False, "no inter-token-latency objective, or no figures yet", {}), v.cap
    if v.history.recent and v.history.recent[-1].at <= v.changed_at:
        return said("Breach", False, "nothing was measured since the last change", {}), v.cap
    found, evidence = _missing(v)
    if found is None or v.cap <= v.low:
        return said("Breach", False, "the objective holds at this cap", evidence), v.cap
    name, pool = found
    least = max(v.low, _least(v, pool, name, evidence))
    wanted = max(least, min(wanted_seqs(v, pool, most=v.cap - 1), v.cap - 1))
    evidence["wanted"] = wanted
    if wanted >= v.cap:
        return said("Breach", False, "disturbed: fewer sequences would not help", evidence), v.cap
    trusted = v.model is not None and v.model.trusted(v.context)
    if v.draining and not (trusted and wanted < 0.8 * v.cap):
        return said("Breach", False, "an earlier cut is still draining", evidence), v.cap
    return said("Breach", True, f"the objective is missed at this cap ({name} evidence)", evidence), wanted


def _missing(v: View) -> tuple[tuple[str, Predictor] | None, dict[str, float | int | str]]:
    """The first horizon over which the objective is missed at this cap, and the figures of all of them.

    Over the newest seconds the limit is the objective itself; in the long run it is the aim.
    """
    found: tuple[str, Predictor] | None = None
    evidence: dict[str, float | int | str] = {}
    for name, seconds, sigmas in (
        ("now", max(FAST_S, 2.0 * v.tick_s), CUT_SIGMAS),
        ("recent", RECENT_S, JUDGED_SIGMAS),
        ("long", None, CUT_SIGMAS),
    ):
        p = _over(v, seconds)
        assert p is not None
        limit, margin = (1.0, 1.0) if seconds is not None else (p.aim(), MARGIN if p.quantile else 1.0)
        figure = p.figure(v.cap, -sigmas, margin)
        limit = p.allowed(limit, v.low, -sigmas, margin)
        evidence[name] = round(figure.ratio, 3)
        if found is None and figure.ratio - sigmas * figure.error > limit:
            found = name, p
    return found, evidence


def _least(v: View, pool: Predictor, name: str, evidence: dict[str, float | int | str]) -> int:
    """How far a cut may go at once, given what it is blamed for; notes in the evidence that it may be no
    fault of the cap.
    """
    trimmed = v.cap - max(1, round(TRIM * v.cap))
    least = trimmed if name == "long" else v.low
    if v.model is None or not v.model.trusted(v.context):
        least = max(least, math.ceil(UNTRUSTED_CUT * min(v.cap, v.running or v.cap)))
    undisturbed = pool.undisturbed(v.low, v.high)
    if undisturbed is None:
        return least
    if undisturbed >= DISTURBED_ROOM * v.cap and pool.from_prefill() < 0.5:
        evidence["undisturbed"] = undisturbed
        least = max(least, trimmed)
    if name == "long":
        return max(least, math.ceil(DISTURBED_CUT * undisturbed))
    return max(least, math.ceil(DISTURBED_NOW * max(undisturbed, wanted_seqs(v, v.predictor))))


def _plateau(v: View) -> tuple[Verdict, int]:
    """Without a latency objective: beyond the plateau more batch only costs latency and memory."""
    if v.itl_wanted:
        return said("Plateau", False, "a latency objective decides", {}), v.cap
    wanted = wanted_seqs(v, None)
    evidence = {"cap": v.cap, "plateau": wanted}
    fired = wanted < (1.0 - 2.0 * DEADBAND) * v.cap and not v.draining
    return said("Plateau", fired, "throughput does not grow any more beyond this batch", evidence), wanted


def _room(v: View) -> int:
    """The cap that old and new evidence both call safe, where that is worth a raise; else the present one.

    A cap that failed is not tried again for a while: on a steady load the second try would fail too.
    """
    if v.itl_wanted and v.predictor is None:
        return v.cap
    most = v.high if v.failed is None else max(v.low, v.failed - 1)
    wanted = wanted_seqs(v, v.predictor, RAISE_SIGMAS, most)
    if v.predictor is not None:
        wanted = min(wanted, wanted_seqs(v, _over(v, RECENT_S), RAISE_SIGMAS, most))
    return worth_a_raise(v, wanted, RAISE_BAND)


def worth_a_raise(v: View, wanted: int, band: float) -> int:
    """The wanted cap where it is a whole sequence and the share `band` above the present one; else that."""
    return wanted if wanted >= max(v.cap + 1, math.ceil((1.0 + band) * v.cap)) else v.cap


def raised(v: View, wanted: int) -> tuple[Verdict, int]:
    """Room under the objective, and requests waiting for it."""
    evidence = {"cap": v.cap, "wanted": wanted}
    if wanted <= v.cap:
        return said("Raise", False, "the cap is as high as the objective and memory allow", evidence), v.cap
    if _had_before(v, wanted):
        cap = min(wanted, v.before_kv or wanted)
        return said("Raise", True, "the KV cache holds more again than when it cut the cap", evidence), cap
    if held := _raise_held(v):
        return said("Raise", False, held, evidence), v.cap
    far = wanted >= FAR_FACTOR * v.cap
    cap = min(wanted, max(v.cap + 1, math.floor((FAR_FACTOR if far else RAISE_FACTOR) * v.cap)))
    return said("Raise", True, "room under the objective while requests wait", evidence), cap


def _had_before(v: View, wanted: int) -> bool:
    """Whether the KV ceiling cut the cap on a forecast that has turned out far too low.

    Such a cap was run with before, so nothing has to be tried, and a drain on its account is of no use.
    """
    far = min(wanted, v.before_kv or 0) >= math.ceil(RAISE_FACTOR * v.cap)
    settled = v.now - v.cut_at >= 2.0 * v.tick_s - 1e-6
    proven_wrong = v.patience_s > FORECAST_PATIENCE_S and v.now - v.cut_at < v.patience_s
    return far and settled and not proven_wrong and v.limited and not v.preempted


def _raise_held(v: View) -> str:
    """Why no raise may be tried now; empty when it may."""
    if v.preempted:
        return "preemptions were seen lately"
    if v.draining:
        return "an earlier cut is still draining"
    if v.now - v.changed_at < 2.0 * v.tick_s - 1e-6:
        return "the last change has not settled"
    if v.now - v.cut_at < v.patience_s and not v.calmer:
        return "the last raise had to be taken back, so the next one waits"
    if not v.limited:
        return "the cap does not hold anything back"
    return ""


def has_shifted(v: View) -> bool:
    """Whether the last seconds contradict the older evidence: another latency at the same batch, or another
    load.
    """
    history = v.history
    if v.predictor is None or len(history.recent) < 3:
        return False
    if sum(r.seconds for r in history.archive) < RECENT_S:
        return False  # what is older than the newest seconds has to be as much
    if changed_load(history, v.prompt_cv):
        return True
    a, b = (_seen(v, v.predictor, records) for records in (history.recent, history.archive))
    return abs(a.ratio - b.ratio) > 4.0 * math.hypot(a.error, b.error) + 0.05


def _seen(v: View, p: Predictor, records: Sequence[Record]) -> Figure:
    """What these records say of the present: of its batch or, where the budget goes with the batch and the
    contexts, of the plan.
    """
    if v.budget is None or p.quantile is None:
        return p.over(records).figure(v.history.recent[-1].batch)
    return joint.figure_of_plan(p, records, joint.FIRST_TAIL if v.tail is None else v.tail)
