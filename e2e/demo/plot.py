"""The report's pictures, as SVG and PNG. Pure: from readings to bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from demo.evaluate import SETTLE_S
from demo.recording import Reading, Span, between, window, windows

SLIDE_S = 5.0
"""Width of the sliding window of the drawn lines; the dots are the judged windows."""
BIN_S = 5.0
OFF, CAP_ALONE, AUTO = "#c4512d", "#7d5ba6", "#1f6f8b"
TARGET, INK, QUIET = "#222222", "#333333", "#8a8f98"
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
    """What is drawn of one run."""

    title: str
    note: str
    """What the resource says, beside the title."""
    colour: str
    readings: Sequence[Reading]
    span: Span

    @property
    def shown(self) -> list[Reading]:
        """The readings of the run itself."""
        return between(self.readings, self.span.start, self.span.end)

    @property
    def seconds(self) -> float:
        return self.span.end - self.span.start


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


def _draw_latency(axes: Axes, run: RunTrace, statistic: str, target_s: float) -> float:
    """Draw it; the highest value once settled, in milliseconds."""
    top = 1e3 * target_s
    for name, width, alpha in ((statistic, 2.0, 1.0), ("p50", 1.3, 0.45)):
        times, values = _slide(run.readings, run.span, name)
        top = max([top, *(value for at, value in zip(times, values, strict=True) if at >= SETTLE_S)])
        axes.plot(
            times,
            values,
            color=run.colour,
            alpha=alpha,
            linewidth=width,
            label=f"{name}, last {SLIDE_S:.0f} s",
        )
    for found in windows(run.readings, run.span.start + SETTLE_S, run.span.end):
        value = found.itl.statistic(statistic) if found is not None else None
        if found is not None and value is not None:
            middle = (found.start + found.end) / 2 - run.span.start
            colour = GOOD if value <= target_s else BAD
            axes.plot(middle, 1e3 * value, "o", color=colour, markersize=7, markeredgecolor="white", zorder=4)
    axes.axhline(1e3 * target_s, color=TARGET, linestyle=(0, (5, 3)), linewidth=1.4, zorder=3)
    return top


def _draw_batch(axes: Axes, run: RunTrace) -> None:
    shown = run.shown
    times = [reading.at - run.span.start for reading in shown]
    waiting, running = [r.waiting for r in shown], [r.running for r in shown]
    axes.fill_between(times, waiting, color=QUIET, alpha=0.25, linewidth=0, step="post", label="waiting")
    axes.step(times, running, where="post", color=run.colour, alpha=0.6, linewidth=1.3, label="running")
    axes.step(times, [r.cap for r in shown], where="post", color=INK, linewidth=2, label="cap in force")


def _draw_budget(axes: Axes, run: RunTrace) -> None:
    shown = run.shown
    times = [reading.at - run.span.start for reading in shown]
    axes.step(times, [r.budget for r in shown], where="post", color=INK, linewidth=2)
    axes.annotate(
        f"{shown[-1].budget:,}",
        (0.99, shown[-1].budget),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )


def _title(axes: Axes, run: RunTrace) -> None:
    axes.set_title(run.title, loc="left", fontsize=12, fontweight="bold", color=run.colour)
    if run.note:
        axes.set_title(run.note, loc="right", fontsize=8.5, color=QUIET)


def _draw_column(column: Sequence[Axes], run: RunTrace, statistic: str, target_s: float) -> float:
    """Draw a run; the highest latency once settled, in milliseconds."""
    latency, batch, budget = column
    for axes in column:
        axes.axvspan(0, SETTLE_S, color="#f2f3f5", zorder=0)
    top = _draw_latency(latency, run, statistic, target_s)
    _draw_batch(batch, run)
    _draw_budget(budget, run)
    _title(latency, run)
    latency.legend(loc="upper right", fontsize=9, ncols=2)
    batch.legend(loc="upper right", fontsize=9, ncols=3, columnspacing=1.2, handlelength=1.4)
    budget.set_xlabel("seconds since the load began")
    latency.annotate(
        f"target {1e3 * target_s:.0f} ms",
        (0.995, 1e3 * target_s),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=9,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        zorder=5,
    )
    latency.annotate(
        "settling, not judged",
        (SETTLE_S / 2, 0.02),
        xycoords=("data", "axes fraction"),
        ha="center",
        fontsize=8,
        color=QUIET,
    )
    return top


def _grid(figure: Figure, columns: int) -> Any:
    """Three rows of axes: what is promised, what runs, and what it takes of a resource."""
    return figure.subplots(3, columns, sharex=True, sharey="row", height_ratios=[3, 2, 1.4], squeeze=False)


def overload_figure(runs: Sequence[RunTrace], statistic: str, target_s: float) -> Figure:
    """The runs side by side: inter-token latency against the target, the batch and its cap, the prefill
    budget.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.9 * len(runs), 8.0), layout="constrained")
        grid = figure.subplots(
            3, len(runs), sharex=True, sharey="row", height_ratios=[3, 2, 1.4], squeeze=False
        )
        tops = [
            _draw_column([row[column] for row in grid], run, statistic, target_s)
            for column, run in enumerate(runs)
        ]
        latency, batch, budget = (row[0] for row in grid)
        latency.set_ylabel("inter-token latency, ms")
        batch.set_ylabel("sequences")
        budget.set_ylabel("prefill budget,\ntokens a step")
        latency.set_xlim(0, max(run.seconds for run in runs))
        latency.set_ylim(0, 1.2 * max(tops))
        batch.set_ylim(0, 1.35 * max(r.ceiling for run in runs for r in run.readings))
        _budget_scale(budget, [r.budget for run in runs for r in run.shown])
        return figure


def _budget_scale(axes: Axes, budgets: Sequence[int]) -> None:
    """A logarithmic axis of powers of two: the budget falls by more than tenfold."""
    axes.set_yscale("log", base=2)
    axes.set_ylim(min(budgets) / 1.6, max(budgets) * 2.2)
    low, high = math.floor(math.log2(min(budgets))), math.ceil(math.log2(max(budgets)))
    axes.set_yticks([2.0**power for power in range(low, high + 1, 2)])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _draw_preemptions(axes: Axes, run: RunTrace) -> None:
    for i in range(int(run.seconds / BIN_S)):
        left = run.span.start + i * BIN_S
        found = window(run.readings, left, left + BIN_S)
        if found is not None:
            axes.bar(i * BIN_S, found.preemptions, BIN_S * 0.9, align="edge", color=run.colour)


def kv_figure(runs: Sequence[RunTrace]) -> Figure:
    """A short KV cache, the runs side by side: preemptions, how much runs, and how full the cache is."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 5), layout="constrained")
        grid = figure.subplots(
            3, len(runs), sharex=True, sharey="row", height_ratios=[3, 2, 1.4], squeeze=False
        )
        for column, run in enumerate(runs):
            preempted, batch, cache = (row[column] for row in grid)
            _draw_preemptions(preempted, run)
            _draw_batch(batch, run)
            shown = run.shown
            times = [r.at - run.span.start for r in shown]
            usage = [100 * r.kv_usage for r in shown]
            cache.fill_between(times, usage, color=run.colour, alpha=0.35, linewidth=0)
            _title(preempted, run)
            batch.legend(loc="upper right", fontsize=9, ncols=3)
            cache.set_xlabel("seconds since the load began")
        preempted, batch, cache = (row[0] for row in grid)
        preempted.set_ylabel(f"preemptions in {BIN_S:.0f} s")
        preempted.yaxis.set_major_locator(MaxNLocator(integer=True))
        preempted.set_ylim(bottom=0)
        batch.set_ylabel("sequences")
        batch.set_ylim(0, 1.5 * max(r.ceiling for run in runs for r in run.readings))
        cache.set_ylabel("KV cache, %")
        cache.set_ylim(0, 105)
        cache.set_yticks([0, 50, 100])
        cache.set_xlim(0, max(run.seconds for run in runs))
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
