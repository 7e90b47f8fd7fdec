"""The report's form: what build/demo/report.json holds, and what makes a run a success."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

SHARE_VIOLATED_WHEN_OFF = 0.8
"""At least this share of windows must miss the objective without tuning, or the demo shows nothing."""
SHARE_VIOLATED_WHEN_HELD = 0.1
"""At most this share of windows may miss it with tuning for the objective to count as held."""

Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """Every part of the report: unknown fields are refused, so that a reader can rely on the schema."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Percentiles(Part):
    """Milliseconds."""

    p50: Amount
    p95: Amount
    p99: Amount


class RetunePercentiles(Part):
    """Milliseconds from the operator's request to the engine's read-back, over all changes of the demo."""

    p50: Amount
    p99: Amount
    count: Count


class Machine(Part):
    cpu: str
    cores: int
    memory_gib: Amount
    kernel: str


class CalibrationPart(Part):
    """The statistic measured by the engine itself, milliseconds."""

    one_stream_ms: Amount
    ceiling_ms: Amount
    ceiling: Count
    target_ms: Count


class LoadPart(Part):
    description: str
    concurrency: Count
    settle_s: Amount
    window_s: Amount


class Client(Part):
    """What `vllm bench serve` measured, on the far side of HTTP."""

    itl_ms: Percentiles
    ttft_ms: Percentiles
    tokens_per_s: Amount
    duration_s: Amount
    violated_window_share: Share
    cut_causes: tuple[str, ...] = ()


class Run(Part):
    """One run of the overload, from the engine's own exact counts after the load had settled."""

    violated_window_share: Share
    windows: Count
    windows_unknown: Count = Field(description="Windows without data; they count as violated.")
    itl_ms: Percentiles
    goodput_tokens_per_s: Amount = Field(
        description="Tokens of the windows that met the objective, over all time."
    )
    tokens_per_s: Amount
    queue_ms: Percentiles | None = Field(
        description="Time requests waited in the engine: the price of a lower cap."
    )
    cap_lowest: Count
    cap_highest: Count
    cap_last: Count
    streams_total: Count
    streams_cut: Count
    client: Client


class KvRun(Part):
    """Figures after KV_SETTLE_S of load; how long requests are is learned in that time, as they end."""

    preemptions_settling: Count
    seconds: Amount
    preemptions: Count
    preemptions_per_minute: Amount
    tokens_per_s: Amount
    cap_last: Count


class Kv(Part):
    """A KV cache too small for what is admitted; no latency objective (the batch objective).

    The diagnosis is what the operator said with tuning off: it names an illness whether or not it may treat
    it.
    """

    off: KvRun
    auto: KvRun
    streams_total: Count
    streams_cut: Count
    diagnosis: str
    message: str
    advice: str


class Overhead(Part):
    """Cost of the tuner inside vLLM, from its own micro-benchmark, for one batch size."""

    command: str
    batch: Count
    engine_core_us_per_step: Amount
    api_server_us_per_step: Amount
    engine_core_share_of_step: Share = Field(description="Of the median step in the run with tuning on.")


class Check(Part):
    """One promise, and whether this run kept it."""

    name: str
    passed: bool
    detail: str


class Report(Part):
    """Everything the demo measured."""

    started: str
    duration_s: Amount
    cluster: str
    machine: Machine
    versions: dict[str, str]
    statistic: str
    target_ms: Count
    calibration: CalibrationPart
    load: LoadPart
    off: Run
    auto: Run
    seconds_to_hold: Amount | None
    cap_changes: Count
    pods_rolled: bool
    retune_ms: RetunePercentiles | None
    kv: Kv | None
    tuner_overhead: Overhead | None
    checks: tuple[Check, ...]
    resource: str = Field(description="`kubectl get lls`, as it looked at the end of the run with tuning on.")
    decisions: tuple[str, ...]
    events: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)
