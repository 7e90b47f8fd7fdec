"""Charts as SVG that takes its colours from the page. Pure: numbers in, text out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
LEFT, RIGHT, TOP, BOTTOM = 58.0, 14.0, 10.0, 34.0
LETTER = 7.2
"""About the width of a letter."""


@dataclass(frozen=True)
class Line:
    """One series: a line through its points, or steps from one to the next."""

    name: str
    colour: str
    points: Sequence[Point]
    steps: bool = False
    width: float = 1.8


@dataclass(frozen=True)
class Dot:
    """One point with its name beside it."""

    name: str
    colour: str
    at: Point
    strong: bool = False


@dataclass(frozen=True)
class Scale:
    """From values to places along one axis; log where values spread too far for a straight one."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, v = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, v = math.log(low), math.log(high), math.log(v)
        return self.start + (self.end - self.start) * (v - low) / (high - low)

    def ticks(self, wanted: int) -> list[float]:
        """Round values inside of the axis."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [m * 10.0**e for e in decades for m in (1, 2, 5)]
        else:
            step = _round_step((self.high - self.low) / wanted)
            first = math.ceil(self.low / step - 1e-9)
            values = [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [v for v in values if self.low - 1e-12 <= v <= self.high * (1 + 1e-9)]


def _round_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))


def over(values: Iterable[float], start: float, end: float, *, log: bool = False, zero: bool = True) -> Scale:
    """A scale that holds all values, with a little room above."""
    known = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if log and low > 0.0:
        return Scale(low / 1.15, max(high, 1.2 * low) * 1.15, start, end, log=True)
    low = 0.0 if zero else low
    return Scale(low, low + max(1e-9, high - low) * 1.06, start, end)


def lines(
    series: Sequence[Line],
    *,
    label: str,
    unit: str,
    size: tuple[float, float] = (1100, 240),
    y: Scale | None = None,
    limit: float | None = None,
    missed: str = "",
) -> str:
    """Series over time in seconds. `limit` is a dashed line; with `missed` points above it are marked in that
    colour.
    """
    width, height = size
    times = [t for line in series for t, _ in line.points]
    x = Scale(0.0, max(times, default=1.0), LEFT, width - RIGHT)
    values = [v for line in series for _, v in line.points] + ([limit] if limit is not None else [])
    known = over(values, 0.0, 1.0) if y is None else y
    y = Scale(known.low, known.high, height - BOTTOM, TOP, known.log)
    parts = [_frame(x, y, size, "time, s", unit)]
    if limit is not None:
        parts.append(_limit(x, y(limit)))
    for line in series:
        parts.append(_path(line, x, y))
        if missed and limit is not None:
            parts += [_mark(x(t), y(v), missed if v > limit else line.colour) for t, v in line.points]
    return _svg(size, label, parts)


def scatter(
    dots: Sequence[Dot],
    *,
    label: str,
    units: tuple[str, str],
    limit: float | None,
    size: tuple[float, float] = (1100, 330),
) -> str:
    """Named points; `limit` is a vertical line."""
    width, height = size
    xs = [d.at[0] for d in dots] + ([limit] if limit is not None else [])
    spread = max(xs) / max(1e-9, min(xs)) > 6
    x = over(xs, LEFT, width - 130, log=spread)
    y = over([d.at[1] for d in dots], height - BOTTOM, TOP)
    parts = [_frame(x, y, size, *units)]
    if limit is not None:
        parts.append(
            f'<line class="limit" x1="{x(limit):.1f}" x2="{x(limit):.1f}" y1="{y.start}" y2="{y.end}"/>'
        )
    places = [(x(dot.at[0]), y(dot.at[1])) for dot in dots]
    taken = [_Box(px - 8, py - 8, px + 8, py + 8) for px, py in places]
    if limit is not None:
        taken.append(_Box(x(limit) - 3, TOP, x(limit) + 3, height))
    for dot, (px, py) in sorted(zip(dots, places, strict=True), key=lambda pair: not pair[0].strong):
        box, anchor = _beside(px, py, LETTER * len(dot.name), taken)
        taken.append(box)
        start = box.left if anchor == "start" else box.right
        middle = (box.top + box.bottom) / 2
        if abs(middle - py) > 1:  # a name that stands further off is tied to its point
            parts.append(
                f'<line x1="{px:.1f}" y1="{py:.1f}" x2="{start:.1f}" y2="{middle:.1f}" '
                f'stroke="{dot.colour}" stroke-width="1"/>'
            )
        weight = ' font-weight="700"' if dot.strong else ""
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{7 if dot.strong else 5}" fill="{dot.colour}"/>'
            f'<text x="{start:.1f}" y="{box.bottom - 3:.1f}" text-anchor="{anchor}"{weight}>'
            f"{escape(dot.name)}</text>"
        )
    return _svg(size, label, parts)


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def _beside(px: float, py: float, width: float, taken: Sequence[_Box]) -> tuple[_Box, str]:
    """Where a name stands free beside its point: to the right, to the left, then further off."""
    for shift in (0, 15, -15, 30, -30, 45, -45, 60, -60):
        top, bottom = py - 7 + shift, py + 7 + shift
        right, left = px + 11, px - 11
        for box, anchor in (
            (_Box(right, top, right + width, bottom), "start"),
            (_Box(left - width, top, left, bottom), "end"),
        ):
            if box.left > LEFT and not any(box.meets(other) for other in taken):
                return box, anchor
    return _Box(right, py - 7, right + width, py + 7), "start"


def _mark(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>'


def _svg(size: tuple[float, float], label: str, parts: Iterable[str]) -> str:
    width, height = size
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _frame(x: Scale, y: Scale, size: tuple[float, float], x_unit: str, y_unit: str) -> str:
    width, height = size
    parts = []
    for v in y.ticks(5):
        py = y(v)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT:g}" y1="{py:.1f}" y2="{py:.1f}"/>')
        parts.append(f'<text x="{LEFT - 7:g}" y="{py + 4:.1f}" text-anchor="end">{v:g}</text>')
    for v in x.ticks(max(3, int(width / 140))):
        px = x(v)
        parts.append(
            f'<line class="grid" x1="{px:.1f}" x2="{px:.1f}" y1="{y.end:g}" y2="{y.start:g}"/>'
            f'<text x="{px:.1f}" y="{height - BOTTOM + 16:g}" text-anchor="middle">{v:g}</text>'
        )
    at = f'x="{width - RIGHT:g}" y="{height - 3:g}"'
    parts.append(f'<text class="unit" {at} text-anchor="end">{escape(x_unit)}</text>')
    middle = (y.start + y.end) / 2
    parts.append(
        f'<text class="unit" transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_unit)}</text>"
    )
    return "".join(parts)


def _limit(x: Scale, at: float) -> str:
    return f'<line class="limit" x1="{x.start:g}" x2="{x.end:g}" y1="{at:.1f}" y2="{at:.1f}"/>'


def _path(line: Line, x: Scale, y: Scale) -> str:
    """A line without the points that lie on the way between their neighbours at the same height."""
    drawn: list[str] = []
    before: Point | None = None
    for i, (t, v) in enumerate(line.points):
        last = i == len(line.points) - 1
        if line.steps and before is not None:
            if v == before[1] and not last:
                continue
            drawn.append(f"{x(t):.1f},{y(before[1]):.1f}")
        drawn.append(f"{x(t):.1f},{y(v):.1f}")
        before = (t, v)
    return (
        f'<polyline fill="none" stroke="{line.colour}" stroke-width="{line.width:g}" '
        f'stroke-linejoin="round" points="{" ".join(drawn)}"><title>{escape(line.name)}</title></polyline>'
    )
