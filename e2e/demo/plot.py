"""The report's pictures, as SVG and PNG. Pure: from readings to bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from demo.evaluate import SETTLE_S
from demo.recording import Reading, Span, between, window, windows

SLIDE_S = 5.0
"""Width of the sliding window of the drawn lines; the dots are the judged windows."""
BIN_S = 5.0
OFF, AUTO, TARGET, INK, QUIET = "#c4512d", "#1f6f8b", "#222222", "#333333", "#8a8f98"
GOOD, BAD = "#2e7d4f", "#b3261e"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a6",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "legend.frameon": False,
    "svg.hashsalt": "llamaserver",
}


@dataclass(frozen=True)
class RunTrace:
    """What is drawn of one run of the overload."""

    mode: str
    readings: Sequence[Reading]
    span: Span


def _slide(readings: Sequence[Reading], span: Span, statistic: str) -> tuple[list[float], list[float]]:
    """The statistic over the last SLIDE_S seconds, once a second, in milliseconds."""
    times, values = [], []
    for second in range(int(SLIDE_S), int(span.end - span.start) + 1):
        found = window(readings, span.start + second - SLIDE_S, span.start + second)
        value = found.itl.statistic(statistic) if found is not None else None
        if value is not None:
            times.append(float(second))
            values.append(1e3 * value)
    return times, values


def _draw_latency(axes: Axes, run: RunTrace, statistic: str, target_s: float, colour: str) -> None:
    axes.axvspan(0, SETTLE_S, color="#f2f3f5", zorder=0)
    axes.plot(
        *_slide(run.readings, run.span, statistic), color=colour, linewidth=2, label=f"{statistic}, last 5 s"
    )
    axes.plot(
        *_slide(run.readings, run.span, "p50"), color=colour, alpha=0.45, linewidth=1.3, label="p50, last 5 s"
    )
    for found in windows(run.readings, run.span.start + SETTLE_S, run.span.end):
        value = found.itl.statistic(statistic) if found is not None else None
        if found is not None and value is not None:
            middle = (found.start + found.end) / 2 - run.span.start
            colour_of = GOOD if value <= target_s else BAD
            axes.plot(
                middle, 1e3 * value, "o", color=colour_of, markersize=7, markeredgecolor="white", zorder=4
            )
    axes.axhline(1e3 * target_s, color=TARGET, linestyle=(0, (5, 3)), linewidth=1.4, zorder=3)


def _draw_batch(axes: Axes, run: RunTrace, colour: str) -> None:
    shown = between(run.readings, run.span.start, run.span.end)
    times = [reading.at - run.span.start for reading in shown]
    axes.fill_between(
        times, [r.waiting for r in shown], color=QUIET, alpha=0.25, linewidth=0, step="post", label="waiting"
    )
    axes.step(
        times,
        [r.running for r in shown],
        where="post",
        color=colour,
        alpha=0.6,
        linewidth=1.3,
        label="running",
    )
    axes.step(times, [r.cap for r in shown], where="post", color=INK, linewidth=2, label="cap in force")


def overload_figure(off: RunTrace, auto: RunTrace, statistic: str, target_s: float) -> Figure:
    """Off beside auto: inter-token latency against the target above, the batch and its cap below."""
    longest = max(run.span.end - run.span.start for run in (off, auto))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.4), layout="constrained")
        grid = figure.subplots(2, 2, sharex="col", sharey="row", height_ratios=[3, 2])
        for column, (run, colour) in enumerate(((off, OFF), (auto, AUTO))):
            above, below = grid[0][column], grid[1][column]
            below.axvspan(0, SETTLE_S, color="#f2f3f5", zorder=0)
            _draw_latency(above, run, statistic, target_s, colour)
            _draw_batch(below, run, colour)
            above.set_title(
                f"tuning.mode: {run.mode}", loc="left", fontsize=12, fontweight="bold", color=colour
            )
            above.legend(loc="upper right", fontsize=9, ncols=2)
            below.legend(loc="upper right", fontsize=9, ncols=3)
            below.set_xlabel("seconds since the load began")
            below.set_xlim(0, longest)
        grid[0][0].set_ylabel("inter-token latency, ms")
        grid[1][0].set_ylabel("sequences")
        top = max(
            line.get_ydata().max()
            for axes in grid[0]
            for line in axes.get_lines()
            if len(line.get_xdata()) > 2
        )
        grid[0][0].set_ylim(0, 1.22 * float(top))
        grid[1][0].set_ylim(0, 1.35 * max(r.ceiling for r in off.readings))
        for column in (0, 1):
            grid[0][column].annotate(
                f"target {1e3 * target_s:.0f} ms",
                (0.995, 1e3 * target_s),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=9,
            )
            grid[0][column].annotate(
                "settling, not judged",
                (SETTLE_S / 2, 0.02),
                xycoords=("data", "axes fraction"),
                ha="center",
                fontsize=8,
                color=QUIET,
            )
        return figure


def _draw_preemptions(axes: Axes, run: RunTrace, colour: str) -> None:
    for i in range(int((run.span.end - run.span.start) / BIN_S)):
        left = run.span.start + i * BIN_S
        found = window(run.readings, left, left + BIN_S)
        if found is not None:
            axes.bar(i * BIN_S, found.preemptions, BIN_S * 0.9, align="edge", color=colour)


def kv_figure(off: RunTrace, auto: RunTrace) -> Figure:
    """A short KV cache, off beside auto: preemptions above, how much runs and how full the cache is below."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 5), layout="constrained")
        grid = figure.subplots(3, 2, sharex="col", sharey="row", height_ratios=[3, 2, 1.4])
        for column, (run, colour) in enumerate(((off, OFF), (auto, AUTO))):
            above, middle, below = (grid[row][column] for row in range(3))
            _draw_preemptions(above, run, colour)
            _draw_batch(middle, run, colour)
            shown = between(run.readings, run.span.start, run.span.end)
            times = [r.at - run.span.start for r in shown]
            below.fill_between(
                times, [100 * r.kv_usage for r in shown], color=colour, alpha=0.35, linewidth=0
            )
            above.set_title(
                f"tuning.mode: {run.mode}", loc="left", fontsize=12, fontweight="bold", color=colour
            )
            middle.legend(loc="upper right", fontsize=9, ncols=3)
            below.set_xlabel("seconds since the load began")
            below.set_xlim(0, run.span.end - run.span.start)
        above, middle, below = (grid[row][0] for row in range(3))
        above.set_ylabel("preemptions in 5 s")
        above.yaxis.set_major_locator(MaxNLocator(integer=True))
        middle.set_ylabel("sequences")
        middle.set_ylim(0, 1.5 * max(r.ceiling for r in off.readings))
        below.set_ylabel("KV cache, %")
        below.set_ylim(0, 105)
        below.set_yticks([0, 50, 100])
        return figure


def svg(figure: Figure) -> str:
    """The figure as an <svg> element, without the XML prologue."""
    out = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def png(figure: Figure) -> bytes:
    """The figure as a picture for documents."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()
