"""The demo from beginning to end: each step does one thing to the cluster and hands on what was measured."""

from __future__ import annotations

import json
import time
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
from demo.plot import RunTrace
from demo.progress import Progress
from demo.recording import (
    WINDOW_S,
    Reading,
    Span,
    Window,
    between,
    cap_changes,
    difference,
    load_span,
    seconds_to_hold,
    window,
)
from demo.report import Check, Kv, KvRun, Run
from demo.serving import Serving
from demo.settings import Settings
from demo.toolbox import CLIENT, RECORDER, StreamsResult, Toolbox, bench_job, files, pods
from harness.kube import Kube, KubeError, Object
from harness.manifests import CEILING, namespace, slo
from harness.wait import until

CHAT = Shape(concurrency=40, prompt=(24, 40), output=(200, 400))
"""Short prompts and answers of chat length: the batch sets a step's time, and the cap is the knob for it."""
LONG = Shape(concurrency=40, prompt=(200, 300), output=(500, 700))
"""Needs three times the KV cache at the ceiling."""
LOAD_S = 85.0
"""How long an overload is to last; the number of its streams follows from this machine's throughput."""
THROUGHPUT_WHEN_TUNED = 0.65
"""A guess, of the throughput at the ceiling, that only sets how long the run with tuning lasts."""
ONE_STREAM_S, CEILING_S, CEILING_FILL_S = 5.0, 15.0, 5.0
KV_RUN_S = 46.0
JOB_S = 400.0
TOLD_EVERY_S = 10.0


@dataclass(frozen=True)
class Overload:
    """One run: its place on the recorder's clock, and what both sides saw."""

    mode: str
    span: Span
    run: Run
    table: str


@dataclass(frozen=True)
class Memory:
    """One memory-bound run."""

    mode: str
    span: Span
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
        self._tokens_per_s = 0.0

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
            self.kube.kubectl("delete", "pods", RECORDER, CLIENT, "-n", ns, "--ignore-not-found", "--now")
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
            found = [self.kube.get("pod", name, self.settings.namespace) for name in (RECORDER, CLIENT)]
            return all(pod is not None and pod["status"].get("phase") == "Running" for pod in found)

        until("the recorder and the client to run", running, 60)
        self.toolbox.follower.start()
        until("the recorder's first reading of the engine", self.toolbox.follower.last, 30)

    def calibrate(self) -> None:
        """Measure one stream and the ceiling; choose a target between."""
        one = self._short_loop(1, ONE_STREAM_S, skip_s=0.0)
        self.progress.say(f"one stream: {STATISTIC} {1e3 * self._latency(one):.1f} ms between tokens")
        many = self._short_loop(CHAT.concurrency, CEILING_S, skip_s=CEILING_FILL_S)
        self._tokens_per_s = many.tokens / many.seconds
        latency = f"{STATISTIC} {1e3 * self._latency(many):.1f} ms"
        self.progress.say(f"{CEILING} at once: {latency}, {self._tokens_per_s:.0f} tokens/s")
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

    def overload(self, mode: str) -> Overload:
        """Run the whole load once in a tuning mode. The resource is changed by apply; pods must stay."""
        self.serving.declare(mode, slo(self.calibration.target_ms, STATISTIC))
        mark = self.toolbox.follower.mark()
        name = f"overload-{mode.lower()}"
        rate = self._tokens_per_s * (1.0 if mode == "Off" else THROUGHPUT_WHEN_TUNED)
        streams = CHAT.streams_in(LOAD_S, rate)
        self.progress.say(f"`vllm bench serve`: {streams} streams, {CHAT.describe()}")
        self.kube.apply(bench_job(self.settings, name, self.toolbox.url, CHAT.concurrency, streams))
        table = self._watch_job(name)
        time.sleep(1.5)  # one more reading
        readings = self.readings()
        span = load_span(readings, mark)
        if span is None:
            raise NotMeasuredError(
                f"no request ever waited in the run with tuning {mode}: there was no overload"
            )
        client = self._client_figures(name, streams)
        run = run_part(readings, span, STATISTIC, self.target_s, client)
        self.progress.say(
            f"tuning {mode}: {run.violated_window_share:.0%} of {run.windows} windows above "
            f"{self.calibration.target_ms} ms; {STATISTIC} {getattr(run.itl_ms, STATISTIC):.1f} ms, "
            f"{run.tokens_per_s:.0f} tokens/s, cap {run.cap_last}; "
            f"{run.streams_cut} of {run.streams_total} streams cut"
        )
        return Overload(mode, span, run, table)

    def _watch_job(self, name: str) -> str:
        """Tell what goes on until the Job ends; the LlamaServer's table as it was in the midst of it."""
        deadline, told, table = time.monotonic() + JOB_S, 0.0, ""
        while time.monotonic() < deadline:
            job = self.kube.get("job", name, self.settings.namespace) or {}
            status = job.get("status", {})
            if status.get("succeeded"):
                return table or self.serving.table()
            if status.get("failed"):
                raise KubeError(f"the benchmark failed:\n{self._job_log(name)[-1500:]}")
            last = self.toolbox.follower.last()
            if last is not None and last.waiting > 0 and time.monotonic() - told > TOLD_EVERY_S:
                told, table = time.monotonic(), self.serving.table()
                self.progress.say(self._now(last))
            time.sleep(2)
        raise KubeError(f"the benchmark did not end within {JOB_S:.0f} s")

    def _now(self, last: Reading) -> str:
        recent = window(self.readings(), last.at - WINDOW_S, last.at)
        value = recent.itl.statistic(STATISTIC) if recent is not None else None
        latency = "unknown" if value is None else f"{1e3 * value:.1f} ms"
        batch = f"cap {last.cap}, running {last.running}, waiting {last.waiting}"
        return f"  {batch}, {STATISTIC} of the last 10 s {latency}"

    def _job_log(self, name: str) -> str:
        return self.kube.kubectl("logs", f"job/{name}", "-n", self.settings.namespace)

    def _client_figures(self, name: str, streams: int) -> ClientFigures:
        result = unpack(self._job_log(name))
        return client_figures(result, self.work[:streams], SETTLE_S, quantile_of(STATISTIC), self.target_s)

    def judge(self, off: Overload, auto: Overload, rolled: bool) -> tuple[float | None, int, list[Check]]:
        """Seconds to hold, changes of the cap, and the promises about latency."""
        readings = self.readings()
        held = seconds_to_hold(readings, auto.span, STATISTIC, self.target_s)
        moved = cap_changes(between(readings, auto.span.start, auto.span.end))
        return held, moved, slo_checks(off.run, auto.run, held, rolled)

    def traces(self, off: Overload | Memory, auto: Overload | Memory) -> tuple[RunTrace, RunTrace]:
        """What the plot needs."""
        readings = self.readings()
        return RunTrace(off.mode, readings, off.span), RunTrace(auto.mode, readings, auto.span)

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
            f"tuning {mode}: {run.preemptions} preemptions in {run.seconds:.0f} s, after "
            f"{run.preemptions_settling} while the lengths were learned; {run.tokens_per_s:.0f} tokens/s, "
            f"cap {run.cap_last}; the operator says {diagnosis[0] or 'nothing'}"
        )
        return Memory(mode, span, run, streams, diagnosis)

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
        self.serving.declare("Auto", slo(self.calibration.target_ms, STATISTIC))
        self.toolbox.follower.stop()
        ns = self.settings.namespace
        self.kube.kubectl("delete", "pods", RECORDER, CLIENT, "-n", ns, "--now", "--wait=false")

    def node(self) -> Object:
        """The engine's node."""
        (pod,) = self.serving.pods()
        found: Object = json.loads(self.kube.kubectl("get", "node", pod["spec"]["nodeName"], "-o", "json"))
        return found
