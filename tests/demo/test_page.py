"""The page and its pictures, from a recording."""

from __future__ import annotations

import re

import pytest

from demo import page, plot
from demo.recording import Reading, Span, load_span, parse
from demo.report import Report


@pytest.fixture
def run(tape) -> tuple[list[Reading], Span]:
    tape.quiet(1)
    after = tape.at
    tape.load(20, 0.040)
    tape.cap = 14
    tape.used = 200
    tape.preemptions = 3
    tape.load(60, 0.015, waiting=26)
    tape.quiet(2)
    readings = parse(tape.lines)
    span = load_span(readings, after)
    assert span is not None
    return readings, span


def pictures(run: tuple[list[Reading], Span]) -> tuple[str, str]:
    off, auto = plot.RunTrace("Off", *run), plot.RunTrace("Auto", *run)
    overload = plot.overload_figure(off, auto, "p95", 0.020)
    assert plot.png(overload).startswith(b"\x89PNG")
    return plot.svg(overload), plot.svg(plot.kv_figure(off, auto))


def test_the_page_needs_nothing_but_itself(run, report: Report) -> None:
    html = page.html(report, *pictures(run))
    assert html.count("<svg") == 2
    assert not re.search(r"<(script|link|img|iframe)\b|\bsrc=|url\(\s*['\"]?http", html)
    assert "$" not in html.replace("$ kubectl", "")


def test_the_page_says_what_the_report_says(run, report: Report) -> None:
    html = page.html(report, *pictures(run))
    assert f"p95 ≤ {report.target_ms} ms" in html
    assert "The objective was held" in html
    for check in report.checks:
        assert check.name in html
    assert report.kv is not None
    assert report.kv.advice in html


def test_a_broken_promise_is_not_hidden(run, report: Report) -> None:
    broken = report.checks[0].model_copy(update={"passed": False})
    html = page.html(report.model_copy(update={"checks": (broken, *report.checks[1:])}), *pictures(run))
    assert "Not all promises were kept" in html
    assert "BROKEN" in html


def test_what_comes_from_the_cluster_is_escaped(run, report: Report) -> None:
    html = page.html(report.model_copy(update={"events": ("<script>alert(1)</script>",)}), *pictures(run))
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
