"""The demo from beginning to end: each step does one thing to the cluster and hands on what was measured."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from demo.calibration import STATISTIC, Calibration, calibrate
from demo.evaluate import (
    KV_PRESSURE,
    SETTLE_S,
    NotMeasuredError,
    kv_run,
    quantile_of,
    run_part,
    slo_checks,
)
from demo.load import ClientFigures, Request, Shape, client_figures, requests, unpack
from demo.modes import BOTH, Mode
from demo.progress import Progress
from demo.recording import (
    WINDOW_S,
    Reading,
    Span,
    Window,
    between,
    changes,
    difference,
    load_span,
    seconds_to_hold,
    window,
)
from demo.report import Check, Kv, KvRun, Run
from demo.serving import Serving
from demo.settings import Settings
from demo.toolbox import PODS, StreamsResult, Toolbox, files, pods
from harness.kube import Kube, Object
from harness.manifests import CEILING, namespace, slo
from harness.wait import until

CHAT = Shape(concurrency=40, prompt=(32, 256), output=(60, 300))
"""Prompts that matter: the batch sets the time of most steps, prompts that are prefilled make the tail."""
LONG = Shape(concurrency=40, prompt=(400, 450), output=(250, 350))
"""Needs twice the KV cache at the ceiling. Answers no longer than this, so that the filling of an empty
cache, in which nobody is preempted yet, is a small part of the run.
"""
LOAD_S = 62.0
"""How long an overload lasts: settling and three windows, and a little for their edges."""
ONE_STREAM_S, CEILING_S, CEILING_FILL_S = 5.0, 13.0, 5.0
KV_RUN_S = 36.0
BENCH_LIMIT_S = 120.0
"""Beyond its load: to be ready, and to pack its result."""
TOLD_EVERY_S = 10.0
SHOWN_AFTER_S = 45.0
"""When, in a load, it is looked at what kubectl shows."""


@dataclass(frozen=True)
class Tables:
    """What `kubectl get lls` printed, without and with `-o wide`."""

    short: str
    wide: str


@dataclass(frozen=True)
class Overload:
    """One run: what both sides saw, and what kubectl showed meanwhile."""

    mode: Mode
    run: Run
    tables: Tables


@dataclass(frozen=True)
class Verdict:
    """What became of the promises about latency."""

    seconds_to_hold: float | None
    cap_changes: int
    budget_changes: int
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Memory:
    """One memory-bound run."""

    mode: str
    run: KvRun
    streams: StreamsResult
    diagnosis: tuple[str, str, str]
    """Cause, message and advice, as the operator gave them during the run."""


class Demo:
    """The steps, in the order in which they are to be called."""

    def __init__(self, kube: Kube, settings: Settings, progress: Progress) -> None:
        self.kube, self.settings, self.progress = kube, settings, progress
        self.serving = Serving(kube, settings, progress)
        self.work: list[Request] = requests(CHAT)
        self._toolbox: Toolbox | None = None
        self._calibration: Calibration | None = None

    @property
    def toolbox(self) -> Toolbox:
        assert self._toolbox is not None, "serve() comes first"
        return self._toolbox

    @property
    def calibration(self) -> Calibration:
        assert self._calibration is not None, "calibrate() comes first"
        return self._calibration

    @property
    def target_s(self) -> float:
        """The objective's target in seconds."""
        return self.calibration.target_ms / 1e3

    def readings(self) -> list[Reading]:
        """Everything the recorder read so far."""
        return self.toolbox.follower.readings()

    # --- before the load ----------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove what an earlier demo left, but not its namespace: that would wait out the pods' grace."""
        ns = self.settings.namespace
        found = self.kube.kubectl("get", "namespace,crd", "-o", "name").split()
        if f"namespace/{ns}" not in found:
            return
        kinds = "llamaservers,jobs" if any("/llamaservers." in name for name in found) else "jobs"
        with self.progress.step(f"removing what an earlier demo left in {ns}"):
            self.kube.kubectl("delete", kinds, "--all", "-n", ns, "--timeout=60s", timeout=70)
            self.kube.kubectl("delete", "pods", *PODS, "-n", ns, "--ignore-not-found", "--now")
            until("the old pods to end", lambda: not self.kube.list("pod", ns), 120, every=1.0)

    def serve(self) -> None:
        """Serve the model with tuning off, and start to record."""
        with self.progress.step("a vLLM engine with a random Llama, tuning off"):
            self.kube.apply(namespace(self.settings.namespace))
            self.serving.declare("Off", None)
            toolbox = Toolbox(self.kube, self.settings, self.serving.address())
            self.kube.apply(files(self.settings, self.work), *pods(self.settings, toolbox.url))
            self.serving.wait_serving()
        self._toolbox = toolbox
        self._start_recording()

    def _start_recording(self) -> None:
        def running() -> bool:
            found = [self.kube.get("pod", name, self.settings.namespace) for name in PODS]
            return all(pod is not None and pod["status"].get("phase") == "Running" for pod in found)

        until("the recorder and the clients to run", running, 60)
        self.toolbox.follower.start()
        until("the recorder's first reading of the engine", self.toolbox.follower.last, 30)

    def calibrate(self) -> None:
        """Measure one stream and the ceiling; choose a target between."""
        one = self._short_loop(1, ONE_STREAM_S, skip_s=0.0)
        self.progress.say(f"one stream: {STATISTIC} {1e3 * self._latency(one):.1f} ms between tokens")
        many = self._short_loop(CHAT.concurrency, CEILING_S, skip_s=CEILING_FILL_S)
        latency = f"{STATISTIC} {1e3 * self._latency(many):.1f} ms"
        self.progress.say(f"{CEILING} at once: {latency}, {many.tokens / many.seconds:.0f} tokens/s")
        self._calibration = calibrate(self._latency(one), self._latency(many), CEILING)
        self.progress.say(f"objective: {STATISTIC} at most {self.calibration.target_ms} ms")

    @staticmethod
    def _latency(found: Window) -> float:
        value = found.itl.statistic(STATISTIC)
        if value is None:
            raise NotMeasuredError("not a single token came while this machine was calibrated")
        return value

    def _short_loop(self, concurrency: int, seconds: float, skip_s: float) -> Window:
        """What the engine counted while so many streams ran, without the first `skip_s` seconds."""
        mark = self.toolbox.follower.mark()
        process = self.toolbox.start_streams(replace(CHAT, concurrency=concurrency, seed=1), seconds)
        self.toolbox.finish(process, seconds + 60)
        readings = self.readings()
        busy = [r for r in readings if r.at > mark and r.running >= min(concurrency, CEILING)]
        settled = [r for r in busy if r.at >= busy[0].at + skip_s]
        whole = difference(settled[0], settled[-1]) if settled else None
        if whole is None or whole.seconds <= 0:
            raise NotMeasuredError(f"the engine was not kept busy with {concurrency} streams")
        return whole

    # --- the overload -------------------------------------------------------------------------------

    def overload(self, mode: Mode) -> Overload:
        """Run the whole load once in a mode. The resource is changed by apply; pods must stay."""
        self.serving.declare(mode.tuning, slo(self.calibration.target_ms, STATISTIC), mode.prefill_budget)
        mark = self.toolbox.follower.mark()
        self.progress.say(f"`vllm bench serve` for {LOAD_S:.0f} s: {CHAT.describe()}")
        watch = Watch(self)
        process = self.toolbox.start_bench(CHAT, LOAD_S)
        client = self._client_figures(self.toolbox.said(process, LOAD_S + BENCH_LIMIT_S, watch))
        time.sleep(1.5)  # one more reading
        readings = self.readings()
        span = load_span(readings, mark)
        if span is None:
            raise NotMeasuredError(f"no request ever waited in the run `{mode.title}`: there was no overload")
        run = run_part(readings, span, STATISTIC, self.target_s, client)
        self.progress.say(f"{mode.title}: {self._outcome(run)}")
        return Overload(mode, run, watch.tables or self.tables())

    def _outcome(self, run: Run) -> str:
        return (
            f"{run.violated_window_share:.0%} of {run.windows} windows above "
            f"{self.calibration.target_ms} ms; {STATISTIC} {getattr(run.itl_ms, STATISTIC):.1f} ms, "
            f"{run.tokens_per_s:.0f} tokens/s, first token after {run.client.ttft_ms.p50 / 1e3:.1f} s (p50); "
            f"cap {run.cap_last}, budget {run.budget_last}; "
            f"{run.streams_cut} of {run.streams_total} streams cut"
        )

    def tables(self) -> Tables:
        """What kubectl shows now."""
        return Tables(self.serving.table(), self.serving.table("-o", "wide"))

    def now(self, last: Reading) -> str:
        """How the load goes, in one line."""
        recent = window(self.readings(), last.at - WINDOW_S, last.at)
        value = recent.itl.statistic(STATISTIC) if recent is not None else None
        latency = "unknown" if value is None else f"{1e3 * value:.1f} ms"
        batch = f"cap {last.cap}, budget {last.budget}, running {last.running}, waiting {last.waiting}"
        return f"  {batch}, {STATISTIC} of the last 10 s {latency}"

    def _client_figures(self, said: str) -> ClientFigures:
        return client_figures(unpack(said), self.work, SETTLE_S, quantile_of(STATISTIC), self.target_s)

    def judge(self, runs: Sequence[Overload], rolled: bool) -> Verdict:
        """The promises about latency, and how the run with both knobs came to keep them."""
        off, cap_alone, auto = (overload.run for overload in runs)
        readings, span = self.readings(), Span(auto.place.start, auto.place.end)
        held = seconds_to_hold(readings, span, STATISTIC, self.target_s)
        moved = between(readings, span.start, span.end)
        return Verdict(
            held,
            changes(reading.cap for reading in moved),
            changes(reading.budget for reading in moved),
            tuple(slo_checks(off, cap_alone, auto, held, rolled)),
        )

    # --- memory -------------------------------------------------------------------------------------

    def memory(self, mode: str) -> Memory:
        """Fill the KV cache with long sequences, in a tuning mode and without a latency objective."""
        self.serving.declare(mode, None)
        follower = self.toolbox.follower
        mark = follower.mark()
        process = self.toolbox.start_streams(LONG, KV_RUN_S)
        diagnosis = ("", "", "")
        while process.poll() is None:
            diagnosis = self._diagnosis(diagnosis)
            time.sleep(2)
        streams = self.toolbox.finish(process, 10)
        readings = self.readings()
        span = load_span(readings, mark)
        if span is None:
            raise NotMeasuredError(f"no long request ever waited with tuning {mode}")
        run = kv_run(readings, span)
        self.progress.say(
            f"tuning {mode}: {run.preemptions} preemptions in {run.seconds:.0f} s, "
            f"{run.tokens_per_s:.0f} tokens/s, {run.finished} requests done, cap {run.cap_last}; "
            f"the operator says {diagnosis[0] or 'nothing'}"
        )
        return Memory(mode, run, streams, diagnosis)

    def _diagnosis(self, before: tuple[str, str, str]) -> tuple[str, str, str]:
        """The operator's present diagnosis; once it has named memory, that one is kept."""
        if before[0] == KV_PRESSURE:
            return before
        said = self.serving.status().get("diagnosis", {})
        return said.get("cause", ""), said.get("message", ""), said.get("advice", "")

    @staticmethod
    def kv_part(off: Memory, auto: Memory) -> Kv:
        """Both memory-bound runs in the report's form."""
        cause, message, advice = off.diagnosis
        return Kv(
            off=off.run,
            auto=auto.run,
            streams_total=off.streams.streams + auto.streams.streams,
            streams_cut=off.streams.cut + auto.streams.cut,
            diagnosis=cause,
            message=message,
            advice=advice,
        )

    # --- after it -----------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave the resource as a user would have it, stop to record, and end what was only for the demo."""
        self.serving.declare(BOTH.tuning, slo(self.calibration.target_ms, STATISTIC))
        self.toolbox.follower.stop()
        ns = self.settings.namespace
        self.kube.kubectl("delete", "pods", *PODS, "-n", ns, "--now", "--wait=false")

    def node(self) -> Object:
        """The engine's node."""
        (pod,) = self.serving.pods()
        found: Object = json.loads(self.kube.kubectl("get", "node", pod["spec"]["nodeName"], "-o", "json"))
        return found


class Watch:
    """Tells what goes on while an overload runs, and looks once at what kubectl shows."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._begun: float | None = None
        self._told = 0.0
        self.tables: Tables | None = None

    def __call__(self) -> None:
        last, now = self._demo.toolbox.follower.last(), time.monotonic()
        if last is None or not last.waiting:
            return
        self._begun = now if self._begun is None else self._begun
        if now - self._told > TOLD_EVERY_S:
            self._told = now
            self._demo.progress.say(self._demo.now(last))
        if self.tables is None and now - self._begun > SHOWN_AFTER_S:
            self.tables = self._demo.tables()
            self._demo.progress.say(f"$ kubectl get lls -o wide\n{self.tables.wide.rstrip()}")
