"""The result of the benchmark as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from control.standing import COUNTS, DETAILS, Row, counts, details, standing
from control.standing import summary as summed
from control.targets import told as told_of
from llamaserver.simulate.outcome import SETTLE_S
from llamaserver.simulate.policies import LAW
from llamaserver.simulate.report.chart import Dot, scatter
from llamaserver.simulate.report.page import CSS, colour_of

Json = Mapping[str, Any]
COLUMNS = (
    ("violated_window_share", "missed, %", 100.0, 1),
    ("itl_p99_s", "ITL p99, ms", 1e3, 1),
    ("goodput", "goodput, tokens/s", 1.0, 0),
    ("queue_p95_s", "queue p95, s", 1.0, 1),
    ("recovery_s", "recovery, s", 1.0, 0),
    ("queue_recovery_s", "queue recovery, s", 1.0, 0),
    ("gpu_seconds", "GPU-s", 1.0, 0),
    ("cap_changes_per_min", "caps/min", 1.0, 1),
    ("cap_reversals_per_10min", "cap reversals/10 min", 1.0, 1),
    ("replica_reversals", "reversals", 1.0, 1),
    ("preemptions", "preemptions", 1.0, 0),
    ("dropped", "dropped", 1.0, 1),
    ("wrong_actions", "wrong", 1.0, 1),
)
"""Figure, title, factor, decimals."""
_BAD = ' class="bad"'
STANDING = "The law against every baseline: attainment and cost"


def cost(figures: Json, duration_s: float) -> float | None:
    """GPU-seconds for a thousand tokens made in windows that held the objective; None where none was."""
    good, gpu_s = figures["goodput"]["mean"], figures["gpu_seconds"]["mean"]
    return None if not good else 1e3 * gpu_s / (good * (duration_s - SETTLE_S))


def markdown(result: Json) -> str:
    """The same tables as text."""
    parts = []
    for name, told in result["scenarios"].items():
        rows = [
            (f"`{policy}`", *(_cell(figures.get(f, {}), factor, n) for f, _, factor, n in COLUMNS))
            for policy, figures in told.items()
            if isinstance(figures, Mapping)
        ]
        table = _lines(("policy", *(c[1] for c in COLUMNS)), rows)
        parts.append(f"## {name}: {told['says']}\n\n{table}")
        if targets := told.get("targets"):
            parts.append("\n".join(f"- {told_of(one)}" for one in targets))
    if rows := standing(result["scenarios"]):
        parts += [
            f"## {STANDING}",
            summed(rows),
            _lines(COUNTS, counts(rows)),
            _lines(DETAILS, details(rows)),
        ]
    return "\n\n".join(parts)


def _lines(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def page(result: Json) -> str:
    parts = [
        "<h1>The law beside other policies</h1>",
        '<p class="quiet">Simulated H100 with an 8B model; means and 95 % intervals over the seeds '
        f"{', '.join(map(str, result['seeds']))}; docs/benchmarks.md says what each scenario is. Missed: "
        "share of windows of 10 s in which the objective was missed. Goodput: tokens made in windows that "
        "held it. "
        "Cost: GPU-seconds for a thousand of these. Further left and further down is better.</p>",
        *(_scenario(name, told) for name, told in result["scenarios"].items()),
        _standing(standing(result["scenarios"])),
        _diagnosis(result["diagnosis"]) if "diagnosis" in result else "",
        _validity(result["validity"]) if "validity" in result else "",
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>llamaserver: control benchmarks</title><style>{CSS}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _scenario(name: str, told: Json) -> str:
    policies = {p: f for p, f in told.items() if isinstance(f, Mapping)}
    colours = {p: colour_of(p, i) for i, p in enumerate(policies)}
    dots = [
        Dot(p, colours[p], (100.0 * f["violated_window_share"]["mean"], spent), p == LAW)
        for p, f in policies.items()
        if (spent := cost(f, told["duration_s"])) is not None
        and f["violated_window_share"]["mean"] is not None
    ]
    chart = ""
    if len(dots) > 1:
        units = ("windows missed, %", "GPU-seconds for 1000 good tokens")
        label = f"{name}: cost over windows missed"
        chart = f'<div class="card">{scatter(dots, label=label, units=units, limit=None)}</div>'
    without = sorted(set(policies) - {d.name for d in dots})
    note = f"<p class='quiet'>Not drawn, no window held: {escape(', '.join(without))}.</p>" if without else ""
    return (
        f"<h2>{escape(name)}: {escape(told['says'])}</h2>{chart}{note}"
        f'<div class="card">{_table(policies, colours)}</div>{_targets(told.get("targets", ()))}'
    )


def _standing(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    tables = (_rows(COUNTS, counts(rows)), _rows(DETAILS, details(rows)))
    return (
        f"<h2>{STANDING}</h2><p class='quiet'>{escape(summed(rows))} Better is who is no worse in both and "
        "better in one; where the number of replicas stays, cost is the same for all.</p>"
        + "".join(f'<div class="card">{table}</div>' for table in tables)
    )


def _rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in HTML."""
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in body)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def _targets(found: Sequence[Json]) -> str:
    if not found:
        return ""
    items = "".join(f"<li{_BAD if one['met'] is False else ''}>{escape(told_of(one))}</li>" for one in found)
    return f"<p>What the law is to reach:</p><ul>{items}</ul>"


def _table(policies: Mapping[str, Json], colours: Mapping[str, str]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in ("policy", *(c[1] for c in COLUMNS)))
    rows = []
    for name, figures in policies.items():
        key = f'<span class="key" style="background:{colours[name]}"></span>{escape(name)}'
        cells = "".join(f"<td>{_cell(figures.get(f, {}), factor, n)}</td>" for f, _, factor, n in COLUMNS)
        rows.append(f"<tr><td>{key}</td>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(figure: Json, factor: float, digits: int) -> str:
    if figure.get("mean") is None:
        return "-"
    half = f" ± {factor * figure['ci95']:.{digits}f}" if figure["ci95"] else ""
    seeds, of = figure.get("seeds"), figure.get("of")
    return f"{factor * figure['mean']:.{digits}f}{half}" + (f" ({seeds} of {of})" if seeds != of else "")


def _diagnosis(found: Json) -> str:
    said = sorted({name for row in found["confusion"].values() for name in row})
    head = "".join(f"<th>{escape(name)}</th>" for name in ("brought about", *said, "right"))
    rows = []
    for true, row in found["confusion"].items():
        cells = "".join(f"<td>{row.get(name, 0) or ''}</td>" for name in said)
        rows.append(f"<tr><td>{escape(true)}</td>{cells}<td>{100 * found['by_cause'][true]:.1f} %</td></tr>")
    return (
        f"<h2>Diagnosis: {100 * found['accuracy']:.1f} % right</h2>"
        "<p class='quiet'>Ticks at which a cause was true, by the cause that was named.</p>"
        f'<div class="card"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _validity(found: Json) -> str:
    rows = [
        f"<tr><td>{escape(source)}</td><td>{escape(anchor)}</td><td>{100 * error:+.0f} %</td></tr>"
        for source, anchors in found.items()
        for anchor, error in anchors.items()
    ]
    return (
        "<h2>The plant against published figures</h2>"
        f'<div class="card"><table><tbody>{"".join(rows)}</tbody></table></div>'
    )
