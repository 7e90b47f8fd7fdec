"""The files of a report: report.json, report.html and overload.png, from the figures and the recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from demo import page, plot
from demo.modes import BOTH, CAP_ALONE, OFF, Mode
from demo.recording import Reading, Span, near, parse
from demo.report import KvRun, Report, Run
from harness.kube import write

REPORT, RECORDING, PAGE, PICTURE = "report.json", "recording.jsonl", "report.html", "overload.png"
COLOURS = {OFF: plot.OFF, CAP_ALONE: plot.CAP_ALONE, BOTH: plot.AUTO}


class OtherRunError(Exception):
    """The recording in a folder is not the one that its report was made from."""


def write_all(report: Report, readings: Sequence[Reading], folder: Path) -> None:
    """Write all three files."""
    write(folder / REPORT, report.model_dump_json(indent=1) + "\n")
    overload = plot.overload_figure(overload_traces(report, readings), report.statistic, target_s(report))
    (folder / PICTURE).write_bytes(plot.png(overload))
    kv = None if report.kv is None else plot.svg(plot.kv_figure(kv_traces(report, readings)))
    write(folder / PAGE, page.html(report, plot.svg(overload), kv))


def read(folder: Path) -> tuple[Report, list[Reading]]:
    """What a demo left in its folder. Raises OSError, ValueError or OtherRunError when that is not whole."""
    report = Report.model_validate_json((folder / REPORT).read_text())
    with (folder / RECORDING).open() as lines:
        readings = parse(lines)
    if near(readings, report.auto.place.start) is None:
        raise OtherRunError(f"{folder / RECORDING} is of another run than {folder / REPORT}")
    return report, readings


def target_s(report: Report) -> float:
    """The objective's target in seconds."""
    return report.target_ms / 1e3


def overload_traces(report: Report, readings: Sequence[Reading]) -> list[plot.RunTrace]:
    """The three runs, in the order in which they are shown."""
    runs = ((OFF, report.off), (CAP_ALONE, report.cap_alone), (BOTH, report.auto))
    return [_trace(mode, run, readings) for mode, run in runs]


def kv_traces(report: Report, readings: Sequence[Reading]) -> list[plot.RunTrace]:
    """The two memory-bound runs."""
    assert report.kv is not None
    return [_trace(mode, run, readings) for mode, run in ((OFF, report.kv.off), (BOTH, report.kv.auto))]


def _trace(mode: Mode, run: Run | KvRun, readings: Sequence[Reading]) -> plot.RunTrace:
    title = mode.title if isinstance(run, Run) else f"tuning {'off' if mode is OFF else 'on'}"
    note = mode.spec if isinstance(run, Run) else ""
    return plot.RunTrace(title, note, COLOURS[mode], readings, Span(run.place.start, run.place.end))
