"""`python -m demo`."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

from demo import facts, output, overhead, release, trouble
from demo.calibration import STATISTIC, NoRoomError
from demo.evaluate import SETTLE_S, NotMeasuredError, kv_checks
from demo.flow import CHAT, Demo, Memory, Overload
from demo.modes import BOTH, CAP_ALONE, OFF
from demo.progress import Progress
from demo.recording import WINDOW_S
from demo.report import CalibrationPart, LoadPart, Report
from demo.settings import RELEASE, Settings, parse
from harness.kube import Kube, KubeError
from harness.wait import WaitError

FAILURES = (KubeError, WaitError, NotMeasuredError, NoRoomError, ValueError, KeyError, RuntimeError)


def main() -> int:
    settings = parse()
    progress, started = Progress(), datetime.now(UTC)
    try:
        kube = Kube.own() if settings.cluster == "own" else Kube.current()
    except KubeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    demo = Demo(kube, settings, progress)
    try:
        report = _run(demo, started)
    except FAILURES as error:
        progress.headline("the demo failed")
        progress.say(str(error))
        trouble.show(kube, settings, progress)
        return 1
    _conclude(report, settings, progress)
    return 0 if report.passed else 1


def _run(demo: Demo, started: datetime) -> Report:
    """All steps; the report, written as JSON and as a page."""
    kube, settings, progress = demo.kube, demo.settings, demo.progress
    progress.headline("the operator")
    demo.clear()
    with progress.step("helm install"):
        release.install(kube, settings)
    progress.headline("the model")
    demo.serve()
    engines = demo.serving.engines()
    progress.headline("what this machine can do")
    demo.calibrate()
    progress.headline("long requests in a small KV cache, tuning off")
    kv_off = demo.memory("Off")
    progress.headline("the overload, tuning off")
    off = demo.overload(OFF)
    progress.headline("the same overload, tuning on, but for the prefill budget: the cap alone")
    cap_alone = demo.overload(CAP_ALONE)
    progress.headline("the same overload, tuning on: cap and prefill budget")
    auto = demo.overload(BOTH)
    decisions, events = demo.serving.decisions(), demo.serving.events()
    progress.headline("long requests in a small KV cache, tuning on")
    kv_auto = demo.memory("Auto")
    rolled = demo.serving.engines() != engines
    demo.leave()
    progress.headline("the report")
    return _report(demo, started, (off, cap_alone, auto), (kv_off, kv_auto), (decisions, events), rolled)


def _report(
    demo: Demo,
    started: datetime,
    overloads: tuple[Overload, Overload, Overload],
    memory: tuple[Memory, Memory],
    said: tuple[tuple[str, ...], tuple[str, ...]],
    rolled: bool,
) -> Report:
    """Put the figures together and write all files."""
    settings, (off, cap_alone, auto) = demo.settings, overloads
    verdict = demo.judge(overloads, rolled)
    kv = demo.kv_part(*memory)
    readings = demo.readings()
    report = Report(
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        duration_s=round(demo.progress.elapsed, 1),
        cluster=settings.cluster,
        machine=facts.machine(demo.node(), local=settings.cluster == "own"),
        versions=facts.versions(demo.kube, readings[-1]),
        statistic=STATISTIC,
        target_ms=demo.calibration.target_ms,
        calibration=CalibrationPart(**vars(demo.calibration)),
        load=LoadPart(
            description=CHAT.describe(), concurrency=CHAT.concurrency, settle_s=SETTLE_S, window_s=WINDOW_S
        ),
        off=off.run,
        cap_alone=cap_alone.run,
        auto=auto.run,
        seconds_to_hold=verdict.seconds_to_hold,
        cap_changes=verdict.cap_changes,
        budget_changes=verdict.budget_changes,
        pods_rolled=rolled,
        retune_ms=release.retune_times(demo.kube, settings),
        kv=kv,
        tuner_overhead=overhead.measure(auto.run.itl_ms.p50) if settings.cluster == "own" else None,
        checks=(*verdict.checks, *kv_checks(kv)),
        resource=auto.tables.short,
        resource_wide=auto.tables.wide,
        decisions=said[0],
        events=said[1],
    )
    output.write_all(report, readings, settings.output)
    return report


def _conclude(report: Report, settings: Settings, progress: Progress) -> None:
    """What came out, and what to do next."""
    for check in report.checks:
        progress.say(f"{'kept  ' if check.passed else 'BROKEN'} {check.name}: {check.detail}")
    progress.say(f"report: {settings.output / 'report.html'} (and report.json)")
    kubectl = "kubectl" if settings.cluster == "current" else "python3 e2e/cluster net kubectl"
    ns = settings.namespace
    progress.headline("look around: the cluster is still up")
    for line in (
        f"{kubectl} get lls -A -o wide",
        f"{kubectl} describe lls chat -n {ns}",
        f"{kubectl} get lls chat -n {ns} -o yaml      # status.decisions says what was done and why",
        f"{kubectl} explain llamaserver.spec.slo",
        f"{kubectl} get events -n {ns}",
        f"{kubectl} logs -n {settings.operator_namespace} -l {release.INSTANCE} -f",
    ):
        print(f"  {line}", flush=True)
    end = (
        "make cluster-down"
        if settings.cluster == "own"
        else f"kubectl delete ns {ns}; helm uninstall {RELEASE} -n {settings.operator_namespace}"
    )
    print(f"and end it with\n  {end}", flush=True)
    if not report.passed:
        broken = "; ".join(f"{check.name} ({check.detail})" for check in report.checks if not check.passed)
        progress.headline(f"NOT ALL PROMISES WERE KEPT: {broken}")


if __name__ == "__main__":
    began = time.monotonic()
    status = main()
    print(f"\nthe demo took {time.monotonic() - began:.0f} s", flush=True)
    sys.exit(status)
