"""The report as one HTML file that needs nothing else. Pure, but for its two templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from string import Template

from demo.modes import BOTH, CAP_ALONE, OFF
from demo.report import Kv, Overhead, Percentiles, Report, Run

CSS = Path(__file__).with_name("page.css").read_text()
TEMPLATE = Template(Path(__file__).with_name("page.html").read_text())


def ms(value: float) -> str:
    """Milliseconds, with as many digits as mean something."""
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


def seconds(value_ms: float) -> str:
    """A longer duration, given in milliseconds."""
    return f"{value_ms / 1e3:.1f} s"


def percent(value: float) -> str:
    """A share."""
    return f"{100 * value:.0f} %"


def _row(name: str, values: Iterable[str], note: str = "") -> str:
    small = f'<br><span class="small">{escape(note)}</span>' if note else ""
    cells = "".join(f'<td class="n">{escape(value)}</td>' for value in values)
    return f"<tr><th>{escape(name)}{small}</th>{cells}</tr>"


def _table(columns: Iterable[str], rows: Iterable[str]) -> str:
    names = "".join(f'<th class="n">{escape(name)}</th>' for name in columns)
    return f"<table><thead><tr><th></th>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def runs(report: Report) -> tuple[Run, Run, Run]:
    """The three runs, in the order in which they are shown."""
    return report.off, report.cap_alone, report.auto


def between(lowest: int, highest: int) -> str:
    """A setting in force, and how far it moved."""
    return f"{highest:,}" if lowest == highest else f"{lowest:,} to {highest:,}"


def _slo_table(report: Report) -> str:
    three = runs(report)

    def row(name: str, value: Callable[[Run], str], note: str = "") -> str:
        return _row(name, [value(run) for run in three], note)

    def percentiles(name: str, of: Callable[[Run], Percentiles], note: str) -> str:
        def value(run: Run) -> str:
            found = of(run)
            return f"{found.p50:.1f} / {found.p95:.1f} / {found.p99:.1f} ms"

        return row(name, value, note)

    rows = [
        row(
            f"10-second windows with {report.statistic} above {report.target_ms} ms",
            lambda run: f"{percent(run.violated_window_share)} of {run.windows}",
            f"after {report.load.settle_s:.0f} s of settling; a window without data counts as missed",
        ),
        row("tokens per second", lambda run: f"{run.tokens_per_s:,.0f}"),
        row(
            "of those inside the objective",
            lambda run: f"{run.goodput_tokens_per_s:,.0f}",
            "tokens of the windows that met it, over all time",
        ),
        percentiles(
            "inter-token latency, p50 / p95 / p99", lambda run: run.itl_ms, "as the engine counts it"
        ),
        percentiles(
            "the client's own, p50 / p95 / p99",
            lambda run: run.client.itl_ms,
            "vllm bench serve, past HTTP and a busy client",
        ),
        row(
            "time to first token, p50 / p95",
            lambda run: f"{run.client.ttft_ms.p50 / 1e3:.1f} / {run.client.ttft_ms.p95 / 1e3:.1f} s",
            "vllm bench serve: the wait for a place in the batch, and the prompt's own prefill",
        ),
        row(
            "cap in force, sequences",
            lambda run: between(run.cap_lowest, run.cap_highest),
            f"lowest to highest once settled; the engine started with {report.calibration.ceiling}",
        ),
        row(
            "prefill budget in force, tokens a step",
            lambda run: between(run.budget_lowest, run.budget_highest),
            "lowest to highest once settled; decodes count, too",
        ),
        row("streams, of which cut", lambda run: f"{run.streams_total}, {run.streams_cut}"),
    ]
    return _table((mode.title for mode in (OFF, CAP_ALONE, BOTH)), rows)


def _reading(report: Report) -> str:
    """What the figures say, in sentences."""
    off, alone, auto = runs(report)
    held = (
        f"With both knobs the objective was held from {report.seconds_to_hold:.0f} s after the load began"
        if report.seconds_to_hold is not None
        else "With both knobs the objective was never held for three windows in a row"
    )
    retunes = (
        f" A change took {ms(report.retune_ms.p50)} in the median, {ms(report.retune_ms.p99)} at p99, from "
        "the operator's request to the value read back from the scheduler."
        if report.retune_ms
        else ""
    )
    one, many = ms(report.calibration.one_stream_ms), ms(report.calibration.ceiling_ms)
    cut, streams = (
        sum(run.streams_cut for run in runs(report)),
        sum(run.streams_total for run in runs(report)),
    )
    parts = [
        f"One stream alone sees a {report.statistic} of {one} between two tokens on this machine; "
        f"{report.calibration.ceiling} at once, the engine's ceiling, see {many}. The declared objective "
        f"lies between: {report.statistic} at most {report.target_ms} ms.",
        f"The load ({report.load.description}) is more than the engine can run at once. As it was started "
        f"it ran {report.calibration.ceiling} sequences, and {percent(off.violated_window_share)} of the "
        "windows missed the objective: whenever a prompt is prefilled, all streams wait for it.",
        f"The cap alone (prefillBudget: Fixed) can only make room for whole prompts: {_caps(alone)} "
        f"sequences at once, {alone.tokens_per_s:,.0f} tokens per second, "
        f"{seconds(alone.client.ttft_ms.p50)} to the first token.",
        f"{held}; {percent(auto.violated_window_share)} of the windows missed it. Prompts are prefilled in "
        f"pieces of what a step has time for, so {_caps(auto)} sequences run: "
        f"{auto.tokens_per_s:,.0f} tokens per second ({compared(auto.tokens_per_s, alone.tokens_per_s)} than "
        f"with the cap alone, {compared(auto.tokens_per_s, off.tokens_per_s)} than by default), "
        f"{seconds(auto.client.ttft_ms.p50)} to the first token. The cap moved {report.cap_changes} times "
        f"and the budget {report.budget_changes} times, without a restart, and {cut} of {streams} streams "
        f"were cut.{retunes}",
    ]
    return "".join(f"<p>{escape(part)}</p>" for part in parts)


def _caps(run: Run) -> str:
    return between(run.cap_lowest, run.cap_highest)


def compared(value: float, other: float) -> str:
    """`12 % more` or `3 % fewer`, to be followed by "than"."""
    change = value / other - 1 if other else 0.0
    return f"{percent(abs(change))} {'more' if change >= 0 else 'fewer'}"


def _kv_section(kv: Kv, picture: str) -> str:
    both = (kv.off, kv.auto)
    rows = [
        _row("preemptions", [str(run.preemptions) for run in both], f"in {kv.auto.seconds:.0f} s"),
        _row("preemptions a minute", [f"{run.preemptions_per_minute:.0f}" for run in both]),
        _row("tokens per second once the cache was full", [f"{run.tokens_per_s:,.0f}" for run in both]),
        _row("requests that came to their end", [str(run.finished) for run in both]),
        _row("cap in force at the end", [str(run.cap_last) for run in both]),
    ]
    return (
        "<h2>Another illness: the KV cache is too small for what is admitted</h2>"
        "<p>Long prompts and long answers, no latency objective. Every preemption throws computed tokens "
        "away and computes them again; a larger batch, the usual answer to a queue, makes it worse. The same "
        f"closed loop, with tuning off and on.</p><div class='card'>{picture}</div>"
        f"<div class='card'>{_table(('tuning off', 'tuning on'), rows)}</div>"
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
        f"{m.cores} × {m.cpu}, {m.memory_gib:.0f} GiB, Linux {m.kernel}; the model runs in {m.dtype}",
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
        f"{100 * cost.engine_core_share_of_step:.3f} % of the median step of the run with both knobs, and "
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
        resource_wide=escape(report.resource_wide.rstrip()),
        decisions=escape("\n".join(report.decisions) or "none"),
        events=escape("\n".join(report.events) or "none"),
        overhead=_overhead(report.tuner_overhead),
        provenance=_provenance(report),
    )
