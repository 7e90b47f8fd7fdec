"""The report as one HTML file that needs nothing else. Pure, but for its two templates."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template

from demo.report import Kv, Overhead, Percentiles, Report, Run

CSS = Path(__file__).with_name("page.css").read_text()
TEMPLATE = Template(Path(__file__).with_name("page.html").read_text())


def ms(value: float) -> str:
    """Milliseconds, with as many digits as mean something."""
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


def seconds(value_ms: float) -> str:
    """A longer duration, given in milliseconds."""
    return f"{value_ms / 1e3:.1f} s"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _row(name: str, off: str, auto: str, note: str = "") -> str:
    small = f'<br><span class="small">{escape(note)}</span>' if note else ""
    values = "".join(f'<td class="n">{escape(value)}</td>' for value in (off, auto))
    return f"<tr><th>{escape(name)}{small}</th>{values}</tr>"


def _table(rows: list[str]) -> str:
    head = '<thead><tr><th></th><th class="n">tuning off</th><th class="n">tuning on</th></tr></thead>'
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _slo_table(report: Report) -> str:
    off, auto = report.off, report.auto

    def both(name: str, figure: Percentiles, other: Percentiles, note: str = "") -> list[str]:
        return [
            _row(f"{name} {p}", ms(getattr(figure, p)), ms(getattr(other, p)), note if p == "p50" else "")
            for p in ("p50", "p95", "p99")
        ]

    rows = [
        _row(
            f"10-second windows with {report.statistic} above {report.target_ms} ms",
            f"{_percent(off.violated_window_share)} of {off.windows}",
            f"{_percent(auto.violated_window_share)} of {auto.windows}",
            f"after {report.load.settle_s:.0f} s of settling; a window without data counts as missed",
        ),
        *both("inter-token latency", off.itl_ms, auto.itl_ms, "as the engine counts it"),
        *both(
            "the client's own",
            off.client.itl_ms,
            auto.client.itl_ms,
            "vllm bench serve, past HTTP and a busy client",
        ),
        _row("tokens per second", f"{off.tokens_per_s:,.0f}", f"{auto.tokens_per_s:,.0f}"),
        _row(
            "of those inside the objective",
            f"{off.goodput_tokens_per_s:,.0f}",
            f"{auto.goodput_tokens_per_s:,.0f}",
            "tokens of the windows that met it, over all time",
        ),
        _row(
            "wait in the queue, p50",
            *_queue(off, auto),
            "the price: fewer streams at once, so more of them wait",
        ),
        _row(
            "cap in force",
            _caps(off),
            _caps(auto),
            f"lowest to highest; the engine started with {report.calibration.ceiling}",
        ),
        _row(
            "streams, of which cut",
            f"{off.streams_total}, {off.streams_cut}",
            f"{auto.streams_total}, {auto.streams_cut}",
        ),
    ]
    return _table(rows)


def _queue(off: Run, auto: Run) -> tuple[str, str]:
    return tuple(seconds(run.queue_ms.p50) if run.queue_ms else "unknown" for run in (off, auto))  # type: ignore[return-value]


def _caps(run: Run) -> str:
    return (
        str(run.cap_last) if run.cap_lowest == run.cap_highest else f"{run.cap_lowest} to {run.cap_highest}"
    )


def _reading(report: Report) -> str:
    """What the figures say, in sentences."""
    off, auto = report.off, report.auto
    price = 1 - auto.tokens_per_s / off.tokens_per_s if off.tokens_per_s else 0.0
    held = (
        f"With tuning on, the objective was held from {report.seconds_to_hold:.0f} s after the load began"
        if report.seconds_to_hold is not None
        else "With tuning on, the objective was never held for three windows in a row"
    )
    retunes = (
        f" A write, be it a change or the renewal of its lease, took {ms(report.retune_ms.p50)} in the "
        f"median and {ms(report.retune_ms.p99)} at p99, from the operator's request to the value read back "
        "from the scheduler."
        if report.retune_ms
        else ""
    )
    one, many = ms(report.calibration.one_stream_ms), ms(report.calibration.ceiling_ms)
    cut, streams = off.streams_cut + auto.streams_cut, off.streams_total + auto.streams_total
    parts = [
        f"One stream alone sees a {report.statistic} of {one} between two tokens on this machine; "
        f"{report.calibration.ceiling} at once, the engine's ceiling, see {many}. The declared objective "
        f"lies between: {report.statistic} at most {report.target_ms} ms.",
        f"The load ({report.load.description}) is more than the engine can run at once. With tuning off it "
        f"ran at the ceiling, and {_percent(off.violated_window_share)} of the windows missed the objective.",
        f"{held}; {_percent(auto.violated_window_share)} of the windows missed it. The cap moved "
        f"{report.cap_changes} times, from {report.calibration.ceiling} down to {auto.cap_lowest}, without a "
        f"restart, and {cut} of {streams} streams were cut.{retunes}",
        f"It has a price, and it should be seen: {_percent(max(0.0, price))} fewer tokens per second, and "
        "requests wait longer before their first token. Where another replica is allowed the operator asks "
        "for it; here there is one.",
    ]
    return "".join(f"<p>{escape(part)}</p>" for part in parts)


def _kv_section(kv: Kv, picture: str) -> str:
    rows = [
        _row(
            "preemptions in the first 20 s, while the lengths are learned",
            str(kv.off.preemptions_settling),
            str(kv.auto.preemptions_settling),
        ),
        _row("preemptions after that", str(kv.off.preemptions), str(kv.auto.preemptions)),
        _row(
            "preemptions a minute",
            f"{kv.off.preemptions_per_minute:.0f}",
            f"{kv.auto.preemptions_per_minute:.0f}",
        ),
        _row("tokens per second", f"{kv.off.tokens_per_s:,.0f}", f"{kv.auto.tokens_per_s:,.0f}"),
        _row("cap in force at the end", str(kv.off.cap_last), str(kv.auto.cap_last)),
    ]
    return (
        "<h2>Another illness: the KV cache is too small for what is admitted</h2>"
        "<p>Long prompts and long answers, no latency objective. Every preemption throws computed tokens "
        "away and computes them again; a larger batch, the usual answer to a queue, makes it worse. The same "
        f"closed loop, with tuning off and on.</p><div class='card'>{picture}</div>"
        f"<div class='card'>{_table(rows)}</div>"
        f"<p>The operator's diagnosis with tuning off: <b>{escape(kv.diagnosis)}</b>. "
        f"{escape(kv.message)}</p>"
        f"<p>Its advice: {escape(kv.advice or 'none')}</p>"
    )


def _checks(report: Report) -> str:
    rows = "".join(
        f'<tr><td class="{"ok-mark" if c.passed else "bad-mark"}">{"kept" if c.passed else "BROKEN"}</td>'
        f"<td>{escape(c.name)}</td><td>{escape(c.detail)}</td></tr>"
        for c in report.checks
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _provenance(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    m = report.machine
    lines = [
        f"{report.started}, {report.duration_s:.0f} s in all, cluster: {report.cluster}",
        f"{m.cores} × {m.cpu}, {m.memory_gib:.0f} GiB, Linux {m.kernel}",
        versions,
        "A 24-million-parameter Llama with random weights on vLLM's CPU backend: what it says is noise, what "
        "it costs is real. The figures are about this machine; docs/demo.md says how each is made.",
    ]
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _overhead(cost: Overhead | None) -> str:
    if cost is None:
        return ""
    return (
        "<h2>What the tuner costs inside vLLM</h2>"
        f"<p>{cost.engine_core_us_per_step:.1f} µs a step in the engine core with {cost.batch} sequences, "
        f"{100 * cost.engine_core_share_of_step:.3f} % of the median step of the run with tuning on, and "
        f"{cost.api_server_us_per_step:.1f} µs a step in the API server "
        f"(<code>{escape(cost.command)}</code>).</p>"
    )


def html(report: Report, overload_svg: str, kv_svg: str | None) -> str:
    """The whole page."""
    kept, broken = "The objective was held, and nothing broke.", "Not all promises were kept; see below."
    return TEMPLATE.substitute(
        style=CSS,
        statistic=escape(report.statistic),
        target=report.target_ms,
        verdict_class="ok" if report.passed else "bad",
        verdict=kept if report.passed else broken,
        overload=overload_svg,
        reading=_reading(report),
        table=_slo_table(report),
        kv=_kv_section(report.kv, kv_svg) if report.kv is not None and kv_svg is not None else "",
        checks=_checks(report),
        resource=escape(report.resource.rstrip()),
        decisions=escape("\n".join(report.decisions) or "none"),
        events=escape("\n".join(report.events) or "none"),
        overhead=_overhead(report.tuner_overhead),
        provenance=_provenance(report),
    )
