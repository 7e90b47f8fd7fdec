"""The page and its pictures, from a recording."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from demo import output, page, plot
from demo.recording import Reading, Span, load_span, parse
from demo.report import Report


@pytest.fixture
def run(tape) -> tuple[list[Reading], Span]:
    tape.quiet(1)
    after = tape.at
    tape.load(20, 0.040)
    tape.cap, tape.budget = 14, 64
    tape.used = 200
    tape.preemptions = 3
    tape.load(60, 0.015, waiting=26)
    tape.quiet(2)
    readings = parse(tape.lines)
    span = load_span(readings, after)
    assert span is not None
    return readings, span


PICTURES = "<svg>overload</svg>", "<svg>memory</svg>"


def drawn(run: tuple[list[Reading], Span]) -> tuple[str, str]:
    three = [plot.RunTrace(title, "tuning.mode: Auto", "#1f6f8b", *run) for title in ("one", "two", "three")]
    overload = plot.overload_figure(three, "p95", 0.020)
    assert plot.png(overload).startswith(b"\x89PNG")
    return plot.svg(overload), plot.svg(plot.kv_figure(three[:2]))


def test_the_page_needs_nothing_but_itself(run, report: Report) -> None:
    html = page.html(report, *drawn(run))
    assert html.count("<svg") == 2
    assert not re.search(r"<(script|link|img|iframe)\b|\bsrc=|url\(\s*['\"]?http", html)
    assert "$" not in html.replace("$ kubectl", "")


def test_the_page_says_what_the_report_says(report: Report) -> None:
    html = page.html(report, *PICTURES)
    assert f"p95 ≤ {report.target_ms} ms" in html
    assert "The objective was held" in html
    for check in report.checks:
        assert check.name in html
    assert report.kv is not None
    assert report.kv.advice in html


def test_a_broken_promise_is_not_hidden(report: Report) -> None:
    broken = report.checks[0].model_copy(update={"passed": False})
    html = page.html(report.model_copy(update={"checks": (broken, *report.checks[1:])}), *PICTURES)
    assert "Not all promises were kept" in html
    assert "BROKEN" in html


def test_what_comes_from_the_cluster_is_escaped(report: Report) -> None:
    html = page.html(report.model_copy(update={"events": ("<script>alert(1)</script>",)}), *PICTURES)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_the_page_sets_the_three_runs_side_by_side(report: Report) -> None:
    html = page.html(report, *PICTURES)
    heads = re.findall(r'<th class="n">([^<]+)</th>', html)
    assert heads[:3] == ["default", "cap alone", "cap and budget"]
    (tokens,) = re.findall(r"<th>tokens per second</th>(.*?)</tr>", html)[:1]
    assert re.findall(r">([\d,]+)<", tokens) == ["1,000", "700", "1,000"]
    assert "43 % more than with the cap alone" in html
    assert "chat True 64" in html


def test_a_demo_leaves_a_report_a_page_and_a_picture(left: Path, report: Report) -> None:
    output.write_all(*output.read(left), left)
    assert Report.model_validate_json((left / "report.json").read_text()) == report
    assert (left / "report.html").read_text().count("<svg") == 2
    assert (left / "overload.png").read_bytes().startswith(b"\x89PNG")
