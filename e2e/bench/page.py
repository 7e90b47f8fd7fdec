"""The result as one HTML file that needs nothing else. Pure, but for its template."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template
from typing import Any

from bench.plot import frontier
from bench.table import HEAD, number, objective, policies, rows, warnings
from demo.page import CSS
from demo.plot import svg

Json = dict[str, Any]
TEMPLATE = Template(Path(__file__).with_name("page.html").read_text())
TEXT_COLUMNS = 2
"""The first columns of a table are words; the rest are figures."""


def _cells(row: tuple[str, ...], tag: str = "td") -> str:
    kinds = [""] * TEXT_COLUMNS + [' class="n"'] * (len(row) - TEXT_COLUMNS)
    return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))


def _table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> str:
    lines = "".join(f"<tr>{_cells(row)}</tr>" for row in body)
    return f"<table><thead><tr>{_cells(head, 'th')}</tr></thead><tbody>{lines}</tbody></table>"


def _overview(result: Json) -> str:
    """A row a scenario: tokens a second of every policy, with a mark where the objective is missed."""
    names = list(dict.fromkeys(name for s in result["scenarios"].values() for name in policies(s)))
    body = [
        (name, objective(scenario), *(_rate(scenario.get(policy)) for policy in names))
        for name, scenario in result["scenarios"].items()
    ]
    note = (
        "<p class='small'>Tokens per second; in brackets the tail of the worst part in ms, "
        "where it is above the objective. "
        "A dash: no setting holds it, or nothing was measured.</p>"
    )
    return _table(("scenario", "objective", *names), body) + note


def _rate(policy: Json | None) -> str:
    if policy is None:
        return "–"
    rate = number(policy["tokens_per_s"], 0)
    return rate if policy["holds"] else f"{rate} ({policy['worst_tail_ms']:.0f})"


def _scenario(name: str, scenario: Json) -> str:
    made = scenario["objective"]
    known = made["default_p50_ms"] is not None
    origin = (
        f"The default gives a p50 of {made['default_p50_ms']:.1f} and a {made['statistic']} of "
        f"{made['default_tail_ms']:.1f} ms; the objective is {made['rule']}: {objective(scenario)}. "
        if known
        else ""
    )
    facts = (
        f"{len(scenario['sweep'])} fixed settings were tried. {scenario['streams_cut']} of "
        f"{scenario['streams']} streams were cut. The machine's load before the start: "
        f"{scenario['load_average_before']:g}."
    )
    warning = (
        "" if scenario["complete"] else '<p class="bad-mark">This scenario was not measured to its end.</p>'
    )
    return (
        f"<h2>{escape(name)}</h2><p>{escape(scenario['says'])}.</p>{warning}"
        f"<p>{escape(origin + facts)}</p><div class='card'>{svg(frontier(scenario))}</div>"
        f"<div class='card'>{_table(HEAD, list(rows(scenario)))}</div>"
    )


def _provenance(result: Json) -> str:
    m, asked = result["machine"], result["asked"]
    cost = result["actuator_us_per_step"]
    lines = [
        f"{result['started']}, {result['seconds']:.0f} s in all",
        f"{m['cores']} × {m['cpu']}, {m['memory_gib']:.0f} GiB, Linux {m['kernel']}; the model runs in "
        f"{m['dtype']}",
        ", ".join(f"{name} {version}" for name, version in sorted(result["versions"].items())),
        f"medians of {asked['repeats']} repeats that take turns, each over {asked['window_s']:g} s after "
        f"{asked['settle_s']:g} s of settling or a multiple; bars are the lowest and the highest repeat",
        "A 24-million-parameter Llama with random weights on vLLM's CPU backend: what it says is noise, what "
        "it costs is real. docs/bench-engine.md says how each number is made.",
    ]
    if cost is not None:
        lines.append(f"work inside the engine: {cost:.1f} µs a step")
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def html(result: Json) -> str:
    """The whole page."""
    count = len(result["scenarios"])
    warning = "".join(f'<div class="verdict bad">{escape(text)}</div>' for text in warnings(result))
    return TEMPLATE.substitute(
        style=CSS,
        sub=escape(f"{count} scenario{'s' if count != 1 else ''}, {result['started']}"),
        warning=warning,
        overview=_overview(result),
        scenarios="".join(_scenario(name, scenario) for name, scenario in result["scenarios"].items()),
        provenance=_provenance(result),
    )
