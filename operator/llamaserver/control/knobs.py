"""The fast loop: one engine pod, one tick; its cap and, where that helps, its prefill budget.

`move` chooses between the cap alone (`control/cap.py`) and both knobs together, whose resting point
`control/joint.py` computes. The rules here say how to get there: bounds and memory first, then a cut where
prefill would starve, a raise where it is at ease, and every time the budget that goes with the cap.
"""

from __future__ import annotations

import math
from dataclasses import replace

from llamaserver.control import joint
from llamaserver.control.cap import (
    DISTURBED_CUT,
    Move,
    View,
    has_shifted,
    move_alone,
    raised,
    said,
    wanted_seqs,
    within_bounds,
    within_memory,
    worth_a_raise,
)
from llamaserver.control.objective import Predictor
from llamaserver.control.types import Setpoint, Verdict

WORTH_IT = 1.1
"""The budget is moved where that makes room for so many times the sequences of a cap alone."""
ADVICE_BAND = 0.15
"""Relative difference of cap or budget below which a new advice is none."""
RARE = 0.5
"""The budget is given back where prompts would be met by less than this share of the tokens that may be late.
"""
SHARES_BAND = 0.1
"""A cap so much above what fits only lets prompts wait inside the engine for their share of the budget rather
than before it, which is no reason to hunt.
"""
FLOOR_BAND = 0.02
"""The same where not even the smallest chunk fits: there no budget can make a step shorter, only the cap."""
JOINT_RAISE_BAND = 0.08
"""Relative room below which the cap is not raised: less than that the budget gives to prefill."""
BUDGET_BAND, LOWER_BAND = 0.03, 0.01
"""A higher and a lower budget that move a full step by less than this share of its duration wait. A step that
is longer than planned has no more than the margin to spare.
"""


def move(v: View) -> Move:
    """Both knobs, or the cap alone."""
    return _move_together(v) if together(v) else move_alone(v)


def together(v: View) -> bool:
    """Whether cap and prefill budget are chosen together: for a tail, and once both prices are known.

    A mean does not care how prefill is spread, and a median is best served by steps without any. The tail of
    requests are the short answers that came where prompts were thick; they gain where prefill is spread.
    """
    p = v.predictor
    if not v.acting or p is None or not v.of_tail or v.budgets is None:
        return False
    # Rare also forbids to begin: what was measured under small chunks would promise a gain again at once.
    return not v.rare and (v.budget is not None or _gains(v, p))


def advised(v: View, before: Setpoint | None) -> Setpoint | None:
    """Where both knobs would begin, for an engine that is only looked at; None where a cap alone does as well
    or what a chunk of prefill costs is not known. `before` stays while the two are much the same.
    """
    p = v.predictor
    if p is None or not v.of_tail or v.budgets is None:
        return None
    if v.rare or not _gains(v, p):
        return None
    plan = _plan(v, p, _first_tail(v))
    cap = _fitting(v, plan, joint.REST_ROOM)
    found = Setpoint(cap, v.budgets.of(cap, plan.chunk(cap)))
    return before if before is not None and _alike(before, found) else found


def _alike(a: Setpoint, b: Setpoint) -> bool:
    pairs = (
        (a.max_num_active_seqs, b.max_num_active_seqs),
        (a.max_num_scheduled_tokens, b.max_num_scheduled_tokens),
    )
    return all(x and y and abs(x - y) <= ADVICE_BAND * x for x, y in pairs)


def rare(cap: int, output: float | None, quantile: float, steps: float = 1.0) -> bool:
    """Whether a percentile would hardly see prompts that are prefilled whole, in as few steps as they take.

    `output` is the mean number of tokens that a request generates: beside `cap` sequences a step in
    output/cap brings a new prompt, which takes `steps` of them (1 for one that fits into the start budget).
    """
    return output is not None and steps * cap <= RARE * (1.0 - quantile) * output


def _gains(v: View, p: Predictor) -> bool:
    """Whether the budget would make room for more sequences than a cap alone.

    Not where prefill is so rare that the percentile never sees it: there a whole prompt in one step is best.
    """
    if v.of_requests and not v.answered:
        return False  # by what is only believed of short answers it would always be worth it
    chunks = [r.chunk for r in p.records if r.chunk > 0.0]
    if v.model is None or not chunks or not joint.known(v.model, max(chunks)):
        return False
    plan = _plan(v, p, _first_tail(v))
    return _fitting(v, plan, joint.RAISE_ROOM) >= WORTH_IT * wanted_seqs(v, p)


def _move_together(v: View) -> Move:
    """Cap and budget by `control/joint.py`; bounds and memory come first, as always.

    The budget answers to the contexts of the moment, the cap to those that are usual: who runs just now is
    chance, and changes sooner than a cap should.
    """
    assert v.model is not None
    assert v.predictor is not None
    assert v.budgets is not None
    shifted = v.budget is None or has_shifted(v)
    tail = _first_tail(v) if v.budget is None else _tail(v, v.predictor)
    plan = replace(_plan(v, v.predictor, tail), context=_grown(v))
    usual = replace(plan, context=v.usual_context)
    wanted = _fitting(v, usual, joint.RAISE_ROOM)
    higher = worth_a_raise(v, wanted, JOINT_RAISE_BAND)
    trail: list[Verdict] = []
    verdict, cap = within_bounds(v)
    for rule in (
        within_memory,
        lambda view: _starved(view, plan, usual),
        lambda view: raised(view, higher),
    ):
        if verdict.fired:
            break
        trail.append(verdict)
        verdict, cap = rule(v)
    trail.append(verdict)
    best = min(wanted, higher) if verdict.rule in ("Shares", "Raise") else cap
    verdict, budget = _budget(v, plan, cap, tail)
    return Move(cap, (*trail, verdict), best, shifted, budget, tail)


def _first_tail(v: View) -> float:
    """The tail before the budget was moved."""
    return 1.0 if v.of_requests else joint.FIRST_TAIL


def _tail(v: View, p: Predictor) -> float:
    if v.of_requests:
        return joint.tail_of_requests(p, v.history)
    return joint.learned_tail(v.tail, p, v.history)


def _plan(v: View, p: Predictor, tail: float) -> joint.Plan:
    assert v.model is not None
    assert v.budgets is not None
    step_s = joint.planned_s(p.kappa * p.target_s, tail, v.of_requests)
    return joint.Plan(v.model, v.context, v.prefill, step_s, v.budgets.least_chunk)


def _grown(v: View) -> float:
    """Resident tokens per sequence, where growth is believed at once: by what a mean over seconds lags,
    steps are too long.
    """
    return max([v.context, *(r.context for r in v.history.recent[-1:])])


def _fitting(v: View, plan: joint.Plan, room: float) -> int:
    most = v.high if v.kv is None else max(v.low, min(v.high, math.floor(v.kv)))
    return plan.sequences(v.low, most, room)


def _starved(v: View, plan: joint.Plan, usual: joint.Plan) -> tuple[Verdict, int]:
    """Beside the cap's decodes the target leaves less time for prefill than steady work needs."""
    evidence: dict[str, float | int | str] = {
        "cap": v.cap,
        "chunk": round(plan.chunk(v.cap), 1),
        "needed": round(plan.need(v.cap), 1),
        "step_ms": round(1e3 * plan.step_s, 1),
    }
    if v.history.recent and v.history.recent[-1].at <= v.changed_at:
        return said("Shares", False, "nothing was measured since the last change", evidence), v.cap
    shared = (1.0 + SHARES_BAND) * _fitting(v, usual, joint.CUT_ROOM)
    if v.cap <= max(v.low, min(shared, (1.0 + FLOOR_BAND) * plan.beside(plan.least_chunk))):
        return said(
            "Shares", False, "prefill fits beside the cap's decodes under the target", evidence
        ), v.cap
    rest = min(_fitting(v, usual, joint.REST_ROOM), math.floor(plan.beside(plan.least_chunk)))
    wanted = max(rest, _undisturbed(v, evidence))
    if wanted >= v.cap:
        return said("Shares", False, "disturbed: fewer sequences would not help", evidence), v.cap
    if v.draining and wanted >= 0.8 * v.cap:
        return said("Shares", False, "an earlier cut is still draining", evidence), v.cap
    evidence["wanted"] = wanted
    reason = "beside this cap's decodes the target leaves too little time for prefill"
    return said("Shares", True, reason, evidence), wanted


def _undisturbed(v: View, evidence: dict[str, float | int | str]) -> int:
    """How far a cut may go at most, by what the model alone would allow; noted in the evidence where neither
    batch nor prefill explains the tail.
    """
    assert v.predictor is not None
    found = v.predictor.undisturbed(v.low, v.high)
    if found is None:
        return v.low
    if v.predictor.from_prefill() < 0.5:
        evidence["undisturbed"] = found
    return max(v.low, math.ceil(DISTURBED_CUT * found))


def _budget(v: View, plan: joint.Plan, cap: int, tail: float) -> tuple[Verdict, int]:
    """The budget that leaves prefill what the target leaves beside the decodes; small differences wait.

    While a lowered cap drains, these are the decodes of all that run: the engine gives every one its token.
    """
    assert v.budgets is not None
    budget = v.budgets.of(cap, plan.chunk(max(cap, v.running)))
    before = v.budgets.start if v.budget is None else v.budget
    evidence: dict[str, float | int | str] = {
        "budget": before,
        "wanted": budget,
        "step_ms": 1e3 * plan.step_s,
        "tail": round(tail, 2),
    }
    old, new = v.budgets.chunk(cap, before), v.budgets.chunk(cap, budget)
    band = BUDGET_BAND if new > old else LOWER_BAND
    small = abs(new - old) * plan.model.d_s <= band * plan.step_s
    if cap == v.cap and v.budget is not None and small:
        return said("Budget", False, "prefill has what the target leaves it", evidence), before
    fired = budget != before
    return said("Budget", fired, "prefill gets what the target leaves beside the decodes", evidence), budget
