"""`python -m demo.docs`: docs/demo.md and its picture, from what a demo left in its folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template

from demo import output, page, plot
from demo.modes import BOTH, CAP_ALONE, OFF
from demo.report import Kv, Report, Run
from demo.settings import REPOSITORY
from harness.kube import write

TEMPLATE = Template(Path(__file__).with_name("docs.md").read_text())
PAGE, PICTURE = "demo.md", Path("images") / "demo.png"


def markdown(report: Report) -> str:
    """The page, with this report's figures. Pure. Raises ValueError for a report without a memory part."""
    if report.kv is None:
        raise ValueError("the report has no memory part")
    machine, calibration, cost = report.machine, report.calibration, report.tuner_overhead
    off, alone, auto = page.runs(report)
    measured = "" if cost is None else f": {cost.engine_core_us_per_step:.1f} us with {cost.batch} sequences"
    return TEMPLATE.substitute(
        machine=f"{machine.cores} cores ({machine.cpu}, {machine.memory_gib:.0f} GiB, {machine.dtype})",
        vllm=report.versions["vllm"],
        kubernetes=report.versions["Kubernetes"],
        statistic=report.statistic,
        target=report.target_ms,
        table=table(report),
        than_alone=page.compared(auto.tokens_per_s, alone.tokens_per_s),
        than_default=page.compared(auto.tokens_per_s, off.tokens_per_s),
        held=held(report),
        cap_changes=report.cap_changes,
        budget_changes=report.budget_changes,
        restarts="pods were replaced" if report.pods_rolled else "no restart",
        cut=sum(run.streams_cut for run in page.runs(report)),
        took=took(report),
        ceiling=calibration.ceiling,
        start_budget=off.budget_highest,
        one_stream=f"{calibration.one_stream_ms:.1f}",
        ceiling_latency=f"{calibration.ceiling_ms:.1f}",
        load=report.load.description,
        settle=f"{report.load.settle_s:.0f}",
        overhead=measured,
        resource=report.resource.rstrip(),
        resource_wide=report.resource_wide.rstrip(),
        memory=memory_table(report.kv),
        memory_s=f"{report.kv.auto.seconds:.0f}",
        diagnosis=report.kv.diagnosis,
    )


def table(report: Report) -> str:
    """The three runs side by side."""

    def row(name: str, value: Callable[[Run], str]) -> str:
        return _cells(name, *(value(run) for run in page.runs(report)))

    rows = [
        _cells("", *(mode.title for mode in (OFF, CAP_ALONE, BOTH))),
        _cells("---", "---", "---", "---"),
        row(
            f"10-second windows above {report.target_ms} ms, after {report.load.settle_s:.0f} s of settling",
            lambda run: f"{page.percent(run.violated_window_share)} of {run.windows}",
        ),
        row("tokens per second", lambda run: f"{run.tokens_per_s:.0f}"),
        row("of those within the objective", lambda run: f"{run.goodput_tokens_per_s:.0f}"),
        row(
            "inter-token latency p50 / p95 / p99, as the engine counts it",
            lambda run: f"{run.itl_ms.p50:.1f} / {run.itl_ms.p95:.1f} / {run.itl_ms.p99:.1f} ms",
        ),
        row(
            "the same, as `vllm bench serve` sees it",
            lambda run: " / ".join(f"{value:.1f}" for _, value in run.client.itl_ms) + " ms",
        ),
        row(
            "time to first token p50 / p95",
            lambda run: f"{run.client.ttft_ms.p50 / 1e3:.1f} / {run.client.ttft_ms.p95 / 1e3:.1f} s",
        ),
        row("cap in force, sequences", lambda run: page.between(run.cap_lowest, run.cap_highest)),
        row(
            "prefill budget in force, tokens a step",
            lambda run: page.between(run.budget_lowest, run.budget_highest),
        ),
        row("streams, of which cut", lambda run: f"{run.streams_total}, {run.streams_cut}"),
    ]
    return "\n".join(rows)


def memory_table(kv: Kv) -> str:
    """The two memory-bound runs side by side."""
    runs = (kv.off, kv.auto)
    rows = [
        _cells("", "tuning off", "tuning on"),
        _cells("---", "---", "---"),
        _cells("preemptions a minute", *(f"{run.preemptions_per_minute:.0f}" for run in runs)),
        _cells("preemptions", *(str(run.preemptions) for run in runs)),
        _cells("tokens per second once the cache was full", *(f"{run.tokens_per_s:.0f}" for run in runs)),
        _cells("requests that came to their end", *(str(run.finished) for run in runs)),
        _cells("cap in force at the end", *(str(run.cap_last) for run in runs)),
    ]
    return "\n".join(rows)


def held(report: Report) -> str:
    """Since when the run with both knobs held."""
    if report.seconds_to_hold is None:
        return "Never held for three windows in a row"
    return f"Held from {report.seconds_to_hold:.0f} s after the load began"


def took(report: Report) -> str:
    """How long a change took."""
    times = report.retune_ms
    if times is None:
        return ""
    return (
        f" A signed change took {times.p50:.0f} ms in the median and {times.p99:.0f} ms at p99\n"
        f"({times.count} of them) on this machine, whose cores engine, clients and cluster share."
    )


def _cells(*values: str) -> str:
    return f"| {' | '.join(values)} |"


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m demo.docs",
        description="Write docs/demo.md and docs/images/demo.png from the report.json and the "
        "recording.jsonl that a demo left.",
    )
    p.add_argument(
        "--report",
        type=Path,
        default=REPOSITORY / "build" / "demo",
        help="folder of the demo's report (default build/demo)",
    )
    p.add_argument("--docs", type=Path, default=REPOSITORY / "docs", help="folder to write to (default docs)")
    args = p.parse_args(argv)
    try:
        report, readings = output.read(args.report)
    except (OSError, ValueError, output.OtherRunError) as error:
        print(f"error: no complete report in {args.report}: {error}", file=sys.stderr)
        return 1
    curves = plot.overload_figure(
        output.overload_traces(report, readings), report.statistic, output.target_s(report)
    )
    write(args.docs / PAGE, markdown(report))
    (args.docs / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    (args.docs / PICTURE).write_bytes(plot.png(curves))
    print(f"wrote {args.docs / PAGE} and {args.docs / PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
