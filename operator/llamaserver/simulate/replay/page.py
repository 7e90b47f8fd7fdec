"""A replay as one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from llamaserver.simulate.outcome import Moment
from llamaserver.simulate.replay.history import Interval
from llamaserver.simulate.replay.replay import Replay
from llamaserver.simulate.replay.report import HEAD, ROWS, decided, head, reading, rows, trust
from llamaserver.simulate.report.chart import Line, lines, over
from llamaserver.simulate.report.data import measure
from llamaserver.simulate.report.page import BAD, CSS, plant

COLOURS = dict(zip(ROWS, ("#8b929c", "#d0552b", "#0f7c8f"), strict=True))
MOST_POINTS = 1500
"""A line has no more: a screen shows no more."""


def page(r: Replay) -> str:
    """The whole page."""
    first, second = head(r).split("\n")
    marked = "" if r.trusted else ' class="bad"'
    objective = r.question.objective
    parts = [
        f"<h1>{escape(first)}</h1>",
        f'<p class="quiet">{escape(second)}</p>',
        f'<div class="card">{_table(r)}</div>',
        f'<p class="quiet">{escape(reading(r))}</p>',
        f"<p{marked}>{escape(trust(r))}</p>",
        *(f"<p>{escape(sentence)}</p>" for sentence in decided(r)),
        f"<h2>{escape(measure(objective))}</h2>",
        _latency(r),
        "<h2>Requests</h2>",
        _legend(),
        _card(_arrivals(r), "Requests that came", "requests per second"),
        _card(_course(r, _in_hand, _now), "In hand", "running and waiting"),
        "<h2>What the law would have decided</h2>",
        _card(_replicas(r), "Replicas", "replicas"),
        _card([_moments(r, lambda m: m.cap)[-1]], "Cap", "cap, sequences a replica"),
        _card([_moments(r, lambda m: m.budget)[-1]], "Prefill budget", "tokens a step", log=True),
        "<h2>What this history cannot tell</h2>",
        f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in r.limits)}</ul>",
        "<h2>The plant</h2>",
        f"<p>{escape(plant(r.question.calibrated))}</p>",
        f"<ul>{''.join(f'<li>Assumed: {escape(what)}.</li>' for what in r.question.assumed)}</ul>",
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>llamaserver replay: {escape(r.demand.name)}</title><style>{CSS}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _table(r: Replay) -> str:
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in HEAD)
    body = []
    for row in rows(r):
        first = f'<span class="key" style="background:{COLOURS[row[0]]}"></span>{escape(row[0])}'
        rest = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        body.append(f"<tr><td>{first}</td>{rest}</tr>")
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _legend() -> str:
    keys = "".join(
        f'<span><i class="key" style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in COLOURS.items()
    )
    return f'<p class="legend">{keys}</p>'


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return points[:: max(1, math.ceil(len(points) / MOST_POINTS))]


def _latency(r: Replay) -> str:
    """The history between its edges, and what the plant makes of it, one panel each with the same axis."""
    target = r.question.objective.itl_s
    steps = [s for s in r.was.steps if math.isfinite(s.statistic[0])]
    upper = [(s.at, 1e3 * s.statistic[1]) for s in steps if math.isfinite(s.statistic[1])]
    lower = [(s.at, 1e3 * s.statistic[0]) for s in steps]
    panels = [
        (
            ROWS[0],
            [Line("at most", COLOURS[ROWS[0]], _thin(upper)), Line("at least", "#b9bfc8", _thin(lower))],
        )
    ]
    for name, traced in ((ROWS[1], r.as_it_was), (ROWS[2], r.law)):
        points = [(t, 1e3 * v) for t, v in traced.windows]
        panels.append((name, [Line(name, COLOURS[name], _thin(points))]))
    values = [v for _, some in panels for line in some for _, v in line.points if v > 0.0]
    if not values:
        return "<p>No token was made.</p>"
    values += [1e3 * target] if target else []
    y = over(values, 0.0, 1.0, log=max(values) / min(values) > 6)
    made = []
    for name, some in panels:
        chart = lines(
            some,
            label=f"Latency of {name}",
            unit="ms",
            size=(540, 190),
            y=y,
            limit=1e3 * target if target else None,
            missed=BAD if name != ROWS[0] else "",
        )
        about = ": at most, and at least" if name == ROWS[0] else ""
        made.append(f'<div class="card"><h3>{escape(name + about)}</h3>{chart}</div>')
    return f'<div class="panels">{"".join(made)}</div>'


def _card(series: list[Line], label: str, unit: str, *, log: bool = False) -> str:
    values = [v for line in series for _, v in line.points]
    chart = lines(series, label=f"{label} over time", unit=unit, y=over(values, 0.0, 1.0, log=log))
    return f'<div class="card">{chart}</div>'


def _by_step(r: Replay, value: Callable[[Interval], float]) -> list[tuple[float, float]]:
    """A sum over replicas in each step of the history."""
    sums: dict[int, float] = {}
    for interval in r.history.intervals:
        sums[interval.step] = sums.get(interval.step, 0.0) + value(interval)
    return _thin([(step * r.history.step_s, v) for step, v in sorted(sums.items())])


def _arrivals(r: Replay) -> list[Line]:
    points = _by_step(r, lambda i: max(0.0, i.came) / i.seconds if i.seconds > 0.0 else 0.0)
    return [Line(ROWS[0], COLOURS[ROWS[0]], points)]


def _in_hand(i: Interval) -> float:
    return i.running[1] + i.waiting[1]


def _now(m: Moment) -> float:
    return m.running + m.waiting


def _course(r: Replay, was: Callable[[Interval], float], ran: Callable[[Moment], float]) -> list[Line]:
    return [Line(ROWS[0], COLOURS[ROWS[0]], _by_step(r, was)), *_moments(r, ran)]


def _moments(r: Replay, value: Callable[[Moment], float]) -> list[Line]:
    return [
        Line(name, COLOURS[name], _thin([(m.at, value(m)) for m in traced.moments]), steps=True)
        for name, traced in ((ROWS[1], r.as_it_was), (ROWS[2], r.law))
    ]


def _replicas(r: Replay) -> list[Line]:
    points = [((k + 1) * r.history.step_s, float(n)) for k, n in enumerate(r.serving)]
    return [
        Line(ROWS[0], COLOURS[ROWS[0]], points, steps=True),
        _moments(r, lambda m: m.replicas)[-1],
    ]
