"""A comparison as one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from llamaserver.simulate.compare import Result, Scenario
from llamaserver.simulate.outcome import SETTLE_S, Moment
from llamaserver.simulate.policies import LAW
from llamaserver.simulate.profiles import Calibrated
from llamaserver.simulate.report.chart import Dot, Line, lines, over, scatter
from llamaserver.simulate.report.data import description, measure, routed, said
from llamaserver.simulate.report.table import HEAD, hits, refusals, rows, title

COLOURS = {
    "llamaserver": "#0f7c8f",
    "llamaserver-cap": "#8a63b8",
    "default": "#d0552b",
    "best-cap": "#8b929c",
    "best-pair": "#5b6470",
    "aimd": "#d39a17",
    "gradient2": "#9a6a3a",
    "alg2": "#3c9158",
    "mindie": "#c0518f",
}
OTHERS = ("#2f6fd0", "#b5443c", "#6f8f1f", "#7a5230", "#1f9fb5")
BAD = "#c62828"
CSS = """
:root { color-scheme: light dark; --bg: #f6f7f9; --card: #fff; --ink: #22262b; --quiet: #626975;
  --line: #e3e6ea; --limit: #22262b; }
@media (prefers-color-scheme: dark) { :root { --bg: #15181c; --card: #1d2126; --ink: #e4e7eb;
  --quiet: #9aa2ad; --line: #333941; --limit: #e4e7eb; } }
body { margin: 0; background: var(--bg); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 25px; line-height: 1.25; margin: 0 0 4px; } h2 { font-size: 18px; margin: 34px 0 6px; }
p { margin: 6px 0; } .quiet { color: var(--quiet); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px;
  margin: 12px 0; overflow-x: auto; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(440px, 1fr)); gap: 12px; }
.panels .card { margin: 0; } .panels h3 { font-size: 14px; margin: 0 0 4px; font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 10px; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid var(--line); } tbody tr + tr > td { border-top: 1px solid var(--line); }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font-size: 12px; }
svg .unit { fill: var(--quiet); } svg .grid { stroke: var(--line); }
svg .limit { stroke: var(--limit); stroke-dasharray: 6 4; stroke-width: 1.4; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin: 0 6px 0 0; }
.legend span { margin-right: 18px; white-space: nowrap; } .bad { color: #c62828; font-weight: 600; }
li { margin: 3px 0; }
"""


def page(scenario: Scenario, calibrated: Calibrated, results: Sequence[Result]) -> str:
    """The whole page."""
    demand = scenario.demand(scenario.seeds[0])
    target = scenario.objective.itl_s
    named = [(r, colour_of(r.policy.name, i)) for i, r in enumerate(results)]
    notes = (
        f"{refusals((r.mean for r in results), scenario.profile.longest)} {hits(scenario, results)}".strip()
    )
    parts = [
        f"<h1>{escape(demand.name)}</h1>",
        f'<p class="quiet">{escape(calibrated.name)}; {escape(said(scenario.objective))}; '
        f"{_replicas(scenario)}{escape(routed(scenario))}; {demand.duration_s:g} s</p>",
        f'<div class="card">{_table(named, scenario)}</div>',
        f"<p class='quiet'>{escape(_reading(scenario))} {escape(notes)}</p>",
        f"<h2>{escape(measure(scenario.objective))} in windows of 10 s</h2>",
        f'<div class="panels">{"".join(_panels(named, target))}</div>',
        "<h2>Settings over time</h2>",
        _legend(named),
        _settings(named),
        "<h2>What was made of it</h2>",
        f'<div class="card">{_frontier(named, scenario)}</div>',
        "<h2>Policies</h2>",
        _words(results),
        "<h2>The plant</h2>",
        f"<p>{escape(plant(calibrated))}</p>",
    ]
    if demand.source:
        parts.append(f"<p>Demand from {escape(demand.source)}; whoever shows it has to name its authors.</p>")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>llamaserver simulate: {escape(demand.name)}</title><style>{CSS}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def colour_of(name: str, index: int) -> str:
    """A policy's own colour, or one by its place among the others."""
    return COLOURS.get(name, OTHERS[index % len(OTHERS)])


def _replicas(scenario: Scenario) -> str:
    if scenario.replicas_max > scenario.replicas_min:
        return f"{scenario.replicas_min} to {scenario.replicas_max} replicas"
    return "1 replica" if scenario.replicas == 1 else f"{scenario.replicas} replicas"


def _reading(scenario: Scenario) -> str:
    seeds = len(scenario.seeds)
    of = f"Means over {seeds} seeds; plots show the first. " if seeds > 1 else ""
    return (
        f"{of}Missed: share of windows of 10 s, from {SETTLE_S:g} s on, in which the objective was missed. "
        "ITL: between two tokens, over all tokens. TTFT: to the first token, requests that still wait "
        "included. Changes: of a cap or a budget."
    )


def plant(calibrated: Calibrated) -> str:
    """How long a step takes and what the engine is started with, in words."""
    p = calibrated.profile
    a, b, d = f"{1e3 * p.a:g} ms", f"{1e6 * p.b:g} µs", f"{1e6 * p.d:g} µs"
    work = (
        f"the longer of {a} + {b} a token and {d} a token"
        if p.knee
        else f"{a} + {b} a decoding sequence + {d} a prefill token"
    )
    return (
        f"A step takes {work}, + {1e9 * p.g:g} ns a resident token + {1e3 * p.c:g} ms where it carries "
        f"prefill; the cache holds {p.kv_tokens} tokens, a sequence at most {p.longest}; started with "
        f"max-num-seqs {p.max_num_seqs} and max-num-batched-tokens {p.budget}. Source: {calibrated.source}."
    )


def _table(named: Sequence[tuple[Result, str]], scenario: Scenario) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in HEAD)
    body = []
    for (result, colour), row in zip(named, rows([r for r, _ in named]), strict=True):
        late = result.mean.violated_window_share > 0.05 and scenario.objective.itl_s is not None
        first = f'<span class="key" style="background:{colour}"></span>{escape(row[0])}'
        marked = f'<span class="bad">{escape(row[1])}</span>' if late else escape(row[1])
        rest = "".join(f"<td>{escape(cell)}</td>" for cell in row[2:])
        body.append(f"<tr><td>{first}</td><td>{marked}</td>{rest}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _panels(named: Sequence[tuple[Result, str]], target: float | None) -> list[str]:
    """One chart a policy, all with the same axis."""
    values = [1e3 * v for r, _ in named for _, v in r.traced.windows] + ([1e3 * target] if target else [])
    if not values:
        return ["<p>No token was made.</p>"]
    y = over(values, 0.0, 1.0, log=max(values) / max(1e-9, min(values)) > 6)
    made = []
    for result, colour in named:
        line = Line(result.policy.name, colour, [(t, 1e3 * v) for t, v in result.traced.windows])
        chart = lines(
            [line],
            label=f"Latency under {result.policy.name} against the target",
            unit="ms",
            size=(540, 190),
            y=y,
            limit=1e3 * target if target else None,
            missed=BAD,
        )
        share = result.traced.outcome.violated_window_share
        told = f": {100 * share:.1f} % missed" if math.isfinite(share) else ""
        made.append(f'<div class="card"><h3>{escape(title(result))}{told}</h3>{chart}</div>')
    return made


def _legend(named: Sequence[tuple[Result, str]]) -> str:
    keys = "".join(
        f'<span><i class="key" style="background:{colour}"></i>{escape(r.policy.name)}</span>'
        for r, colour in named
    )
    return f'<p class="legend">{keys}</p>'


def _words(results: Sequence[Result]) -> str:
    """What each policy is, in words."""
    names = [r.policy.name for r in results]
    return f"<ul>{''.join(f'<li><b>{escape(n)}</b>: {escape(description(n))}</li>' for n in names)}</ul>"


def _settings(named: Sequence[tuple[Result, str]]) -> str:
    made = [_course(named, "Cap", "sequences", lambda m: m.cap)]
    if any(len({m.budget for m in r.traced.moments}) > 1 for r, _ in named):
        made.append(_course(named, "Prefill budget", "tokens", lambda m: m.budget, log=True))
    if any(len({m.replicas for m in r.traced.moments}) > 1 for r, _ in named):
        made.append(_course(named, "Replicas", "replicas", lambda m: m.replicas))
    return "".join(made)


def _course(
    named: Sequence[tuple[Result, str]],
    label: str,
    unit: str,
    value: Callable[[Moment], float],
    *,
    log: bool = False,
) -> str:
    series = [
        Line(
            r.policy.name,
            colour,
            [(m.at, value(m)) for m in r.traced.moments],
            steps=True,
            width=2.6 if r.policy.name == LAW else 1.6,
        )
        for r, colour in named
    ]
    values = [v for line in series for _, v in line.points]
    chart = lines(
        series,
        label=f"{label} over time",
        unit=f"{label.lower()}, {unit}" if unit != label.lower() else unit,
        y=over(values, 0.0, 1.0, log=log),
    )
    return f'<div class="card">{chart}</div>'


def _frontier(named: Sequence[tuple[Result, str]], scenario: Scenario) -> str:
    target = scenario.objective.itl_s
    dots = [
        Dot(r.policy.name, colour, (1e3 * r.mean.itl_p95_s, r.mean.tokens_per_s), r.policy.name == LAW)
        for r, colour in named
        if math.isfinite(r.mean.itl_p95_s)
    ]
    if not dots:
        return "<p>No token was made.</p>"
    p95 = target is not None and scenario.objective.itl_named == "p95"
    return scatter(
        dots,
        label="Tokens per second over the p95 of the inter-token latency",
        units=("p95 of the inter-token latency, ms", "tokens per second"),
        limit=1e3 * target if p95 and target is not None else None,
    )
