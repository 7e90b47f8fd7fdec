"""The frontier of a scenario as a picture. Pure."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.table import policies
from demo.plot import AUTO, INK, OFF, QUIET, STYLE, TARGET

Json = dict[str, Any]
PAIRS = "#8c6bb1"
ROOM = 1.1
"""How far the axes reach beyond the fixed settings."""
MARKS = ("*", "P", "X", "D")
NAMED = {
    "default": ("default", OFF, "s"),
    "best_cap": ("best cap", QUIET, "o"),
    "best_pair": ("best pair", PAIRS, "o"),
}


def frontier(scenario: Json) -> Figure:
    """Tokens a second over the tail between two tokens: fixed caps, fixed pairs, the default, ours."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.8), layout="constrained")
        axes = figure.subplots()
        _fixed(axes, scenario)
        _policies(axes, scenario)
        target = scenario["target_ms"]
        if target is not None:
            axes.axvline(target, color=TARGET, linestyle=(0, (5, 3)), linewidth=1.4, zorder=2)
            axes.annotate(
                f" objective {target:g} ms",
                (target, 0.02),
                xycoords=("data", "axes fraction"),
                fontsize=9,
            )
        statistic = scenario["objective"]["statistic"]
        axes.set_xlabel(f"inter-token latency {statistic} as clients see it, ms; of the worst part")
        axes.set_ylabel("tokens per second")
        points = scenario["sweep"]
        axes.set_xlim(0, ROOM * max(point["worst_tail_ms"] for point in points))
        axes.set_ylim(0, ROOM * max(point["tokens_per_s"] for point in points))
        axes.legend(loc="lower right", fontsize=9, markerscale=0.8)
        return figure


def _fixed(axes: Axes, scenario: Json) -> None:
    caps = [point for point in scenario["sweep"] if point["budget_at_start"]]
    pairs = [point for point in scenario["sweep"] if not point["budget_at_start"]]
    if caps:
        axes.plot(
            [p["worst_tail_ms"] for p in caps],
            [p["tokens_per_s"] for p in caps],
            "o-",
            color=QUIET,
            markersize=5,
            linewidth=1.2,
            label="fixed caps, budget as started",
        )
    if pairs:
        axes.plot(
            [p["worst_tail_ms"] for p in pairs],
            [p["tokens_per_s"] for p in pairs],
            "o",
            color=PAIRS,
            markersize=5,
            label="fixed pairs of cap and budget",
        )
    for point in caps + pairs:
        text = f"{point['cap']}" if point["budget_at_start"] else f"{point['cap']}/{point['budget']}"
        axes.annotate(
            text,
            (point["worst_tail_ms"], point["tokens_per_s"]),
            xytext=(4, -9),
            textcoords="offset points",
            fontsize=7.5,
            color=INK,
            alpha=0.75,
        )


def _policies(axes: Axes, scenario: Json) -> None:
    marks = iter(MARKS * 4)
    for name in policies(scenario):
        policy = scenario[name]
        if policy is None:
            continue
        label, colour, mark = NAMED.get(name) or (name, AUTO, next(marks))
        hollow = name.startswith("best_")
        x, y = policy["worst_tail_ms"], policy["tokens_per_s"]
        axes.errorbar(
            x,
            y,
            xerr=_reach(x, policy["spread"]["worst_tail_ms"]),
            yerr=_reach(y, policy["spread"]["tokens_per_s"]),
            fmt=mark,
            color=colour,
            ecolor=colour,
            elinewidth=1,
            markersize=18 if mark == "*" else 12 if hollow else 9,
            markerfacecolor="none" if hollow else colour,
            markeredgewidth=1.8 if hollow else 0.8,
            markeredgecolor=colour if hollow else "white",
            label=label,
            zorder=5,
        )


def _reach(middle: float, ends: list[float]) -> list[list[float]]:
    """From the median to the lowest and the highest repeat."""
    return [[max(0.0, middle - ends[0])], [max(0.0, ends[1] - middle)]]
