"""Figures as people read them."""

from __future__ import annotations

import math
from dataclasses import replace

from llamaserver.control.objective import MARGIN, Predictor
from llamaserver.control.types import Setpoint


def ms(seconds: float) -> float:
    """Milliseconds with three significant digits or so."""
    value = 1000.0 * seconds
    return round(value, 1) if value < 100.0 else round(value)


def ms_at_least(seconds: float) -> float:
    """Milliseconds, rounded up: for a figure that is advised as a target."""
    return math.ceil(10_000.0 * seconds - 1e-6) / 10.0


def in_words(setpoint: Setpoint) -> str:
    """What an engine should run with, as the end of a sentence."""
    budget = setpoint.max_num_scheduled_tokens
    beside = "" if budget is None else f", with {budget} tokens a step"
    return f"cap is {setpoint.max_num_active_seqs}{beside}"


def others_have(replicas: int) -> str:
    """So many replicas beside those in question have something, as the middle of a sentence."""
    return "another replica has" if replicas == 1 else f"{replicas} other replicas have"


def reachable_s(predictor: Predictor, low: int) -> float:
    """The smallest target that `low` sequences would hold, with the usual aim. Seconds."""
    least, most = predictor.target_s, predictor.target_s
    for _ in range(24):
        if _holds(predictor, low, most):
            break
        most *= 1.5
    for _ in range(24):
        middle = (least + most) / 2.0
        least, most = (least, middle) if _holds(predictor, low, middle) else (middle, most)
    return most


def _holds(p: Predictor, low: int, target_s: float) -> bool:
    moved = replace(p, target_s=target_s)
    margin = MARGIN if p.quantile is not None else 1.0
    return moved.figure(low, margin=margin).ratio <= moved.aim()
